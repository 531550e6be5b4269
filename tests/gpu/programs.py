"""Random programs on a GPU, the plan of each forced by chance: cluster, residency, precision, tile, pushes.

`python -m tests.gpu.programs emit FOLDER FIRST COUNT` writes CUDA text on a machine with TVM,
`python -m tests.gpu.builds compile FOLDER` compiles it wherever NVRTC is,
`python -m tests.gpu.programs run FOLDER` compares on the GPU, or on all that there are together: training,
evaluation, outputs, parts and groups of batches with the interpreter, and the bits of three launches.
`python -m tests.gpu.programs vm FIRST COUNT` runs the same plans on up to three reference VMs.
Running needs Lark, not TVM. A seed is the same program, data and plan everywhere; a plan that a program
has no place for takes no part. Seeds from EXAMPLES_FROM on are examples of random sizes: with matrices large
enough for every way to multiply; from PUSHING_FROM on of those that can push. From VARIANTS_FROM on every
example has as many seeds as there are VARIANTS: chance chooses the example, its sizes and its data alone.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from dnc.compiler import PlanOptions, digest
from dnc.diagnostics import DiagnosticError
from dnc.ir.lean import has_lean
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import FP32, PRECISIONS, REGISTER, SHARED, STREAMED, TF32X3, Plan
from dnc.passes.distribute import NARROW
from dnc.passes.plan_mailboxes import PlanMailboxes
from dnc.passes.plan_reductions import PlanReductions
from dnc.runtime.backend import VMBackend
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.data_parallel import DataParallelBackend
from tests.gpu.builds import kernel_files, open_devices
from tests.support.executors import Bench
from tests.support.forced import forced
from tests.support.forests import SHAPES
from tests.support.models import EXAMPLES
from tests.support.programs import WIDTHS, program_of
from tests.support.programs.check import OPTIONAL_PASSES, Case, Prepared, Unsuitable, prepare, run

TARGET = "sm_90a"
WIDE = (*WIDTHS, 130, 200)
SIZES = ((1, 2), (1, 2), (2, 2), (1, 3))
"""Groups of functions and depth of expressions, at most."""
PROCESSES = 8
EXAMPLES_FROM, PUSHING_FROM, VARIANTS_FROM = 1_000_000, 2_000_000, 3_000_000
PUSHING = (
    "dag",
    "language_model",
    "lstm_classifier",
    "td_lstm",
    "td_rnn",
    "torch_gru",
    "tree_fc",
    "treelstm",
)
"""Examples with one segment a level, that can push."""
MATRICES = (8, 33, 40, 50, 64, 70, 100, 128, 130, 150, 200, 256, 300)
OTHERS = {"classes": (5,), "tags": (7,), "targets": (11, 300), "vocab": (11, 300), "chars": (20,)}
OTHERS |= {"layers": (2, 5), "width": (4, 12)}
"""Settings of an example that are no sides of large matrices."""


@attrs.frozen
class Variant:
    """One thing that is forced on a plan, or on what is made of it; nothing: as planned."""

    options: PlanOptions = PlanOptions()
    without: tuple[str, ...] = ()
    pushes: str = "planned"
    few: bool | None = None
    apart: bool | None = None
    added: bool | None = None
    shared: bool | None = None
    parts: bool | None = None
    early: bool | None = None


VARIANTS = (
    Variant(),
    *(
        Variant(PlanOptions(residency=residency, precision=precision))
        for residency in (REGISTER, SHARED, STREAMED)
        for precision in PRECISIONS
    ),
    *(Variant(PlanOptions(cluster=cluster)) for cluster in (0, 8, 16)),
    *(Variant(PlanOptions(tile=tile)) for tile in (4, 16)),
    Variant(PlanOptions(cluster=0, workers=7)),
    Variant(PlanOptions(window=256)),
    Variant(PlanOptions(registers=32)),
    Variant(PlanOptions(batch=1)),
    *(Variant(PlanOptions(repeat=repeat)) for repeat in (True, False)),
    Variant(PlanOptions(reduce=False)),
    *(Variant(without=(name,)) for name in OPTIONAL_PASSES),
    *(Variant(pushes=pushes) for pushes in ("all", "none")),
    *(Variant(few=few, apart=apart) for few in (True, False) for apart in (True, False)),
    *(Variant(added=added) for added in (True, False)),
    *(Variant(shared=shared) for shared in (True, False)),
    *(Variant(parts=parts) for parts in (True, False)),
    *(Variant(PlanOptions(batch=1, registers=registers)) for registers in (4, 8)),
    Variant(PlanOptions(batch=1, registers=8, cluster=0, workers=40)),
    *(Variant(shared=True, early=early) for early in (True, False)),
)
"""Every variant of an instruction in turn: where weights are (also in two places), how they are multiplied,
how states travel, tiles, how gradients are made and whether early, whether rows are few or not, partial
sums, what the grid shares out, and whether parts of the recursion are apart."""


def forced_on(seed: int) -> Variant:
    """What is forced beside the options of `case_of`: by chance how states and sums travel, or a variant."""
    if seed >= VARIANTS_FROM:
        return VARIANTS[(seed - VARIANTS_FROM) % len(VARIANTS)]
    choice = random.Random(-3 - seed)
    pushes = choice.choice(("all", "all", "none", "planned"))
    added = choice.choice((True, True, False, None))
    shared = choice.choice((True, None))
    return Variant(pushes=pushes, added=added, shared=shared, early=shared)


def data_seed(seed: int) -> int:
    """What a program, its sizes and its data are made from: the same for every variant."""
    return seed if seed < VARIANTS_FROM else VARIANTS_FROM + (seed - VARIANTS_FROM) // len(VARIANTS)


def text_of(seed: int) -> str:
    """The program of a seed."""
    seed = data_seed(seed)
    if seed >= EXAMPLES_FROM:
        choice = random.Random(-2 - seed)
        pushing = [EXAMPLES / f"{name}.dn" for name in PUSHING]
        paths = pushing if PUSHING_FROM <= seed < VARIANTS_FROM else sorted(EXAMPLES.glob("*.dn"))
        text = choice.choice(paths).read_text(encoding="utf-8")
        (header,) = re.findall(r"^model .*$", text, re.MULTILINE)
        sized = re.sub(
            r"(\w+) = \d+",
            lambda found: f"{found[1]} = {choice.choice(OTHERS.get(found[1], MATRICES))}",
            header,
        )
        return text.replace(header, sized)
    groups, depth = random.Random(-2 - seed).choice(SIZES)
    return program_of(seed, WIDE, groups, depth)


def case_of(seed: int) -> Case:
    """Data, and what is forced on the plan."""
    choice = random.Random(-1 - data_seed(seed))
    if seed >= VARIANTS_FROM:
        return Case(
            seed=data_seed(seed),
            samples=choice.choice((3, 20)),
            vertices=choice.choice((4, 12, 40)),
            shape=choice.choice(SHAPES),
            sharing=choice.choice((0.0, 0.4)),
            without=forced_on(seed).without,
            target=TARGET,
            options=forced_on(seed).options,
        )
    cluster = choice.choice((0, 8, 8, 16))
    return Case(
        seed=seed,
        samples=choice.choice((1, 3, 20) if seed < EXAMPLES_FROM else (1, 3, 20, 60)),
        vertices=choice.choice((4, 12, 40)),
        shape=choice.choice(SHAPES),
        sharing=choice.choice((0.0, 0.4)),
        without=tuple(name for name in OPTIONAL_PASSES if choice.random() < 0.15),
        target=TARGET,
        options=PlanOptions(
            cluster=cluster,
            workers=choice.choice((None, 7, 64)) if cluster == 0 else None,
            residency=choice.choice((None, REGISTER, SHARED, STREAMED, STREAMED)),
            precision=choice.choice((FP32, TF32X3) if seed < EXAMPLES_FROM else PRECISIONS),
            tile=choice.choice((None, None, 4, 16)),
            window=choice.choice((256, 1024)),
            registers=choice.choice((None, 32, 96)) if seed >= EXAMPLES_FROM else None,
            repeat=choice.choice((None, True, False)) if seed >= EXAMPLES_FROM else None,
        ),
        narrow=choice.choice((0, NARROW)),
    )


def prepared_of(seed: int) -> Prepared:
    """The program of a seed with its plan; segments push what they can, or nothing, or as planned."""
    found = prepare(text_of(seed), case_of(seed))
    chosen = forced_on(seed).pushes
    if chosen == "planned":
        return found
    plan = attrs.evolve(found.plan, pushes=(), reduced=())
    return attrs.evolve(
        found, plan=PlanReductions()(PlanMailboxes(sequences=False)(plan) if chosen == "all" else plan)
    )


def emit(folder: Path, seed: int) -> str:
    """Writes the kernel text of a seed's program; what became of it."""
    from dnc.codegen.cuda_files import emit_source

    try:
        plan = prepared_of(seed).plan
    except Unsuitable as reason:
        return f"not comparable: {str(reason).split()[0]}"
    except DiagnosticError as error:
        return f"no such plan: {str(error).splitlines()[0].split(': ')[-1]}"
    target = folder / str(seed)
    target.mkdir(parents=True)
    files = emit_source(plan, is_lean=_runs_lean(seed, plan)).values()
    for file, content in zip(("kernel.cu", "kernel.json"), files, strict=True):
        (target / file).write_bytes(content)
    (target / "digest").write_text(digest(plan))
    return "emitted"


