"""Code generation: a plan in, one persistent interpreter kernel (TIRx, for LLVM or CUDA) out."""

from __future__ import annotations

from dnc.ir.plan import Plan


def emit_cuda(plan: Plan) -> dict[str, bytes]:
    """The kernel files of a CUDA target, by name; needs neither a GPU nor a CUDA toolkit."""
    from dnc.codegen.cuda_kernel import build_cuda

    return build_cuda(plan)


def emit_cpu(plan: Plan) -> dict[str, bytes]:
    """The kernel files of the CPU target, by name; needs no C compiler."""
    from dnc.codegen.cpu_kernel import build_cpu

    return build_cpu(plan)
