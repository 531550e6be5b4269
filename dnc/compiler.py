"""The compiler: the pipeline as a list, and `compile_model`, which writes a build.

In: a `.dn` text. Out: a build folder with the program, a plan per target and the kernels.
Guaranteed: the plan of a build is a function of its program and options, so a runtime that reads
the program from the build plans it again and gets the same one (its digest is compared).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import msgspec

from dnc.codegen.nvrtc import spilled
from dnc.diagnostics import Diagnostic, DiagnosticError, Source, check_noted, fail, read_source
from dnc.ir.isa import dense_parameters, layout
from dnc.ir.machine import Constants, Machine, machine, machines_of, target_name
from dnc.ir.plan import FP32, PRECISIONS, Plan, PlanTooLarge, WeightFormat
from dnc.ir.plan_text import print_plan
from dnc.ir.printer import print_program
from dnc.ir.program import Program
from dnc.ir.regions import registers_taken
from dnc.ir.remarks import Remark, Remarks
from dnc.ir.uses import keeps_weights
from dnc.kernel_cache import cached_kernels
from dnc.machine_constants import known_constants
from dnc.passes.canonicalize import Canonicalize
from dnc.passes.differentiate import Differentiate
from dnc.passes.drop_training import DropTraining
from dnc.passes.fuse import Fuse
from dnc.passes.hoist import Hoist
from dnc.passes.inline import Inline
from dnc.passes.merge import Merge
from dnc.passes.pass_manager import Pass, PassManager, PassOptions, program_manager
from dnc.passes.plan_mailboxes import PlanMailboxes
from dnc.passes.plan_polls import PlanPolls
from dnc.passes.plan_reductions import PlanReductions
from dnc.passes.plan_weights import PlanWeights, fewer_registers
from dnc.passes.reassociate import Reassociate
from dnc.passes.repetition import repetition
from dnc.passes.select_instructions import SelectInstructions
from dnc.passes.select_tiles import SelectTiles
from dnc.passes.share import Share
from dnc.runtime.build import (
    PROGRAM,
    Build,
    Target,
    check_outside,
    check_place,
    place_from,
    write_build,
)
from dnc.version import VERSION

FUSE = "fuse"
# What a build can do: train, evaluate and predict; or evaluate and predict only.
TRAIN, INFER = MODES = ("train", "infer")

FEW_BYTES = 64  # spilled by a thread: less than what levels that stream weights cost


@attrs.frozen
class PlanOptions:
    """How a plan is made. Everything here is kept in the manifest of a build.

    without: names of optimising passes left out (hoist, reassociate, ...). cluster: CTAs of a cluster (0: the
    whole chip is one replica; None: the cheapest). residency: forced for every weight slice
    (tests). workers: of a replica that is no cluster. window: words of the schedule held on chip.
    registers: for weights, a thread (None: as many as the machine has to offer without spills).
    mode: "train" or "infer". precision: of products on a GPU: "fp32", "tf32", "tf32x3" or "bf16".
    tile: vertices worked on at a time. batch: samples of a batch that the plan is made for, where it is not
    to serve batches of all sizes. repeat: whether every worker makes what a product needs whole, where that
    saves an exchange (None: where that is expected to be faster). reduce: the same of numbers that whole
    vectors are reduced to (None: on a GPU). splits: whether weights that would be
    streamed at every level are in registers and shared memory together (None: where that is clearly faster).
    """

    without: tuple[str, ...] = ()
    cluster: int | None = None
    residency: str | None = None
    workers: int | None = None
    window: int = 1024
    registers: int | None = None
    mode: str = TRAIN
    precision: str = FP32
    tile: int | None = None
    batch: int | None = None
    repeat: bool | None = None
    reduce: bool | None = None
    splits: bool | None = None


@attrs.frozen
class TargetReport:
    """What was made for a target. cached: the kernels came from the cache."""

    name: str
    plan: Plan
    files: Mapping[str, int]
    cached: bool
    seconds: float


@attrs.frozen
class CompileReport:
    """What `compile_model` did. build: None if it was stopped after a pass."""

    model: str
    build: Path | None
    warnings: tuple[Diagnostic, ...]
    targets: tuple[TargetReport, ...]
    seconds: float
    remarks: tuple[Remark, ...] = ()


# ---- the pipeline -------------------------------------------------------------------------------


def program_passes(mode: str = TRAIN) -> tuple[Pass[Program], ...]:
    """Passes from program to program, in order."""
    middle: Pass[Program] = Differentiate() if mode == TRAIN else DropTraining()
    return (Canonicalize(), Inline(), Merge(), Hoist(), middle, Canonicalize(), Share())


def fuse_pass(options: PlanOptions, target: Machine) -> Fuse:
    """The pass from program to plan, but for what `repetition` chooses."""
    reduces = target.is_gpu if options.reduce is None else options.reduce
    return Fuse(enabled=FUSE not in options.without, reduces=reduces)


def plan_passes(
    options: PlanOptions, target: Machine, constants: Constants | None = None
) -> tuple[Pass[Plan], ...]:
    """Passes from plan to plan, in order, behind `fuse`. constants: measured ones of the target."""
    tiles = select_tiles(options, target, constants)
    return (
        Reassociate(),
        tiles,
        tiles.weights,
        PlanMailboxes(),
        PlanPolls(),
        PlanReductions(),
        SelectInstructions(),
    )


def select_tiles(options: PlanOptions, target: Machine, constants: Constants | None) -> SelectTiles:
    """The pass that chooses the workers of a replica."""
    return SelectTiles(
        target,
        options.cluster,
        options.window,
        options.workers,
        options.tile,
        constants,
        options.batch,
        PlanWeights(target, options.residency, options.registers, options.batch),
        options.splits,
    )


def transform(
    program: Program, options: PlanOptions = PlanOptions(), show: PassOptions = PassOptions()
) -> Program:
    """The program, hoisted and simplified, with its gradients unless it is for inference."""
    passes = program_passes(options.mode)
    show = attrs.evolve(show, without=options.without)
    return program_manager(passes, _restrict(show, (step.name for step in passes))).run(program)


def make_plan(
    program: Program,
    target: str,
    options: PlanOptions = PlanOptions(),
    show: PassOptions = PassOptions(),
    constants: Constants | None = None,
) -> Plan:
    """The plan of a transformed program for a machine ("cpu", "sm_90a", ...).

    constants: of the machine, where they were measured; they decide only what `options` leave open.
    """
    chip = machine(target)
    start = time.perf_counter()
    fuse, tiles = fuse_pass(options, chip), select_tiles(options, chip, constants)
    repeat, why = repetition(program, fuse, tiles, options.repeat, options.mode == TRAIN, options.precision)
    fuse = attrs.evolve(fuse, repeats=repeat)
    plan = attrs.evolve(fuse.decide(program, show.remarks or Remarks()), remarks=why)
    plan = attrs.evolve(plan, target=target, trains=options.mode == TRAIN)
    if chip.is_gpu:
        plan = attrs.evolve(plan, precision=options.precision)
    else:
        plan = attrs.evolve(plan, weight_format=WeightFormat(column_major=True))
    show.report(FUSE, time.perf_counter() - start, partial(print_plan, plan))
    if show.stop_after == FUSE:
        return plan
    passes = plan_passes(options, chip, constants)
    dump = None if show.dump_dir is None else show.dump_dir / target
    show = attrs.evolve(show, without=options.without)
    shown = attrs.evolve(_restrict(show, (step.name for step in passes)), dump_dir=dump)
    return PassManager(passes, lambda plan: (), print_plan, shown).run(plan)


def digest(plan: Plan) -> str:
    """A name for everything a kernel and its host have to agree on; spans, remarks and reasons do not count.

    The version stands for what is in neither the plan nor the layout of a schedule.
    """
    placements = tuple(attrs.evolve(placement, reason="") for placement in plan.placements)
    plan, form = attrs.evolve(plan, remarks=(), placements=placements), plan.weight_format
    shapes = [parameter.type.shape for parameter in dense_parameters(plan)]
    weights = [(form.strides(shape), form.floats(shape)) for shape in shapes]
    return hashlib.sha256(f"{VERSION}\n{layout(plan)!r}\n{plan!r}\n{weights}".encode()).hexdigest()[:16]


def pass_names(mode: str = TRAIN) -> tuple[str, ...]:
    """Every name that the pass options know, in order."""
    stages = [step.name for step in program_passes(mode)]
    stages += [FUSE, *(step.name for step in plan_passes(PlanOptions(), machine("cpu")))]
    return tuple(dict.fromkeys(stages))


def _restrict(show: PassOptions, names: Iterable[str]) -> PassOptions:
    """The options that concern one pipeline."""
    own = set(names)
    return attrs.evolve(
        show,
        without=tuple(name for name in show.without if name in own),
        print_after=tuple(name for name in show.print_after if name in own or name == "all"),
        stop_after=show.stop_after if show.stop_after in own else None,
    )


def _typed(options: PlanOptions) -> PlanOptions:
    """The options as a build keeps them; DiagnosticError where one is of another type."""
    words = {int: "a whole number", bool: "True or False", str: "a text"}
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(PlanOptions).items():
        try:
            found[name] = msgspec.convert(getattr(options, name), kind)
        except msgspec.ValidationError:
            known = (text for type, text in words.items() if kind in (type, type | None))
            expected = next(known, "a tuple of names")
            raise fail(f"{name}: found {getattr(options, name)!r}, expected {expected}") from None
    return PlanOptions(**found)


def _check_precision(precision: str, machines: Sequence[str]) -> None:
    if precision not in PRECISIONS:
        raise fail(
            f"precision: found '{precision}', expected {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
        )
    if precision != FP32:
        _need_gpu(
            machines, f"precision {precision} is for GPUs, and no target is one: a CPU computes in {FP32}"
        )


def _need_gpu(machines: Sequence[str], message: str) -> None:
    """For what nothing but a GPU heeds."""
    if not any(machine(name).is_gpu for name in machines):
        raise fail(message)


def _check_batch(options: PlanOptions, machines: Sequence[str]) -> None:
    """DiagnosticError where a batch decides nothing: it ranks the clusters of a GPU."""
    if options.batch is None:
        return
    if not 1 <= options.batch < 2**31:
        expected = "1 or more" if options.batch < 1 else f"less than {2**31}"
        raise fail(f"batch: found {options.batch}, expected {expected}")
    _need_gpu(machines, f"a plan for batches of {options.batch} is made for GPUs, and no target is one")
    if options.cluster is not None:
        raise fail("cluster and batch exclude each other: clusters are what a batch decides")


def _check_names(show: PassOptions, without: Sequence[str], mode: str) -> None:
    known = pass_names(mode)
    in_plans = (step.name for step in plan_passes(PlanOptions(), machine("cpu")) if step.optional)
    optional = (*(step.name for step in program_passes(mode) if step.optional), FUSE, *in_plans)
    attrs.evolve(show, without=tuple(without)).check_names(known, optional)


# ---- builds -------------------------------------------------------------------------------------


def read_program(
    path: str | Path, settings: Mapping[str, int]
) -> tuple[Source, Program, tuple[Diagnostic, ...]]:
    """A `.dn` file's text, its checked program, and warnings."""
    from dnc.frontend.build import load_program

    source = read_source(path)
    program, warnings = load_program(source, settings)
    return source, program, warnings


