"""CUDA kernels on a machine without a GPU: their emitted text, compiled as C++, every thread a fiber.

In: a plan. Out: a `CudaBackend` whose launches run the kernel's own text on one core (`kernel.h`). What is
machine code in it (`asm`) has a function of the same name there; everything else, the interpreter, indices,
barriers, copies, is what a GPU runs. So it finds what is wrong in a kernel, but no race that needs two
threads at the same time, and nothing about time. Needs g++.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dnc.codegen.cuda_files import emit_source
from dnc.codegen.nvrtc import LACKING
from dnc.compiler import digest
from dnc.ir.plan import Plan
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.cuda_driver import LaunchShape
from tests.support.fake_gpu import FakeCall, FakeDevice, FakeKernel, FakeStream

COMPILER = shutil.which("g++")
OPTIONS = (
    "-Og",  # a kernel runs for a second or two, so optimization takes longer than it saves
    "-std=c++17",
    "-w",
    "-ffp-contract=off",
    "-mfma",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
)
MEMORY = 1 << 28  # bytes of the device: what is freed there is not used again
PLACES = ("counters", "pool", "words", "others")
NUMBERS = ("grid", "turn", "limit_us")
ARGUMENTS = {name: name for name in (*PLACES, *NUMBERS)}
"""By a kernel's parameter what the launch passes."""

_FUNCTION = re.compile(r"^__device__ __forceinline__ .*?^}\n", re.DOTALL | re.MULTILINE)
_TVM = re.compile(r"^__forceinline__ __device__ void tvm_builtin.*?^}\n", re.DOTALL | re.MULTILINE)
_ONE_LINE = re.compile(r"^__device__ __forceinline__ [^\n]*\}\n", re.MULTILINE)
HEADER = Path(__file__).parent / "kernel.h"


def translated(text: str, parameters: list[str]) -> str:
    """The emitted text as C++ behind `kernel.h`."""
    front, _, kernel = text.partition('extern "C" __global__')
    short = _ONE_LINE.findall(front)
    front = _ONE_LINE.sub("", front)
    functions = [*_TVM.findall(front), *short, *_FUNCTION.findall(front)]
    plain = [function for function in functions if "asm" not in function]
    shared = re.compile(rf"#ifdef {LACKING}\n.*?#endif", re.DOTALL)
    kernel = shared.sub("unsigned char* shared_ptr = here->block->shared;", f'extern "C" __global__{kernel}')
    given = ", ".join(ARGUMENTS[name] for name in parameters)
    return "\n".join(
        [
            '#include "kernel.h"',
            *plain,
            kernel,
            "static unsigned* counters; static float* pool; static int* words; static uint64_t* others;",
            "static int grid; static unsigned turn, limit_us;",
            f"static void begin() {{ dnc_kernel({given}); }}",
            'extern "C" int emulate(unsigned* c, float* p, int* w, uint64_t* o, int g, unsigned t,',
            "                       unsigned l, int cluster, int shared, int late, int seed) {",
            "  counters = c, pool = p, words = w, others = o, grid = g, turn = t, limit_us = l;",
            "  return launch(g, cluster, shared, late, seed);",
            "}",
            "",
        ]
    )


def shared_by_all(folder: Path) -> Path:
    """Where the processes of a run keep what they share, given the folder of a test."""
    in_own_folder = "PYTEST_XDIST_WORKER" in os.environ  # of a process, in which are those of its tests
    found = (folder.parents[1] if in_own_folder else folder.parent) / "emulator"
    found.mkdir(exist_ok=True)
    return found


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """A file that is whole or not there; who needs it at the same time may make it, too."""
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as own:
            make(Path(own) / path.name)
            os.replace(Path(own) / path.name, path)
    return path