def _runs_lean(seed: int, plan: Plan) -> bool:
    """Whether the lean kernel is in place of the kernel: where it has all that the seed's variant forces."""
    variant = forced_on(seed)
    return bool(variant.few) and not variant.added and seed % 2 == 1 and has_lean(plan)


def check(folder: Path, seed: int) -> tuple[Plan, str]:
    """Runs a seed's program; its plan, and what differs."""
    case, target = case_of(seed), folder / str(seed)
    prepared = prepared_of(seed)
    plan = prepared.plan
    assert digest(plan) == (target / "digest").read_text(), "another plan than the one that was emitted"
    backend = _together([CudaBackend(plan, kernel_files(target), each) for each in open_devices()])
    variant = forced_on(seed)
    try:
        added = False if _runs_lean(seed, plan) else variant.added
        chosen = variant.few, variant.apart, variant.apart, added, variant.shared
        with forced(*chosen, parts=variant.parts, early=variant.early):
            run(prepared, backend, case)
            _same_bits(prepared, backend, case.seed)
    except Exception as error:
        return plan, f"{type(error).__name__}: {error}"
    return plan, ""


def on_the_vm(seed: int) -> str:
    """Runs a seed's program on the reference VM, with the plan for a GPU; what became of it."""
    case = case_of(seed)
    try:
        try:
            prepared = prepare(text_of(seed), case)
        except DiagnosticError:
            return "no such plan"
        devices = range(random.Random(-4 - seed).choice((1, 2, 3)))
        run(prepared, _together([VMBackend(prepared.plan, 2, 4, seed + number) for number in devices]), case)
    except Unsuitable:
        return "not comparable"
    except Exception as error:
        print(f"seed {seed}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        return "failed"
    return "agree"


def _together(members: Sequence[Any]) -> Any:
    """The backend of one device, or of several that train together."""
    return DataParallelBackend(members) if len(members) > 1 and members[0].plan.trains else members[0]


def _same_bits(prepared: Prepared, backend: Any, seed: int) -> None:
    bench = Bench(prepared.program, prepared.plan, backend, prepared.forest, seed)
    found = []
    for _ in range(3):
        bench.launch("train", Hyper(learning_rate=0.5))
        found.append(bench.parameters())
    for other in found[1:]:
        for name, value in found[0].items():
            assert np.array_equal(value, other[name], equal_nan=True), f"{name}: other bits the second time"


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, initializer=warnings.simplefilter, initargs=("ignore",))


