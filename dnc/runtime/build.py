"""The build folder: a compiled model on disk, which the runtime only reads.

    manifest.json   what the model is, its targets, a digest of every file
    program.ir      the transformed program as text
    model.dn        the source, for people
    remarks.json    what passes said of their decisions, with places in the source
    cpu/, cuda-sm_90a/, ...  the kernels of a target
    cuda-sm_90a.1/, ...      other kernels of it, which `dnc tune` may put in their place

Guaranteed: a build is written whole or not at all and replaces nothing but a build, and that only if
it holds nothing else; a missing, damaged or foreign folder is refused in words.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec

from dnc.diagnostics import DiagnosticError, Source, Span, check_path, fail, read_source
from dnc.ir import isa
from dnc.ir.machine import MACHINES, target_name
from dnc.ir.remarks import Remark
from dnc.runtime.json_text import decode_json
from dnc.runtime.tuned import Tuned
from dnc.version import VERSION

FORMAT = 3
FIRST_SCHEDULES = 5  # the version of the schedules of builds that do not say it
MANIFEST, PROGRAM, SOURCE, REMARKS = "manifest.json", "program.ir", "model.dn", "remarks.json"


@attrs.frozen
class Target:
    """One target of a build. plan: the digest of its plan. files: digests of its kernel files.

    tuned: what was measured with these kernels.
    """

    machine: str
    options: dict[str, Any]
    plan: str
    files: dict[str, str] = attrs.field(factory=dict)
    tuned: tuple[Tuned, ...] = ()


@attrs.frozen
class Build:
    """A build. digest: of the model (not of how it was compiled). program: the text of program.ir.

    candidates: by target, other kernels that it could have. source_place: where the source was, as seen from
    the build; "" if that is not known. path: as it was given, for messages; place: the absolute one.
    """

    path: Path
    model: str
    digest: str
    source_name: str
    source: str
    settings: dict[str, int]
    program: str
    targets: dict[str, Target]
    remarks: tuple[Remark, ...] = ()
    candidates: dict[str, tuple[Target, ...]] = attrs.field(factory=dict)
    source_place: str = ""
    place: Path = attrs.field(init=False, repr=False)

    @place.default
    def _place(self) -> Path:
        return self.path.absolute()

    def source_has_changed(self) -> bool:
        """Whether the file that the build was made of is there still, and says something else now."""
        path = Path(os.path.realpath(self.place), self.source_place)
        try:
            return self.source_place != "" and path.is_file() and read_source(path).text != self.source
        except (DiagnosticError, OSError, ValueError):  # it cannot be read
            return False

    def folder(self, target: str) -> Path:
        """Where the kernels of a target lie."""
        return self.path / _folder_name(target)

    def kernels(self, target: str) -> dict[str, bytes]:
        """The kernel files of a target, checked against the manifest."""
        return _kernels(self.folder(target), self.targets[target])

    def candidate_kernels(self, target: str) -> tuple[dict[str, bytes], ...]:
        """The kernel files of a target's candidates, checked likewise."""
        return tuple(
            _kernels(self.path / _candidate_name(target, at), each)
            for at, each in enumerate(self.candidates.get(target, ()), 1)
        )


class _Remark(msgspec.Struct):
    """A remark as it is written; place: line, column and length in the source."""

    decided_by: str
    stage: str
    message: str
    place: tuple[int, int, int] | None = None
    notes: tuple[str, ...] = ()
    target: str = ""


class _Manifest(msgspec.Struct):
    format: int
    dnc: str
    model: str
    digest: str
    source_name: str
    settings: dict[str, int]
    files: dict[str, str]
    targets: dict[str, dict[str, Any]]
    candidates: dict[str, list[dict[str, Any]]] = {}
    schedules: int = FIRST_SCHEDULES
    source_place: str = ""


Files = Mapping[str, bytes]


def write_build(
    build: Build, kernels: Mapping[str, Files], candidates: Mapping[str, Sequence[Files]] | None = None
) -> None:
    """Writes a build to `build.path`, or where that leads as a link; `kernels` are the files of every target,
    and of its candidates."""
    check_place(build.path)
    try:
        out = Path(os.path.realpath(build.path))
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        try:
            _fill(made, build, kernels, candidates or {})
            _replace(made, out)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise fail(f"{build.path}: cannot be written: {error.strerror}") from None