def _check_dump(folder: Path, out: Path) -> None:
    """DiagnosticError where the IR behind every pass has no place: a file, or a build that would lose it."""
    if folder.exists() and not folder.is_dir():
        raise fail(f"{folder}: is a file, expected a folder for the IR behind every pass")
    check_outside(folder / PROGRAM, folder)
    if folder.resolve().is_relative_to(out.resolve()):
        raise fail(f"{folder}: is where the build is written; choose another folder for the IR")


def model_digest(program: Program) -> str:
    """A name for what a model computes: the checked program before any pass."""
    return hashlib.sha256(print_program(program).encode()).hexdigest()[:16]


def compile_model(
    path: str | Path,
    out: str | Path,
    targets: Sequence[str] = ("cpu",),
    settings: Mapping[str, int] | None = None,
    options: PlanOptions = PlanOptions(),
    show: PassOptions = PassOptions(),
) -> CompileReport:
    """Compiles a `.dn` file for every target ("cpu", "cuda", "cuda:sm_80") and writes the build folder `out`.

    settings: sizes by their names in the program. Kernels come from the cache where they were made before.
    DiagnosticError for mistakes in the program and its settings; then nothing is written.
    """
    start = time.perf_counter()
    options = _typed(options)
    if options.mode not in MODES:
        raise fail(f"mode: found '{options.mode}', expected {' or '.join(MODES)}")
    _check_names(show, options.without, options.mode)
    check_noted(path)
    check_place(out)
    machines = machines_of(targets)
    _check_precision(options.precision, machines)
    _check_batch(options, machines)
    for name in machines if options.cluster else ():
        sizes = machine(name).cluster_sizes
        if options.cluster not in sizes:
            known = f"those of {', '.join(map(str, sorted(sizes)))}" if sizes else "none"
            raise fail(
                f"not every target has clusters of {options.cluster}", f"{target_name(name)} has {known}"
            )
    if options.cluster is not None:
        _need_gpu(machines, "clusters are for GPUs, and no target is one")
    try:
        for name in machines:
            plan_passes(options, machine(name))  # which look at their options
    except ValueError as problem:
        raise fail(str(problem)) from None
    if show.dump_dir is not None:
        _check_dump(show.dump_dir, Path(out))
    source, program, warnings = read_program(path, settings or {})
    of_program = Remarks()
    transformed = transform(program, options, attrs.evolve(show, remarks=of_program))
    remarks = of_program.all()
    if show.stop_after in {step.name for step in program_passes(options.mode)}:
        return CompileReport(program.name, None, warnings, (), time.perf_counter() - start, remarks)
    if show.stop_after is not None:
        for name in machines:
            of_plan = Remarks(target_name(name))
            make_plan(transformed, name, options, attrs.evolve(show, remarks=of_plan))
            remarks += of_plan.all()
        return CompileReport(program.name, None, warnings, (), time.perf_counter() - start, remarks)
    try:
        made = [compile_target(transformed, name, options, show) for name in machines]
    except PlanTooLarge as problem:
        raise fail("no kernel has room for this program", str(problem)) from None
    remarks += tuple(remark for target in made for remark in target.remarks)
    build = Build(
        Path(out),
        program.name,
        model_digest(program),
        source.name,
        source.text,
        dict(settings or {}),
        print_program(transformed),
        {
            each.report.name: Target(
                each.report.plan.target, attrs.asdict(each.options), digest(each.report.plan)
            )
            for each in made
        },
        remarks,
        source_place=place_from(out, path),
    )
    write_build(build, {each.report.name: each.files for each in made})
    seconds = time.perf_counter() - start
    reports = tuple(each.report for each in made)
    return CompileReport(program.name, Path(out), warnings, reports, seconds, remarks)


