"""Compiles the builds that are measured, and the traced kernels beside them.

In: a folder, names of builds. Out: a build for each, `NAME.traced/` for the traced kernels. Guaranteed: a
variant whose plan is that of the plain build is not written (`dnc.compiler.digest`), and an old one is
removed. Kernels that were made before come from the compiler's cache.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.applications.points import ABLATED, BUILDS, TRACED, Recipe, ablated

SOURCE = ".cu"


def compile_builds(folder: Path, names: Sequence[str], target: str, traced: bool = False) -> None:
    """Makes `names` (all if empty) for one target; says how long each took. traced: traced kernels stand
    beside all, not only beside those of `TRACED`."""
    from dnc.compiler import PlanOptions, compile_model

    plain = {variant: f"tree-{size}" for size in ABLATED for variant in ablated(size).values()}
    for name in names or BUILDS:
        recipe, begin, path = BUILDS[name], time.perf_counter(), folder / name
        if name in plain and plan_of(recipe, target) == plan_of(BUILDS[plain[name]], target):
            shutil.rmtree(path, ignore_errors=True)
            print(f"{name}: the plan of {plain[name]}", flush=True)
            continue
        compile_model(recipe.program, path, (target,), recipe.settings, PlanOptions(**recipe.options))
        without_source(path)
        if traced or name in TRACED:
            write_traced(path, folder / f"{name}.traced")
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)


def plan_of(recipe: Recipe, target: str) -> str:
    """The digest of a build's first plan."""
    from dnc.compiler import PlanOptions, digest, make_plan, read_program, transform
    from dnc.ir.machine import machine_of

    options = PlanOptions(**recipe.options)
    _, program, _ = read_program(recipe.program, recipe.settings)
    return digest(make_plan(transform(program, options), machine_of(target), options))


def without_source(build: Path) -> None:
    """Leaves out the text of a GPU kernel, three quarters of a build that nothing reads at run time."""
    path = build / "manifest.json"
    manifest = json.loads(path.read_text())
    for target in manifest["targets"].values():
        target["files"] = {name: own for name, own in target["files"].items() if not name.endswith(SOURCE)}
    for source in build.glob(f"*/*{SOURCE}"):
        source.unlink()
    path.write_text(json.dumps(manifest, indent=1) + "\n")


def write_traced(build: Path, out: Path) -> None:
    """The kernel of a build that keeps the times of every instruction."""
    from dnc.compiler import build_plan, digest
    from dnc.kernel_cache import traced_kernels
    from dnc.runtime.build import read_build

    opened = read_build(build)
    (target,) = opened.targets
    plan = build_plan(opened, target)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, content in traced_kernels(plan, digest(plan)).items():
        if not name.endswith(SOURCE):
            (out / name).write_bytes(content)
