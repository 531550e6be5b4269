"""Named arrays in safetensors files.

In: arrays and one JSON value of metadata. Out: a file, written whole or not at all; and back.
Guaranteed: the same arrays and metadata give the same bytes; a broken file is a DiagnosticError, and so is
one with metadata of ours of which anything has changed since.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from dnc.diagnostics import check_path, fail, reading
from dnc.runtime.atomic import write_atomically
from dnc.runtime.json_text import decode_json

# The one key of a file's metadata; several would be stored in no fixed order.
KEY = "dnc"
FROM_PYTORCH = "from PyTorch: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
PICKLED = (b"PK", b"\x80\x02")  # how files of torch.save begin
CHECKSUM = "checksum"  # in the metadata, where it is an object; files from before there were any have none


def write_tensors(path: str | Path, tensors: Mapping[str, NDArray[Any]], metadata: Any) -> None:
    """Writes arrays with metadata (a JSON value)."""
    check_path(path, "a safetensors file to write")
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    if isinstance(metadata, dict):
        metadata = {**metadata, CHECKSUM: _checksum(whole, metadata)}
    content = save(whole, {KEY: msgspec.json.encode(metadata).decode()})
    try:
        write_atomically(Path(path), [content])
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None


def read_tensors(path: str | Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The arrays of a file and its metadata, None where there is none of ours."""
    tensors, found = _read(path, True)
    if isinstance(found, dict) and CHECKSUM in found and found.pop(CHECKSUM) != _checksum(tensors, found):
        raise fail(f"{path}: damaged: it does not hold what was written")
    return tensors, found


def read_metadata(path: str | Path) -> Any:
    """The metadata alone, None where there is none of ours; what else is in the file is not looked at."""
    found = _read(path, False)[1]
    return {k: v for k, v in found.items() if k != CHECKSUM} if isinstance(found, dict) else found


def _read(path: str | Path, whole: bool) -> tuple[dict[str, NDArray[Any]], Any]:
    """Metadata, the checksum with it, and the arrays of a whole file; DiagnosticError where it is none."""
    check_path(path, "a safetensors file")
    if Path(path).is_dir():
        raise fail(f"{path}: is a directory, expected a file")
    with reading(path), Path(path).open("rb"):
        pass  # safetensors calls whatever cannot be opened missing
    try:
        with safetensors.safe_open(str(path), "numpy") as file:
            metadata = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in (file.keys() if whole else ())}
    except (TypeError, AttributeError):  # numbers that NumPy does not have, as bfloat16
        what = "holds floats of 8 bits, or of 16 that NumPy does not have"
        raise fail(f"{path}: {what}", "dnc import-weights reads bfloat16") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise fail(f"{path}: not a safetensors file that can be read: {error}", *_notes(path)) from None
    try:
        return tensors, None if metadata is None else decode_json(metadata)
    except ValueError:
        raise fail(f"{path}: its metadata is broken") from None


def _notes(path: str | Path) -> tuple[str, ...]:
    """What to do with a file of torch.save: an archive, or in old ones a pickle."""
    with suppress(OSError), Path(path).open("rb") as file:
        if file.read(2) in PICKLED:
            return (FROM_PYTORCH, "then dnc import-weights model.safetensors, which makes a checkpoint of it")
    return ()


def check_own(path: str | Path) -> None:
    """DiagnosticError if a safetensors file is one of ours that does not hold what was written."""
    with safetensors.safe_open(str(path), "numpy") as file:
        own = KEY in (file.metadata() or {})
    if own:
        read_tensors(path)


def _checksum(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, Any]) -> int:
    """CRC-32 of the metadata, and of all arrays by name."""
    found = zlib.crc32(msgspec.json.encode(metadata))
    for name in sorted(tensors):
        found = zlib.crc32(np.ascontiguousarray(tensors[name]).data, zlib.crc32(name.encode(), found))
    return found