@attrs.frozen
class CompiledTarget:
    """The kernels of a target, options that make their plan again, and the remarks on that plan."""

    report: TargetReport
    options: PlanOptions
    files: dict[str, bytes]
    remarks: tuple[Remark, ...]


def compile_target(
    program: Program, target: str, options: PlanOptions, show: PassOptions = PassOptions()
) -> CompiledTarget:
    """Plans and emits for a target, without spills.

    Constants that were measured decide what the options leave open. A model of many different segments
    leaves fewer registers to weights than one of a few. How many, the target's compiler says: where its
    code spills, there is a plan with fewer weights in registers, as long as it spills less; but not one that
    streams weights of the recursion for the sake of a few bytes. PlanTooLarge where no plan has room.
    """
    begin, whole, cached, constants = time.perf_counter(), machine(target), True, known_constants(target)
    budgets: list[int | None] = [options.registers]
    if whole.is_gpu and options.registers is None:
        budgets += fewer_registers(whole, options.precision)
    best: tuple[int, PlanOptions, Plan, dict[str, bytes], Remarks] | None = None
    taken, problem = None, None
    for registers in budgets:
        if taken is not None and registers is not None and registers >= taken:
            continue  # the plan would be the same
        tried = attrs.evolve(options, registers=registers)
        said = Remarks(target_name(target))
        plan = make_plan(program, target, tried, attrs.evolve(show, remarks=said), constants)
        if best is not None and best[0] <= FEW_BYTES and keeps_weights(best[2]) > keeps_weights(plan):
            break
        taken = registers_taken(plan)
        show.tell(f"{target_name(target)}: {'trying fewer registers' if best else 'compiling'}")
        try:
            with show.timed("emit"):
                files, known = cached_kernels(plan, digest(plan))
        except PlanTooLarge as error:
            problem = error
            continue
        cached = cached and known
        outside = spilled(files) if whole.is_gpu else 0
        if best is None or outside < best[0]:
            best = outside, tried, plan, files, said
        if not outside or not taken:
            break
    if best is None:
        raise problem or AssertionError("a first plan is always tried")
    _, tried, plan, files, said = best
    sizes = {file: len(content) for file, content in files.items()}
    report = TargetReport(target_name(target), plan, sizes, cached, time.perf_counter() - begin)
    return CompiledTarget(report, settled(tried, plan), files, said.all())


