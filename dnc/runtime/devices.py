"""Devices: which target of a build runs here, and on what.

In: the targets of a build and the user's wish. Out: a `Place`, and a `Backend` for its plan.
Guaranteed: without a wish the GPU is taken if the build and the machine have one, else the CPU; what
is not there is said in words. Neither TVM nor the frontend is imported unless the CPU is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.plan import Plan
from dnc.runtime.backend import Backend, VMBackend
from dnc.runtime.build import Build
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.tuned import Tuned

CPU, CUDA, VM = "cpu", "cuda", "vm"
DEVICES = (CPU, CUDA, VM)
FOR_BOTH = "dnc compile --target cpu,cuda makes kernels for both"
TIMED = "kernels are timed on"


@attrs.frozen
class Place:
    """Where a build runs: CPU, CUDA or VM, the target whose kernels these are, and which GPU, from 0.

    others: GPUs that train with this one, each on a share of every batch.
    """

    device: str
    target: str
    gpu: int = 0
    others: tuple[int, ...] = ()


def without_kernels(build: Build, device: str) -> DiagnosticError:
    """The error of a build that was compiled for other devices, and what makes kernels for both."""
    has = f"has no kernels for {device}, only for {', '.join(build.targets)}"
    return fail(f"{build.path}: {has}", FOR_BOTH)


def choose(build: Build, device: str | None) -> Place:
    """The place for a build. device: "cpu", "vm", "cuda", one of several GPUs ("cuda:1"), or several that
    train together ("cuda:0,1").

    "cuda" is the GPU that is current in the calling thread (`torch.cuda.set_device`), else the first.
    DiagnosticError if the build, or this machine, lacks what was asked for.
    """
    targets = tuple(build.targets)
    kind, numbers = _parsed(device)
    compiled = [target for target in targets if target.startswith(f"{CUDA}:")]
    if kind in (CUDA, VM) and not compiled and (kind == CUDA or len(numbers) > 1):
        raise without_kernels(build, "a GPU")
    if kind == VM:
        target = CPU if CPU in targets and not numbers else (*compiled, *targets)[0]
        return Place(VM, target, 0, numbers[1:])
    if kind == CPU:
        if CPU not in targets:
            raise without_kernels(build, "the CPU")
        return Place(CPU, CPU)
    if not compiled:
        return Place(CPU, CPU)
    gpu, found, problem = _gpu(numbers)
    matching = _matching(compiled, found)
    if matching is not None:
        return Place(CUDA, matching, gpu, numbers[1:])
    if device is None and CPU in targets:
        return Place(CPU, CPU)
    if found is None:
        for_both = () if device is not None else (FOR_BOTH,)
        raise fail(f"{build.path}: has kernels for {', '.join(compiled)}; {problem}", *for_both)
    raise fail(
        f"{build.path}: has kernels for {', '.join(compiled)}; the GPU here is {found}",
        f"compile it with --target cuda:{found}",
    )


def alone(place: Place, what: str) -> Place:
    """The place, for what one device does; DiagnosticError where several were asked for."""
    if place.others:
        numbers = ",".join(map(str, (place.gpu, *place.others)))
        raise fail(f"{what} one device: choose one of {place.device}:{numbers}")
    return place


def _parsed(device: str | None) -> tuple[str | None, tuple[int, ...]]:
    """The kind of a device, and the numbers of GPUs where it says some."""
    if device is None or device in DEVICES:
        return device, ()
    known = rf"({CUDA}|{VM}):([0-9]{{1,3}}(,[0-9]{{1,3}})*)"
    numbered = re.fullmatch(known, device) if isinstance(device, str) else None
    numbers = () if numbered is None else tuple(map(int, numbered[2].split(",")))
    if numbered is None or (numbered[1] == VM and len(numbers) == 1):
        several = (
            f"one of several GPUs is {CUDA}:0, {CUDA}:1 and so on; {CUDA}:0,1 are two that train together"
        )
        raise fail(f"unknown device '{device}'; devices: {', '.join(DEVICES)}", several)
    if len(set(numbers)) < len(numbers):
        raise fail(f"device '{device}' names one twice")
    return numbered[1], numbers


def _gpu(numbers: Sequence[int]) -> tuple[int, str | None, str]:
    """A GPU of this machine and its architecture, that of all if they are several; or None and why there is
    none. numbers: none for any."""
    from dnc.runtime.cuda_driver import CudaError, current_gpu, open_device

    try:
        gpu, *others = numbers or (current_gpu(),)
        arch = open_device(gpu).arch
        for other in others:
            if (found := open_device(other).arch) != arch:
                return 0, None, f"GPU {gpu} is {arch}, GPU {other} {found}: only those alike train together"
        return gpu, arch, ""
    except CudaError as error:
        return 0, None, error.message


def _matching(targets: Sequence[str], arch: str | None) -> str | None:
    """The target for a GPU: its own, else an older one of the same generation.

    The letter behind an architecture ("sm_90a") adds features of that chip, which others lack.
    """
    names = {target.split(":")[1]: target for target in targets}
    own = names.get(f"{arch}a") or names.get(str(arch))
    if own is not None or arch is None:
        return own
    older = [name for name in names if name[:-1] == arch[:-1] and name[-1].isdigit() and name <= arch]
    return names[max(older)] if older else None


def open_backend(
    place: Place, plan: Plan, build: Build, replicas: int | None, workers: int | None
) -> Backend:
    """The backend of a place. replicas, workers: None for what suits the machine."""
    members = [_open_one(each, plan, build, replicas, workers) for each in _each(place)]
    return DataParallelBackend(members) if place.others else members[0]


def _each(place: Place) -> list[Place]:
    """The places of the devices that train together."""
    return [attrs.evolve(place, gpu=gpu, others=()) for gpu in (place.gpu, *place.others)]


def _open_one(place: Place, plan: Plan, build: Build, replicas: int | None, workers: int | None) -> Any:
    """That of one device, alone or as a `Member` of several."""
    if place.device == VM:
        return VMBackend(plan, replicas or 1, workers or 1)
    files = build.kernels(place.target)
    if not files:
        raise fail(f"{build.path}: holds no kernels for {place.target}; compile it again")
    return backend_of(place, plan, files, replicas, workers, build.targets[place.target].tuned)


def backend_of(
    place: Place,
    plan: Plan,
    files: dict[str, bytes],
    replicas: int | None,
    workers: int | None,
    tuned: Sequence[Tuned] = (),
) -> Backend:
    """That of a CPU or a GPU, for these kernels."""
    if place.device == CUDA:
        from dnc.runtime.cuda_backend import CudaBackend
        from dnc.runtime.cuda_driver import open_device

        return CudaBackend(plan, files, open_device(place.gpu), replicas, tuned)
    from dnc.runtime.cpu_backend import CpuBackend

    return CpuBackend(plan, files, replicas, workers, tuned=tuned)
