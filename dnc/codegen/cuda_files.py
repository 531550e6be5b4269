"""The files of a CUDA target: a kernel's text, machine code, and what its launcher needs to know.

In: a plan. Out: files by name, `kernel.*` and, where batches of few rows have a kernel of their own
(`dnc.ir.lean`), `lean.*`. Guaranteed: a lean kernel that spills is not among the files of a build.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs

from dnc.codegen.cuda_kernel import Kernel
from dnc.codegen.nvrtc import KERNEL, compiled, spilled
from dnc.codegen.tirx_cuda import emit_cuda
from dnc.ir import lean
from dnc.ir.plan import Plan


def emit_source(plan: Plan, traced: bool = False, is_lean: bool = False) -> dict[str, bytes]:
    """kernel.cu and kernel.json (what the launcher needs), not compiled yet; lean.cu, lean.json.

    traced: the kernel that keeps the times of every instruction (`dnc.ir.stamps`). is_lean: the lean one
    (`dnc.ir.lean`).
    """
    kernel, name = Kernel(plan, traced, is_lean), lean.NAME if is_lean else KERNEL
    source = emit_cuda(kernel.build(), plan.target)
    described = {
        "symbol": source.symbol,
        "parameters": list(source.parameters),
        **attrs.asdict(kernel.shape),
    }
    return {f"{name}.cu": source.text.encode(), f"{name}.json": json.dumps(described, indent=1).encode()}


def emit_sources(plan: Plan, traced: bool = False) -> dict[str, bytes]:
    """Those of the kernel, and of the lean one if the plan has one."""
    return {file: text for files in _each_source(plan, traced) for file, text in files.items()}


def _each_source(plan: Plan, traced: bool) -> Iterator[dict[str, bytes]]:
    yield emit_source(plan, traced)
    if lean.has_lean(plan):
        yield emit_source(plan, traced, is_lean=True)


def build_cuda(plan: Plan, traced: bool = False) -> dict[str, bytes]:
    """The files of a CUDA target: kernel.cu, kernel.cubin, kernel.json with what the compiler said.

    And those of the lean kernel, unless it spills. Its text is made while the other one is compiled.
    """
    made: dict[str, bytes] = {}
    with ThreadPoolExecutor() as threads:
        under_way = [threads.submit(compiled, files, plan.target) for files in _each_source(plan, traced)]
        for one in under_way:
            made |= one.result()
    if not traced and spilled(made, lean.NAME):
        return {file: content for file, content in made.items() if not file.startswith(f"{lean.NAME}.")}
    return made