def settled(options: PlanOptions, plan: Plan) -> PlanOptions:
    """The options with what was chosen: they make the plan again, whatever constants are measured later."""
    assert plan.tiling is not None
    shapes = [value.tensor.shape for segment in plan.segments for value in segment.repeated]
    options = attrs.evolve(options, repeat=any(shapes), reduce=not all(shapes))
    if not machine(plan.target).is_gpu:
        return options
    tiling = plan.tiling
    cluster = tiling.cluster if tiling.cluster > 1 else 0
    return attrs.evolve(options, cluster=cluster, workers=tiling.workers, splits=tiling.splits)


def build_plan(build: Build, target: str) -> Plan:
    """The plan of a build's target, made again from its program.

    DiagnosticError when this version of dnc plans otherwise than the one that compiled it.
    """
    return stored_plan(build, build_program(build), build.targets[target])


def build_program(build: Build) -> Program:
    """The transformed program of a build."""
    from dnc.ir.parser import parse_program

    return parse_program(build.program, str(build.path / "program.ir"))


def stored_options(build: Build, target: Target) -> PlanOptions:
    """How the plan of a build's kernels was made; DiagnosticError as for `build_plan`."""
    if not target.options.keys() <= attrs.fields_dict(PlanOptions).keys():
        raise _foreign(build)
    try:
        options = msgspec.convert(target.options, PlanOptions)
        plan_passes(options, machine(target.machine))  # which look at their options
    except ValueError:
        raise _foreign(build) from None
    return options


def stored_plan(build: Build, program: Program, target: Target) -> Plan:
    """The plan of a build's kernels; DiagnosticError as for `build_plan`."""
    plan = make_plan(program, target.machine, stored_options(build, target))
    if digest(plan) != target.plan:
        raise _foreign(build)
    return plan


def _foreign(build: Build) -> DiagnosticError:
    return fail(f"{build.path}: its kernels are of another version of dnc than this one; compile it again")