def check_place(path: str | Path) -> None:
    """DiagnosticError where a build would replace something else."""
    check_path(path, "a build to write")
    out = Path(path)
    if not out.exists():
        return
    manifest = _manifest(out)
    if manifest is None:
        if not (out.is_dir() and not any(out.iterdir())):
            raise fail(f"{out}: exists and is not a build; nothing was written")
        return
    own = {
        MANIFEST,
        PROGRAM,
        SOURCE,
        REMARKS,
        *map(_folder_name, _named(manifest, "targets")),
        *_candidate_folders(_named(manifest, "candidates")),
    }
    foreign = sorted(path.name for path in out.iterdir() if path.name not in own)
    if foreign:
        raise fail(
            f"{out}: holds {', '.join(foreign)} beside the build, which would be lost; nothing was written"
        )


def check_outside(path: str | Path, shown: str | Path | None = None) -> None:
    """DiagnosticError if `path` lies in a build, where the next compilation would lose it.

    Links are followed. shown: what the user calls it.
    """
    try:
        real = os.path.realpath(path)
    except OSError as error:  # the working folder is gone
        raise fail(f"{shown or path}: from the working folder: {error.strerror}") from None
    for folder in Path(real).parents:
        if is_build(folder):
            raise fail(
                f"{shown or path}: lies in the build {folder}, which is only read; choose another place"
            )


def _fill(
    folder: Path, build: Build, kernels: Mapping[str, Files], candidates: Mapping[str, Sequence[Files]]
) -> None:
    texts = {PROGRAM: build.program.encode(), SOURCE: build.source.encode()}
    texts[REMARKS] = _print_remarks(build.remarks)
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    targets = {
        name: _fill_target(folder / _folder_name(name), target, kernels.get(name, {}))
        for name, target in build.targets.items()
    }
    others = {
        name: [
            _fill_target(folder / _candidate_name(name, at), target, files)
            for at, (target, files) in enumerate(zip(found, candidates[name], strict=True), 1)
        ]
        for name, found in build.candidates.items()
    }
    manifest = _Manifest(
        FORMAT,
        VERSION,
        build.model,
        build.digest,
        build.source_name,
        build.settings,
        {name: _digest(content) for name, content in texts.items()},
        targets,
        others,
        isa.VERSION,
        build.source_place,
    )
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)


def _fill_target(folder: Path, target: Target, kernels: Files) -> dict[str, Any]:
    """Writes the kernels of a target; what the manifest says of it."""
    folder.mkdir()
    for file, content in kernels.items():
        (folder / file).write_bytes(content)
    files = {file: _digest(content) for file, content in kernels.items()}
    return attrs.asdict(attrs.evolve(target, files=files))


def _replace(made: Path, out: Path) -> None:
    """Puts a finished folder in the place of `out`; an old build goes only when the new one is there."""
    if not out.exists():
        made.rename(out)
        return
    old = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old."))
    try:
        out.rename(old / "build")
        made.rename(out)
    except BaseException:
        with suppress(OSError):  # it has its place still, or the new one has
            (old / "build").rename(out)
        raise
    finally:
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)


def is_build(path: str | Path) -> bool:
    """Whether a folder holds a build, of whatever version."""
    return _manifest(path) is not None


def model_of(path: str | Path) -> str | None:
    """The name of the model of a build, of whatever version; None if the folder holds none."""
    found = (_manifest(path) or {}).get("model")
    return found if isinstance(found, str) else None


