"""Safetensors files of other programs.

In: a file whose tensors may be of any kind of float. Out: float32 arrays by name; and back, as PyTorch
writes them. Guaranteed: neither PyTorch nor anything else than safetensors and NumPy is needed; what
is no float is kept apart by name; a checkpoint of dnc that has changed since is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from dnc.diagnostics import fail, reading
from dnc.runtime.atomic import write_atomically
from dnc.runtime.run_folder import check_result
from dnc.runtime.tensors import FROM_PYTORCH, PICKLED, check_own

Floats = NDArray[np.float32]
METADATA = "__metadata__"
_KINDS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def read_foreign(path: str | Path) -> tuple[dict[str, Floats], dict[str, str]]:
    """The tensors of floats as float32, and the kind of every other one."""
    with reading(path):
        content = Path(path).read_bytes()
    try:
        entries: Any = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        notes = (FROM_PYTORCH,) if content.startswith(PICKLED) else ()
        raise fail(f"{path}: not a safetensors file: {error}", *notes) from None
    check_own(path)
    found, others = dict[str, Floats](), dict[str, str]()
    for name, entry in sorted(entries, key=lambda named: named[0]):  # they come in any order
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        if kind == "BF16":  # the upper half of a float32
            values = (np.frombuffer(entry["data"], "<u2").astype("<u4") << 16).view(np.float32)
        elif kind in _KINDS:
            with np.errstate(over="ignore"):
                values = np.frombuffer(entry["data"], np.dtype(_KINDS[kind]).newbyteorder("<")).astype(
                    np.float32
                )
        else:
            others[name] = kind
            continue
        try:
            found[name] = values.reshape(shape)
        except ValueError:
            raise fail(f"{path}: not a safetensors file: '{name}' cannot be {list(shape)}") from None
    return found, others


def write_foreign(path: str | Path, tensors: Mapping[str, Floats], *inputs: str | Path | None) -> None:
    """Writes a file that PyTorch's libraries read; it is none of the inputs."""
    check_result(path, *inputs)
    if METADATA in tensors:
        raise fail(
            f"{path}: no tensor can be called '{METADATA}': safetensors keeps what is said of the file there"
        )
    whole = {name: np.ascontiguousarray(value, np.float32) for name, value in sorted(tensors.items())}
    try:
        write_atomically(Path(path), [save(whole, {"format": "pt"})])
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
