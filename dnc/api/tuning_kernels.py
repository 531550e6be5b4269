"""Kernels of candidates: found in a build, made with TVM where it is there, and written into a build.

In: a build, candidates. Out: `Kernel`s; a build with other kernels. Guaranteed: a build is replaced whole
or not at all; kernels that it holds for a target stay in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import attrs

from dnc.api.ranking import Ranked, describe
from dnc.codegen.nvrtc import spilled
from dnc.compiler import build_program, compile_target, digest, stored_plan
from dnc.ir.machine import Machine
from dnc.ir.plan import Plan, PlanTooLarge
from dnc.ir.program import Program
from dnc.runtime.build import Build, Target, write_build
from dnc.runtime.tuned import Tuned


@attrs.frozen(eq=False)
class Kernel:
    """A kernel with what a build says of it."""

    target: Target
    plan: Plan
    files: dict[str, bytes]


def has_compiler() -> bool:
    """Whether kernels can be made here."""
    return find_spec("tvm") is not None


def kernels_of(build: Build, program: Program, target: str) -> list[Kernel]:
    """The build's kernel for a target, then its candidates."""
    targets = [build.targets[target], *build.candidates.get(target, ())]
    files = [build.kernels(target), *build.candidate_kernels(target)]
    return [
        Kernel(each, stored_plan(build, program, each), found)
        for each, found in zip(targets, files, strict=True)
    ]


def kernel_for(
    build: Build, own: Sequence[Kernel], each: Ranked, chip: Machine, tell: Callable[[str], None]
) -> Kernel | str:
    """The kernel of a candidate: the build's, or a new one; or why there is none."""
    wanted = digest(each.plan)
    for kernel in own:
        if kernel.target.plan == wanted:
            return kernel
    if not has_compiler():
        return "no kernel in the build"
    tell(f"compiling {describe(each.candidate, chip)}")
    try:
        made = compile_target(build_program(build), chip.name, each.options)
    except PlanTooLarge as problem:
        return f"its kernel has no room: {problem}"
    if chip.is_gpu and spilled(made.files):
        return f"its kernel spills {spilled(made.files)} bytes a thread"
    plan = made.report.plan
    return Kernel(Target(chip.name, attrs.asdict(made.options), digest(plan)), plan, made.files)


def keep(build: Build, target: str, own: Sequence[Kernel], kernel: Kernel, note: Tuned) -> None:
    """The build with the winner in the place of the target's kernel; kernels that it holds stay in it."""
    before = own[0].target
    kept = before.tuned if kernel.target.plan == before.plan else ()
    tuned = (*(each for each in kept if each.batch != note.batch), note)
    target_now = attrs.evolve(kernel.target, tuned=tuned)
    others = [attrs.evolve(each, target=attrs.evolve(each.target, tuned=())) for each in own]
    others = [each for each in others if each.target.plan != kernel.target.plan]
    write_kernels(build, target, target_now, kernel.files, others if len(own) > 1 else [])


def write_kernels(
    build: Build, target: str, now: Target, files: dict[str, bytes], candidates: Sequence[Kernel]
) -> None:
    """The build with `now` and its files for a target, and with these candidates, if there are any."""
    kernels = {name: files if name == target else build.kernels(name) for name in build.targets}
    others = {name: list(build.candidate_kernels(name)) for name in build.candidates if name != target}
    known = {name: found for name, found in build.candidates.items() if name != target}
    if candidates:
        known[target] = tuple(each.target for each in candidates)
        others[target] = [each.files for each in candidates]
    written = attrs.evolve(build, targets={**build.targets, target: now}, candidates=known)
    write_build(written, kernels, others)
