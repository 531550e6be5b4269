"""Devices: which target of a build runs here, and on what.

In: the targets of a build and the user's wish. Out: a target, and a `Backend` for its plan.
Guaranteed: without a wish the GPU is taken if the build and the machine have one, else the CPU; what
is not there is said in words. Neither TVM nor the frontend is imported unless the CPU is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnc.diagnostics import fail
from dnc.ir.plan import Plan
from dnc.runtime.backend import Backend, VMBackend
from dnc.runtime.build import Build

CPU, CUDA, VM = "cpu", "cuda", "vm"
DEVICES = (CPU, CUDA, VM)


def choose(build: Build, device: str | None) -> tuple[str, str]:
    """(device, target): where a build runs, and which of its targets is used for that.

    DiagnosticError if the build, or this machine, lacks what was asked for.
    """
    targets = tuple(build.targets)
    if device not in (None, *DEVICES):
        raise fail(f"unknown device '{device}'; devices: {', '.join(DEVICES)}")
    if device == VM:
        return VM, CPU if CPU in targets else targets[0]
    if device == CPU:
        if CPU not in targets:
            raise fail(f"{build.path}: has no kernels for the CPU, only for {', '.join(targets)}")
        return CPU, CPU
    compiled = [target for target in targets if target.startswith(f"{CUDA}:")]
    if device == CUDA and not compiled:
        has = f"has no kernels for a GPU, only for {', '.join(targets)}"
        raise fail(f"{build.path}: {has}", "dnc compile --target cpu,cuda makes kernels for both")
    if not compiled:
        return CPU, CPU
    found, problem = _gpu()
    matching = _matching(compiled, found)
    if matching is not None:
        return CUDA, matching
    if device is None and CPU in targets:
        return CPU, CPU
    if found is None:
        raise fail(f"{build.path}: has kernels for {', '.join(compiled)}; {problem}")
    raise fail(
        f"{build.path}: has kernels for {', '.join(compiled)}; the GPU here is {found}",
        f"compile it with --target cuda:{found}",
    )


def _gpu() -> tuple[str | None, str]:
    """The architecture of the GPU of this machine; or None and why there is none."""
    from dnc.runtime.cuda_driver import CudaError, open_device

    try:
        return open_device().arch, ""
    except CudaError as error:
        return None, error.message


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
    device: str, plan: Plan, build: Build, target: str, replicas: int | None, workers: int | None
) -> Backend:
    """The backend of a device. replicas, workers: None for what suits the machine."""
    if device == VM:
        return VMBackend(plan, replicas or 1, workers or 1)
    files = build.kernels(target)
    if not files:
        raise fail(f"{build.path}: holds no kernels for {target}; compile it again")
    if device == CUDA:
        from dnc.runtime.cuda_backend import CudaBackend

        return CudaBackend(plan, files, replicas=replicas, tuned=build.targets[target].tuned)
    from dnc.runtime.cpu_backend import CpuBackend

    return CpuBackend(plan, files, replicas, workers, tuned=build.targets[target].tuned)