def _run(*arguments: str | Path) -> None:
    assert COMPILER is not None
    found = subprocess.run([COMPILER, *OPTIONS, *arguments], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[:4000]


def compiled(files: dict[str, bytes], folder: Path) -> Path:
    """The kernel as a library of the host; a text that was compiled in this run is not compiled again."""
    described = json.loads(files["kernel.json"])
    text = translated(files["kernel.cu"].decode(), described["parameters"]).encode()

    def compile_text(library: Path) -> None:
        source = library.with_suffix(".cpp")
        source.write_bytes(text)
        header = made_once(folder / "kernel.h.gch", lambda made: _run("-xc++-header", HEADER, "-o", made))
        _run(f"-I{header.parent}", f"-I{HEADER.parent}", "-o", library, source)

    return made_once(folder / f"{hashlib.sha256(text).hexdigest()}.so", compile_text)


def emitted(plan: Plan, is_lean: bool, folder: Path) -> list[bytes]:
    """Text and description of a plan's kernel, emitted once in a run."""

    def emit(found: Path) -> None:
        found.write_bytes(pickle.dumps(list(emit_source(plan, is_lean=is_lean).values())))

    kind = "lean" if is_lean else "kernel"
    found: list[bytes] = pickle.loads(made_once(folder / f"{digest(plan)}.{kind}", emit).read_bytes())
    return found


class _Kernel(FakeKernel):
    """The one of the plan: all workers that a grid may have are resident."""

    def resident_workers_per_sm(self, shape: LaunchShape) -> int:
        """As many as a multiprocessor takes."""
        return 1

    def check(self, shape: LaunchShape) -> None:
        """Nothing is too large."""
        assert self.prepared


class _Call(FakeCall):
    """A launch that runs the kernel."""

    device: EmulatedDevice

    def launch(self) -> None:
        """All threads, to the end; AssertionError where they wait for each other."""
        self.kernel.check(self.shape)
        device = self.device
        device.launches += 1
        places = [getattr(self.values[name], "address", self.values[name]) for name in PLACES]
        numbers, shape = (self.values.get(name, 0) for name in NUMBERS), self.shape
        left = device.kernel.emulate(
            *map(ctypes.c_void_p, places), *map(ctypes.c_uint32, numbers), shape.cluster, shape.shared_bytes,
            int(device.late), device.launches,
        )  # fmt: skip
        assert left == 0, f"{left} threads wait for each other"


class EmulatedDevice(FakeDevice):
    """A device whose launches run. late: copies arrive when they are waited for, not before."""

    def __init__(self, plan: Plan, kernel: ctypes.CDLL) -> None:
        super().__init__(plan)
        self.kernel, self.late = kernel, True
        self._all = np.zeros(MEMORY + 256, np.uint8)
        skipped = -self._all.ctypes.data % 256
        self.memory = self._all[skipped : skipped + MEMORY]
        self.origin = self.memory.ctypes.data

    def load(self, cubin: bytes, symbol: str, parameters: list[tuple[str, str]]) -> FakeKernel:
        """The kernel."""
        return _Kernel([name for name, _ in parameters])

    def call(self, kernel: FakeKernel, shape: LaunchShape, stream: FakeStream) -> FakeCall:
        """A launch."""
        return _Call(self, kernel, shape)


def backend_of(
    plan: Plan,
    folder: Path,
    replicas: int | None = None,
    change: Callable[[str], str] = str,
    is_lean: bool = False,
) -> CudaBackend:
    """A backend that runs the plan's kernel here; change: what is done to its text before. is_lean: the lean
    one, whatever the batch."""
    return backends_of(plan, folder, 1, replicas, change, is_lean)[0]


def backends_of(
    plan: Plan,
    folder: Path,
    devices: int,
    replicas: int | None = None,
    change: Callable[[str], str] = str,
    is_lean: bool = False,
) -> list[CudaBackend]:
    """So many of them, whose launches may run at the same time."""
    shared = shared_by_all(folder)
    text, described = emitted(plan, is_lean, shared)
    files = {"kernel.cu": change(text.decode()).encode(), "kernel.json": described, "kernel.cubin": b""}
    library = compiled(files, shared)
    found = list[CudaBackend]()
    for number in range(devices):
        own = folder / f"kernel{number}.so"  # with variables of its own
        shutil.copy(library, own)
        device: Any = EmulatedDevice(plan, ctypes.CDLL(str(own)))
        found.append(CudaBackend(plan, files, device, replicas))
    return found
