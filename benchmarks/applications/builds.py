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

from benchmarks.applications.points import ABLATED, BUILDS, TRACED, ablated

SOURCE = "kernel.cu"


def compile_builds(folder: Path, names: Sequence[str], target: str) -> None:
    """Makes `names` (all if empty) for one target; says how long each took."""
    from dnc.compiler import PlanOptions, compile_model

    plain = {variant: f"tree-{size}" for size in ABLATED for variant in ablated(size).values()}
    for name in names or BUILDS:
        recipe, begin = BUILDS[name], time.perf_counter()
        path = folder / name
        options = PlanOptions(**recipe.options)
        compile_model(recipe.program, path, (target,), recipe.settings, options)
        without_source(path)
        if name in plain and plan_of(folder / plain[name]) == plan_of(path):
            shutil.rmtree(path)
            print(f"{name}: the plan of {plain[name]}", flush=True)
            continue
        if name in TRACED:
            write_traced(path, folder / f"{name}.traced")
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)


def plan_of(build: Path) -> str:
    """The digest of the plan of a build's only target; empty where there is no build."""
    try:
        (target,) = json.loads((build / "manifest.json").read_text())["targets"].values()
    except FileNotFoundError:
        return ""
    return str(target["plan"])


def without_source(build: Path) -> None:
    """Leaves out the text of a GPU kernel, three quarters of a build that nothing reads at run time."""
    path = build / "manifest.json"
    manifest = json.loads(path.read_text())
    for target in manifest["targets"].values():
        target["files"].pop(SOURCE, None)
    for source in build.glob(f"*/{SOURCE}"):
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
        if name != SOURCE:
            (out / name).write_bytes(content)
