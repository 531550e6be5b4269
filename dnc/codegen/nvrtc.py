"""CUDA text to machine code with NVRTC, on a machine with or without a GPU.

In comes one CUDA C++ translation unit and an architecture (``sm_90a``); out comes a
``CudaBinary``: the cubin and what the assembler says about registers, spills and stack.
Guaranteed: never fast-math (``fp32`` means IEEE division and square root and denormals),
and a text that does not compile raises ``CudaCompileError`` with the compiler's own log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from dnc.diagnostics import fail

KERNEL, SUFFIX = "kernel", ".cu"
LACKING = "DNC_LACKS_A_REGISTER"  # defined for kernels that would spill the address of shared memory
NEARLY = 64  # bytes that a thread stores outside its registers, of which one register more may save all

FLAGS = (
    "--std=c++17",
    "--fmad=true",
    "--ptxas-options=-v",
    "--no-cache",  # a cached cubin comes without the assembler's report
    "--diag-suppress=177",  # lanes, warps and places are named that not every body uses
)

_USAGE = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class CudaCompileError(Exception):
    """NVRTC refused a translation unit; the message is its log."""


@attrs.frozen
class Usage:
    """What machine code costs a thread.

    ``registers`` is the largest of the kernels in the text; ``spill_stores``,
    ``spill_loads`` and ``stack`` are bytes a thread, summed over the functions.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int

    @property
    def resident(self) -> bool:
        """No register of any function lives in local memory."""
        return self.spill_stores == self.spill_loads == self.stack == 0

    @property
    def numbers(self) -> dict[str, int]:
        """They by name, without what a subclass adds."""
        return {name: getattr(self, name) for name in attrs.fields_dict(Usage)}


@attrs.frozen
class CudaBinary(Usage):
    """Machine code for one architecture, and what the assembler said of it."""

    cubin: bytes
    log: str


def compile_cuda(
    source: str, arch: str, *, name: str = "kernel.cu", options: tuple[str, ...] = ()
) -> CudaBinary:
    """Compile ``source`` for ``arch`` (``sm_90a``) and read the resource report."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise fail(
            "compiling for a GPU needs NVRTC (in dnc's folder: pip install -e '.[cuda]'), "
            "or leave out --target cuda"
        ) from None
    flags = [
        f"--gpu-architecture={arch}",
        *FLAGS,
        *(f"--include-path={path}" for path in include_directories()),
        *options,
    ]
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaCompileError(f"{name} does not compile for {arch}:\n{text}")
        cubin = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return _report(cubin, text)


def include_directories() -> tuple[str, ...]:
    """Header folders of the pip packages, where present (only ``cuda/std`` users need them)."""
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    patterns = ("cu*/include", "cu*/include/cccl", "cu*/cccl/include", "cuda_*/include")
    found = (path for root in roots for p in patterns for path in Path(root).glob(p))
    return tuple(str(path) for path in sorted(found) if path.is_dir())


def _report(cubin: bytes, log: str) -> CudaBinary:
    registers = [int(count) for count in _USAGE.findall(log)]
    frames = [tuple(map(int, frame)) for frame in _STACK.findall(log)]
    if not registers or not frames:
        raise CudaCompileError(f"no resource report in the assembler's log:\n{log}")
    stack, stores, loads = (sum(column) for column in zip(*frames, strict=True))
    return CudaBinary(max(registers), stores, loads, stack, cubin, log)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    """NVRTC's two-call idiom: ask for the size, then fill a buffer of it."""
    buffer = bytes(_checked(size_of(program)))
    _checked(read(program, buffer))
    return buffer


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise CudaCompileError(f"NVRTC failed: {status.name}")
    return values[0] if values else None


def compiled(files: Mapping[str, bytes], arch: str) -> dict[str, bytes]:
    """The kernel files of a target with the cubins of `arch` added; needs NVRTC, not TVM."""
    made = dict(files)
    for file in files:
        if file.endswith(SUFFIX):
            made |= _compiled(files, file.removesuffix(SUFFIX), arch)
    return made


def _compiled(files: Mapping[str, bytes], name: str, arch: str) -> dict[str, bytes]:
    source = files[name + SUFFIX].decode()
    binary = compile_cuda(source, arch)
    if not binary.resident and binary.spill_stores <= NEARLY:
        other = compile_cuda(source, arch, options=(f"-D{LACKING}",))
        binary = min(binary, other, key=lambda each: each.spill_stores + each.stack)
    described = json.loads(files[f"{name}.json"]) | binary.numbers
    return {f"{name}.cubin": binary.cubin, f"{name}.json": json.dumps(described, indent=1).encode()}


def spilled(files: Mapping[str, bytes], name: str = KERNEL) -> int:
    """Bytes a thread that a kernel keeps outside its registers, by the compiler's own words."""
    described = json.loads(files.get(f"{name}.json", b"{}"))
    return int(described.get("spill_stores", 0)) + int(described.get("stack", 0))