def _manifest(path: str | Path) -> dict[str, Any] | None:
    """The manifest of a build of whatever version; None if the folder holds none."""
    try:
        values = decode_json((Path(path) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and {"format", "dnc", "model"} <= set(values) else None


def _folder_name(target: str) -> str:
    return target.replace(":", "-")


def _candidate_name(target: str, number: int) -> str:
    return f"{_folder_name(target)}.{number}"


def _named(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    """What a manifest, of whatever version, holds by target; nothing where it is something else."""
    found = manifest.get(key)
    return found if isinstance(found, dict) else {}


def _candidate_folders(candidates: dict[str, Any]) -> list[str]:
    """The folders that a manifest, of whatever version, names for candidates."""
    counts = {name: len(each) for name, each in candidates.items() if isinstance(each, list)}
    return [_candidate_name(name, at) for name, count in counts.items() for at in range(1, count + 1)]


def kernel_file(files: Mapping[str, bytes], name: str, device: str) -> bytes:
    """One of the files of a kernel; DiagnosticError where a build lacks it."""
    if name not in files:
        raise fail(f"the build has no {name} for {device}; compile it again")
    return files[name]


def _kernels(folder: Path, target: Target) -> dict[str, bytes]:
    return {name: _checked(folder / name, found) for name, found in target.files.items()}


def read_build(path: str | Path) -> Build:
    """Reads a build; DiagnosticError says what is wrong with it."""
    check_path(path, "a build")
    folder = Path(path)
    if not folder.exists():
        raise fail(f"{path}: there is no such build; make one with dnc compile")
    if not folder.is_dir():
        notes = [f"dnc compile {path} -o build/ makes one of a program"] if folder.suffix == ".dn" else []
        raise fail(f"{path}: is a file, expected the folder of a build", *notes)
    try:
        values = decode_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        note = f"it holds a run: --run-dir {path} beside the build, or dnc run --resume {path}"
        notes = [note] if (folder / "run.toml").exists() else []
        raise fail(f"{path}: not a build: {MANIFEST} is missing", *notes) from None
    except OSError as error:
        raise fail(f"{folder / MANIFEST}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise _damaged(folder / MANIFEST) from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise _damaged(folder / MANIFEST)
    if values["format"] != FORMAT:
        raise fail(
            f"{path}: a build of format {values['format']} (dnc {values.get('dnc', '?')}), expected "
            f"{FORMAT} (dnc {VERSION}); compile it again"
        )
    schedules = values.get("schedules", FIRST_SCHEDULES)
    if schedules != isa.VERSION:
        raise fail(
            f"{path}: its kernels read schedules of version {schedules} (dnc {values.get('dnc', '?')}), but "
            f"this dnc ({VERSION}) writes version {isa.VERSION}; compile it again"
        )
    try:
        manifest = msgspec.convert(values, _Manifest)
        targets = {name: msgspec.convert(found, Target) for name, found in manifest.targets.items()}
        candidates = {
            name: tuple(msgspec.convert(each, Target) for each in found)
            for name, found in manifest.candidates.items()
        }
    except (msgspec.ValidationError, TypeError):
        raise _damaged(folder / MANIFEST) from None
    every = [*targets.values(), *(each for found in candidates.values() for each in found)]
    foreign = any(Path(file).name != file for each in every for file in each.files)
    if not targets or foreign or not candidates.keys() <= targets.keys():
        raise _damaged(folder / MANIFEST)
    for each in every:
        if each.machine not in MACHINES:
            raise fail(
                f"{path}: has kernels for {each.machine}, which this dnc ({VERSION}) does not know",
                "use the version that compiled it, or compile it again",
            )
    if any(name != target_name(each.machine) for name, each in targets.items()):
        raise _damaged(folder / MANIFEST)
    texts = {
        name: _checked(folder / name, manifest.files.get(name, "")).decode()
        for name in (PROGRAM, SOURCE, *({REMARKS} & manifest.files.keys()))
    }
    return Build(
        folder,
        manifest.model,
        manifest.digest,
        manifest.source_name,
        texts[SOURCE],
        manifest.settings,
        texts[PROGRAM],
        targets,
        _read_remarks(
            texts.get(REMARKS, "[]"), Source(manifest.source_name, texts[SOURCE]), folder / REMARKS
        ),
        candidates,
        manifest.source_place,
    )


def place_from(build: str | Path, source: str | Path) -> str:
    """Where a source lies, as seen from a build, so that both may be moved together; "" on another drive,
    and where a folder between them has a name that is not UTF-8."""
    folder, name = os.path.split(os.path.abspath(source))
    try:
        place = os.path.relpath(Path(os.path.realpath(folder), name), os.path.realpath(build))
        place.encode()
        return Path(place).as_posix()
    except ValueError:
        return ""


def _print_remarks(remarks: tuple[Remark, ...]) -> bytes:
    written = [
        _Remark(
            each.decided_by,
            each.stage,
            each.message,
            None if each.span is None else (each.span.line, each.span.column, each.span.length),
            each.notes,
            each.target,
        )
        for each in remarks
    ]
    return msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n"


def _read_remarks(text: str, source: Source, path: Path) -> tuple[Remark, ...]:
    try:
        written = decode_json(text, list[_Remark])
    except ValueError:
        raise _damaged(path) from None
    return tuple(
        Remark(
            each.decided_by,
            each.stage,
            each.message,
            None if each.place is None else Span(source, *each.place),
            each.notes,
            each.target,
        )
        for each in written
    )


def _checked(path: Path, expected: str) -> bytes:
    """A file's content, if it is what the manifest says."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise fail(f"{path}: is missing from the build; compile it again") from None
    except OSError as error:
        raise fail(f"{path}: cannot be read: {error.strerror}") from None
    if _digest(content) != expected:
        raise _damaged(path)
    return content


def _damaged(path: Path) -> Exception:
    return fail(f"{path}: the build is damaged here; compile it again")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