def _checked(folder: Path, seed: int) -> tuple[int, list[str], str]:
    """Seed, variants that its plan has, and what differs."""
    plan, message = check(folder, seed)
    tiling = plan.tiling
    assert tiling is not None
    variants = [f"cluster {tiling.cluster}" if tiling.cluster > 1 else "whole chip", plan.precision]
    variants += {f"weights {placement.residency}" for placement in plan.placements}
    if any(placement.rest for placement in plan.placements):
        variants.append("weights split")
    if (few := forced_on(seed).few) is not None:
        variants.append("few rows" if few else "many rows")
        variants.append("deltas added up apart" if forced_on(seed).apart else "deltas with the product")
    if plan.pushes:
        variants.append("pushes")
    return seed, [*variants, f"tile {tiling.tile}"], message


def main(command: str, *arguments: str) -> int:
    """Emits or runs; prints counts; 1 if something differs."""
    if command in ("vm", "emit"):
        first, count = map(int, arguments[-2:])
        step = on_the_vm if command == "vm" else partial(emit, Path(arguments[0]))
        with _processes(2) as pool:
            found = Counter(pool.map(step, range(first, first + count)))
        print(dict(found.most_common()))
        return 1 if found["failed"] else 0
    folder = Path(arguments[0])
    seeds = sorted(int(path.parent.name) for path in folder.glob("*/kernel.cubin"))
    variants: Counter[str] = Counter()
    failed = 0
    with _processes(PROCESSES) as pool:
        for seed, names, message in pool.map(partial(_checked, folder), seeds):
            variants.update(names)
            failed += bool(message)
            if message:
                print(f"seed {seed}: {message[:400]}\n{case_of(seed).options}\n{forced_on(seed)}", flush=True)
    print(f"{len(seeds)} programs, {failed} failed; {dict(variants.most_common())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
