"""Phases: the static order in which a plan's segments run, for training, evaluation, prediction.

In: a plan. Out: the `Step`s of a mode, its segments with their phase and step. Guaranteed: a
segment comes behind everything it reads, an exchange stands between two steps. Only where gradients start
there may be none: what reads nothing new but its own rows joins the step that made these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from dnc.ir.phases import Phases
from dnc.ir.plan import VERTEX, BufferAddress, Plan, Result, Segment
from dnc.ir.program import BACKWARD, LEVEL, Stage
from dnc.ir.reads import needed, producers, stage_producers

# FORWARD_ONLY: what another net sees of a batch before it hands back gradients. BOTH: training, by a schedule
# of which a launch in front of it can be made that does that.
TRAIN, EVALUATE, PREDICT, FORWARD_ONLY, BOTH = "train", "evaluate", "predict", "forward", "both"
RESULT_KINDS = {
    TRAIN: ("loss",),
    EVALUATE: ("loss", "metric", "column"),
    PREDICT: ("output",),
    FORWARD_ONLY: ("loss", "output"),
    BOTH: ("loss", "output"),
}


def trains(mode: str) -> bool:
    """Whether gradients are made."""
    return mode in (TRAIN, BOTH)


def prediction_of(output: str) -> str:
    """The mode in which a prediction makes one of the declared outputs, and nothing for the others."""
    return f"{PREDICT} {output}"


def results_of(plan: Plan, mode: str) -> tuple[Result, ...]:
    """What a mode is run for."""
    kind, _, name = mode.partition(" ")
    return tuple(
        result for result in plan.results if result.kind in RESULT_KINDS[kind] and name in ("", result.name)
    )


@attrs.frozen
class Step:
    """A segment at its place: `step` orders it within its phase (and level)."""

    segment: Segment
    phase: int
    step: int


def needed_stages(plan: Plan, mode: str) -> set[str]:
    """Stages that a mode runs: those its results need, and in training all that learn. BOTH runs what TRAIN
    does; its other results are those of the launch in front of it."""
    program = plan.program
    wanted = {result.buffer for result in results_of(plan, TRAIN if trains(mode) else mode)}
    work = {segment.stage for segment in plan.segments if any(s.buffer in wanted for s in segment.stores)}
    if trains(mode):
        work |= {stage.name for stage in program.stages if stage.direction == BACKWARD}
        for gradient in program.weight_gradients:  # may read what no stage reads
            work |= producers(program, (bound for bound, _, _ in gradient.x)) | {gradient.stage}
    return needed(program, work)


def sequence(plan: Plan, mode: str) -> tuple[Step, ...]:
    """The segments of `mode` with their places, in program order."""
    program, phases = plan.program, Phases.of(plan.program)
    runs = needed_stages(plan, mode)
    stages = [stage for stage in program.stages if stage.name in runs]
    of_stage: dict[str, list[Segment]] = {stage.name: [] for stage in stages}
    for segment in plan.segments:
        if segment.stage in of_stage:
            of_stage[segment.stage].append(segment)
    length = {name: max((s.step for s in found), default=-1) + 1 for name, found in of_stage.items()}
    start: dict[str, int] = {}

    def place(stage: Stage) -> int:
        """The first step of a stage: behind what it reads, wherever that stands in the program."""
        if stage.name not in start:
            # Within a level the stages are independent; elsewhere one follows what it reads.
            before = [
                place(other) + length[other.name]
                for name in stage_producers(program, stage)
                if name in runs and stage.placement != LEVEL
                for other in (program.stage(name),)
                if phases.of_stage(other) == phases.of_stage(stage)
            ]
            start[stage.name] = max(before, default=0)
        return start[stage.name]

    return _joined(
        phases,
        (
            Step(segment, phases.of_stage(stage), place(stage) + segment.step)
            for stage in stages
            for segment in of_stage[stage.name]
        ),
    )


def _joined(phases: Phases, given: Iterable[Step]) -> tuple[Step, ...]:
    """The same with first steps of gradients as part of the last one in front of them, where they may be."""
    steps = tuple(given)
    behind = phases.behind
    last = max((step.step for step in steps if step.phase == behind), default=-1)
    before = [step.segment for step in steps if (step.phase, step.step) == (behind, last)]
    return tuple(
        attrs.evolve(step, phase=behind, step=last)
        if before and (step.phase, step.step) == (phases.starts, 0) and _reads_own_rows(step.segment, before)
        else step
        for step in steps
    )


def _reads_own_rows(segment: Segment, before: Sequence[Segment]) -> bool:
    """Whether all that it reads of segments just before it are its own rows, which its worker made."""
    made = {store.buffer: other for other in before for store in other.stores}
    addresses = [load.address for load in segment.loads]
    addresses += [piece.address for product in segment.products for piece in product.pieces]
    read = {address for address in addresses if getattr(address, "buffer", "") in made}
    makers = [made[address.buffer] for address in read if isinstance(address, BufferAddress)]
    alike = all(each.mapping == VERTEX and each.space == segment.space for each in (segment, *makers))
    return not read or (len(makers) == len(read) and alike)
