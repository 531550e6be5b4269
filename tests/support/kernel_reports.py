"""What NVRTC said of the kernels that CI looks at, kept beside the tests by the digest of their text.

The compiler makes the same machine code of the same text, and takes half a minute for it. So a report is
taken from `tests/cuda_kernels.json` where text, compiler and architecture are those that were compiled, and
made where anything is different: a kernel that has changed is compiled in every run until
`DNC_UPDATE_GOLDEN=1 pytest tests/unit/test_cuda_source.py` has kept its new report. `DNC_KERNELS=all`
compiles whatever was kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from importlib.metadata import version
from pathlib import Path

import attrs
import msgspec

from dnc.codegen.nvrtc import FLAGS, Usage, compile_cuda
from dnc.runtime.atomic import write_atomically

KEPT = Path(__file__).parents[1] / "cuda_kernels.json"
ALL = os.environ.get("DNC_KERNELS") == "all"
UPDATED = bool(os.environ.get("DNC_UPDATE_GOLDEN"))


@attrs.frozen
class Report(Usage):
    """What it costs a thread, and what was compiled: the text's SHA-256, the compiler."""

    text: str
    compiler: str


def compiler() -> str:
    """The compiler at hand, and what it is told."""
    return " ".join(("NVRTC", version("nvidia-cuda-nvrtc"), *FLAGS))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _kept() -> dict[str, Report]:
    """The reports by architecture and name of a kernel."""
    return msgspec.json.decode(KEPT.read_bytes(), type=dict[str, Report])


def compiled(name: str, text: str, arch: str) -> Report:
    """The compiler's report, made now, and kept where that is asked for. CudaCompileError where the text does
    not compile."""
    used = compile_cuda(text, arch).numbers
    made = Report(**used, text=_digest(text), compiler=compiler())
    if UPDATED:
        _keep(f"{arch} {name}", made)
    return made


def kept_report(name: str, text: str, arch: str) -> Report | None:
    """The report that was kept, if it is of this text and this compiler."""
    found = _kept().get(f"{arch} {name}")
    now = (_digest(text), compiler())
    return found if found is not None and (found.text, found.compiler) == now else None


def report_of(name: str, text: str, arch: str) -> Report:
    """The compiler's report of a kernel: the one that was kept, or one that is made now."""
    found = None if ALL else kept_report(name, text, arch)
    return compiled(name, text, arch) if found is None else found


def _keep(key: str, made: Report) -> None:
    """Processes of tests that update reports take turns; those that read meanwhile find all or none of it."""
    folder = os.open(KEPT.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = dict(sorted((_kept() | {key: made}).items()))
        write_atomically(KEPT, [msgspec.json.format(msgspec.json.encode(found), indent=1), b"\n"])
    finally:
        os.close(folder)
