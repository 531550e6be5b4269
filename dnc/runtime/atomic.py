"""Files that are written whole or not at all.

In: a path and the pieces of its content. Out: the file. Guaranteed: a reader sees the old file or
the new one; an interrupted write leaves the old one and no rest. No output replaces an input.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dnc.diagnostics import check_path, fail

STREAMS = (Path("/dev/stdout"), Path("/dev/stderr"))


def write_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Write the pieces to a file beside `path`, then rename it; OSError where that fails.

    A link is followed, and what is no file (/dev/null, a pipe), or is open already (/dev/stdout), is written
    to, not replaced.
    """
    if path.exists() and (not path.is_file() or is_open(path)):
        with path.open("ab") as stream:
            stream.writelines(pieces)
        return
    path = Path(os.path.realpath(path))
    handle, name = _part(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt just behind the renaming
            os.unlink(name)
        raise


def is_open(path: Path) -> bool:
    """Whether a path is that of a file descriptor of this process."""
    return Path(os.path.abspath(path)) in STREAMS or path.parent.resolve() == Path("/dev/fd").resolve()


def _part(path: Path) -> tuple[int, str]:
    """A new file beside `path`, open, and its name."""
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")


def write_text(path: str | Path, text: str) -> None:
    """Writes a text whole or not at all; DiagnosticError where that fails."""
    try:
        write_atomically(Path(path), [text.encode()])
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None


def check_output(path: str | Path, *inputs: object) -> None:
    """DiagnosticError if no file can be written to `path`, or if it is one of the inputs.

    To be called before the work whose result goes there. inputs: only paths count.
    """
    check_path(path, "a file to write")
    out = Path(path)
    try:
        _check_place(out, path)
        others = [Path(each) for each in inputs if isinstance(each, str | Path)]
        lost = out.exists() and any(each.exists() and out.samefile(each) for each in others)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    if lost:
        raise fail(f"{path}: is read here too and would be lost; choose another file to write")


def _check_place(out: Path, shown: str | Path) -> None:
    """Fails as writing a file would; OSError where only trying it shows that, as for a name too long."""
    if out.is_dir():
        raise fail(f"{shown}: is a directory, expected a file to write")
    if out.exists() and (not out.is_file() or is_open(out)):
        if not os.access(out, os.W_OK):
            raise fail(f"{shown}: cannot be written: no permission")
        return
    place = Path(os.path.realpath(out)) if out.is_symlink() else out
    if not place.parent.is_dir():
        raise fail(f"{shown}: there is no directory {place.parent}")
    if not os.access(place.parent, os.W_OK):
        raise fail(f"{shown}: cannot be written: no permission to write in {place.parent}")
    handle, name = _part(place)
    os.close(handle)
    os.unlink(name)
