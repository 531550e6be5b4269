"""Code generation: a plan in, one persistent interpreter kernel (TIRx, for LLVM or CUDA) out."""

from __future__ import annotations

from dnc.ir.plan import Plan


def emit_cuda(plan: Plan, traced: bool = False) -> dict[str, bytes]:
    """The kernel files of a CUDA target, by name; needs neither a GPU nor a CUDA toolkit.

    traced: of the kernel that keeps the times of every instruction.
    """
    from dnc.codegen.cuda_files import build_cuda

    return build_cuda(plan, traced)


def emit_cpu(plan: Plan, traced: bool = False) -> dict[str, bytes]:
    """The kernel files of the CPU target, by name; needs no C compiler. traced: as in `emit_cuda`."""
    from dnc.codegen.cpu_kernel import build_cpu

    return build_cpu(plan, traced)
