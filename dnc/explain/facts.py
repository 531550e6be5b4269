"""What the compiler made of a model, gathered once: the text and the page are two renderings of it.

In: a plan. Out: `PlanFacts`, with numbers and names only. Everything is read off the plan and the
phases, so it says what will happen, not what was meant. Sizes are bytes unless they say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from dnc.diagnostics import counted
from dnc.ir.lean import MOST_ROWS, has_lean
from dnc.ir.machine import Machine, machine
from dnc.ir.phases import Phases
from dnc.ir.plan import FP32, REGISTER, SHARED, SPARSE, STREAMED, UNIT, Placement, Plan, unit_range
from dnc.ir.program import BACKWARD, EARLY, FORWARD, LEVEL, ROOT, STACK, TABLE
from dnc.ir.regions import are_reused, turns
from dnc.ir.shared_memory import shared_memory
from dnc.passes.plan_weights import Slice, most_registers, slices
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.phases import EVALUATE, PREDICT, RESULT_KINDS, TRAIN, Step, sequence

DOING = {TRAIN: "training", EVALUATE: "evaluation", PREDICT: "prediction"}
# Where a parameter is that no placement names.
IN_TABLE, IN_MEMORY = "table", "memory"


@attrs.frozen
class SegmentFacts:
    """An instruction: work between two exchanges. products: as "U @ x" and, transposed, "Uᵀ @ x". repeated:
    values that every worker makes in whole."""

    name: str
    step: int
    products: tuple[str, ...]
    operations: int
    by_units: bool
    repeated: tuple[str, ...] = ()


@attrs.frozen
class StageFacts:
    """A stage and its segments, in order."""

    name: str
    direction: str
    placement: str
    space: str
    segments: tuple[SegmentFacts, ...]


@attrs.frozen
class WeightFacts:
    """Where a parameter is. size: of a worker's slice, or of all where it is not split; reason: why.

    count: parameters of that shape in a stack.
    """

    parameter: str
    shape: tuple[int, ...]
    residency: str
    size: int
    reason: str
    count: int = 1

    @property
    def dimensions(self) -> str:
        """The shape; rows that only data know are words."""
        return " x ".join(str(size) if size else "words" for size in self.shape)


@attrs.frozen
class Block:
    """A piece of a worker's registers (counted a thread) or shared memory (bytes). turn: of so many `turns`
    the one that it is there in, where recursions have the same registers one behind the other."""

    name: str
    first: int
    size: int
    is_weight: bool = True
    turn: int = 0
    turns: int = 1


@attrs.frozen
class WorkerMap:
    """What a worker of a replica holds. rows: by parameter the hidden units whose rows are its own."""

    rank: int
    rows: tuple[tuple[str, int, int], ...]


@attrs.frozen
class OnChip:
    """Registers a thread for weights, shared memory, and what lies there: the same on every worker."""

    registers: int
    shared: int
    register_blocks: tuple[Block, ...]
    shared_blocks: tuple[Block, ...]
    workers: tuple[WorkerMap, ...]

    @property
    def registers_used(self) -> int:
        """Registers a thread that hold weights."""
        return max((block.first + block.size for block in self.register_blocks), default=0)

    @property
    def shared_used(self) -> int:
        """Bytes of shared memory that hold weights."""
        return sum(block.size for block in self.shared_blocks if block.is_weight)


@attrs.frozen
class ExchangeFacts:
    """Exchanges of a phase; steps: the segments before each of them."""

    phase: str
    count: int
    steps: tuple[tuple[str, ...], ...]


@attrs.frozen
class SpaceFacts:
    """Activations of a space: bytes a row, and for every entry of its lists of children."""

    name: str
    vertices: str
    row: int
    entry: int


@attrs.frozen
class PlanFacts:
    """See the module. on_chip: None on a CPU. pushes: what segments also send straight to the other workers.
    polls: what their next level waits for by looking at it. parts: functions of the recursion that may have
    replicas of their own; none where all read each other.
    reductions: segments whose partial sums a cluster may add up. cost: lines of what was predicted. why: in
    sentences what makes it fast."""

    target: str
    tiling: str
    why: tuple[str, ...]
    doing: str
    stages: tuple[StageFacts, ...]
    weights: tuple[WeightFacts, ...]
    on_chip: OnChip | None
    exchanges: tuple[ExchangeFacts, ...]
    pushes: tuple[str, ...]
    polls: tuple[str, ...]
    parts: tuple[str, ...]
    reductions: tuple[str, ...]
    instructions: tuple[tuple[int, str, tuple[str, ...]], ...]
    cost: tuple[str, ...]
    spaces: tuple[SpaceFacts, ...]


def gather(plan: Plan) -> PlanFacts:
    """The facts of a plan."""
    chip = machine(plan.target)
    return PlanFacts(
        plan.target,
        _tiling(plan, chip),
        tuple(_why(plan, chip)),
        DOING[mode_of(plan)],
        tuple(_stages(plan)),
        tuple(_weights(plan)),
        _on_chip(plan, chip) if chip.is_gpu else None,
        tuple(_exchanges(plan)),
        tuple(_pushes(plan)),
        tuple(_polls(plan)),
        tuple(_parts(plan)),
        tuple(_reductions(plan)),
        tuple((opcode.number, opcode.name, opcode.fields) for opcode in plan.opcodes),
        tuple(_cost(plan, chip)),
        tuple(_spaces(plan)),
    )


def mode_of(plan: Plan) -> str:
    """What a plan is looked at in: training if it can train, else prediction if it has outputs."""
    if plan.trains:
        return TRAIN
    return PREDICT if any(result.kind in RESULT_KINDS[PREDICT] for result in plan.results) else EVALUATE


def replicas_of(plan: Plan) -> int:
    """Replicas that a target is expected to hold."""
    chip = machine(plan.target)
    assert plan.tiling is not None
    return chip.replicas(plan.tiling.workers, plan.tiling.cluster) if chip.is_gpu else 1


def _tiling(plan: Plan, chip: Machine) -> str:
    assert plan.tiling is not None
    tiling = plan.tiling
    if not chip.is_gpu:
        return "replicas of one core each; a wide machine may share a replica"
    count, workers = replicas_of(plan), f"{tiling.workers} workers of {tiling.threads} threads"
    found = f"one replica over the chip, {workers}"
    if tiling.cluster > 1:
        found = f"{count} replicas, each a cluster of {workers}"
    elif count > 1:
        found = f"{count} replicas over the chip, each of {workers}"
    if plan.precision != FP32:
        found += (
            f"; products of more than two vertices, and weight gradients, in {plan.precision} on tensor cores"
        )
    return found


def _why(plan: Plan, chip: Machine) -> Iterator[str]:
    """What makes it fast, of this plan: launches, what a level is, which weights stay, what was hoisted."""
    what = "forward, backward and update" if plan.trains else "the whole recursion"
    if chip.is_gpu:
        yield (
            f"A batch is one launch: {what} of all its samples are a list of instructions that workers who "
            "stay on the chip go through. Nothing waits for the host between two levels."
        )
    else:
        yield (
            f"A batch is one call of compiled code: {what} of all its samples are a list of instructions "
            "that the cores go through. Nothing comes back to Python between two levels."
        )
    recursions = [(number, both) for number, both in enumerate(levels(plan), 1) if any(both)]
    for number, both in recursions:
        meetings = sum(map(exchange_count, both))
        cells = [step.segment for steps in both for step in steps]
        parts = sum(len(s.products) + len(s.transposed) + len(s.cell.ops) for s in cells)
        ways = "forward and backward" if all(both) else "forward"
        spaces = ", ".join(dict.fromkeys(segment.space for segment in cells))
        which = "the recursion" if plan.program.strata == 1 else f"recursion {number} ({spaces})"
        found = counted(len(cells), "instruction"), counted(meetings, "exchange")
        level = f"{found[0]} and {found[1]} between workers, for all vertices of a replica at once"
        if not chip.is_gpu:  # most replicas are one core, which waits for nobody
            level = f"{found[0]} for all vertices of a replica at once; cores that share one make {found[1]}"
        yield (
            f"A level of {which}, {ways}, is {level}. "
            f"Run one by one, its {parts} products and operations would be as many kernels."
        )
    kept: dict[str, list[str]] = {}
    for place in plan.placements:
        kept.setdefault(place.residency, []).append(place.parameter)
        if place.rest:
            kept.setdefault(SHARED, []).append(f"the rest of {place.parameter}")
    columns = "shared memory, of each row the elements that are not zero"
    places = [(REGISTER, "registers"), (SHARED, "shared memory"), (SPARSE, columns)]
    stay = [f"{', '.join(dict.fromkeys(kept[key]))} in {name}" for key, name in places if key in kept]
    if stay:
        yield f"Weights that stay on the chip are read once a launch, not at every level: {'; '.join(stay)}."
    if chip.is_gpu and STREAMED in kept:
        names = ", ".join(dict.fromkeys(kept[STREAMED]))
        yield f"Weights that do not fit there come from the cache of the chip at every use: {names}."
    early = [
        f"{product.parameter} @ x"
        for stage in plan.program.stages
        if stage.placement == EARLY and stage.direction == FORWARD
        for segment in plan.segments
        if segment.stage == stage.name
        for product in segment.products
    ]
    if early and recursions:
        names = ", ".join(dict.fromkeys(early))
        which = "the recursion" if plan.program.strata == 1 else "a recursion"
        yield f"What does not wait for {which} runs once for all vertices, in front of it: {names}."
    if has_lean(plan):
        yield (
            f"Small batches, of at most {MOST_ROWS} rows a product and replica, have a kernel of their own, "
            "without the code that only many rows need."
        )


def _stages(plan: Plan) -> Iterator[StageFacts]:
    for stage in plan.program.stages:
        segments = tuple(
            SegmentFacts(
                segment.name,
                segment.step,
                (
                    *(f"{product.parameter} @ x" for product in segment.products),
                    *(f"{product.parameter}ᵀ @ x" for product in segment.transposed),
                ),
                len(segment.cell.ops),
                segment.mapping == UNIT,
                tuple(value.name for value in segment.repeated),
            )
            for segment in plan.segments
            if segment.stage == stage.name
        )
        yield StageFacts(stage.name, stage.direction, stage.when, stage.space, segments)


def _weights(plan: Plan) -> Iterator[WeightFacts]:
    placed = {placement.parameter for placement in plan.placements}
    vectors = {name for name, _, _ in shared_memory(plan).vectors} if machine(plan.target).is_gpu else set()
    for place in plan.placements:
        found, reason = plan.program.parameter(place.parameter), place.reason
        if found.is_sparse and place.residency != SPARSE:
            reason += f"; with its zeros, as {found.kept} of {place.columns} elements of a row are kept"
        size = place.bytes_per_worker or found.count * math.prod(found.type.shape) * 4  # of a CPU all of it
        yield WeightFacts(place.parameter, found.type.shape, place.residency, size, reason, found.count)
    for parameter in plan.program.parameters:
        if parameter.name in placed:
            continue
        shape = parameter.type.shape
        if parameter.kind == TABLE:
            reason = "table in memory, the rows a batch touches are read"
            yield WeightFacts(parameter.name, shape, IN_TABLE, 0, reason)
        else:
            own = "the recursion reads it: every worker has its units in shared memory, too"
            reason = own if parameter.name in vectors else "read from there at every use"
            size = parameter.count * math.prod(shape) * 4
            yield WeightFacts(parameter.name, shape, IN_MEMORY, size, reason, parameter.count)


def _on_chip(plan: Plan, chip: Machine) -> OnChip:
    """The map of a worker: weights from their slots, in shared memory between what the kernel needs."""
    assert plan.tiling is not None
    workers, found = plan.tiling.workers, {_key(piece): piece for piece in slices(plan)}
    lies = shared_memory(plan)
    phases = plan.program.strata if are_reused(plan) else 1
    registers, shared = [], [Block("window of the schedule", 0, lies.window * 4, False)]
    shared.append(Block("tables of the schedule", lies.window * 4, lies.tables * 4, False))
    for place in plan.placements:
        if place.residency == REGISTER:
            piece = found[place.parameter, place.units, place.gates, place.repeated]
            alone = (min(piece.strata), phases) if phases > 1 and len(piece.strata) == 1 else (0, 1)
            held, rest = place.registers, place.rest
            registers.append(Block(place.parameter, held.start, len(held), True, *alone))
            if rest:
                shared.append(Block(place.parameter, (lies.weights_at + rest.start) * 4, len(rest) * 4))
        elif place.in_shared:
            shared.append(Block(place.parameter, lies.slice_at(place) * 4, place.bytes_per_worker))
    shared += [
        Block(name, (lies.weights_at + at) * 4, size * 4) for (name, _, _), (at, size) in lies.vectors.items()
    ]
    shared.sort(key=lambda block: block.first)
    used = (lies.weights_at + lies.weights) * 4
    shared.append(Block("staging", used, max(chip.shared_bytes - used, 0), False))
    maps = tuple(
        WorkerMap(rank, tuple((p.parameter, *_units_of(p, workers, rank)) for p in plan.placements))
        for rank in range(workers)
    )
    return OnChip(
        most_registers(chip, plan.precision),
        chip.shared_bytes,
        tuple(registers),
        tuple(shared),
        maps,
    )


def _units_of(placement: Placement, workers: int, rank: int) -> tuple[int, int]:
    return (0, placement.units) if placement.repeated else unit_range(placement.units, workers, rank)


def _key(piece: Slice) -> tuple[str, int, int, bool]:
    return piece.parameter, piece.units, piece.gates, piece.repeated


def phase_steps(plan: Plan) -> dict[str, list[Step]]:
    """What runs in each phase of a step, by its name; an exchange stands behind every number."""
    steps = sequence(plan, mode_of(plan))
    return {
        name: [step for step in steps if step.phase == phase] for phase, name in enumerate(_phase_names(plan))
    }


def _phase_names(plan: Plan) -> Iterator[str]:
    phases = Phases.of(plan.program)
    several = phases.strata > 1
    for phase in range(phases.count):
        direction = FORWARD if phase < phases.starts else BACKWARD
        # Recursions are numbered as they run forwards.
        behind = phases.stratum(phase)
        if phases.has_levels(phase):
            where = "a level of " + (f"recursion {behind + 1}" if several else "the recursion")
        elif 0 < behind < phases.strata:
            where = f"between recursions {behind} and {behind + 1}"
        else:
            is_first = (behind == 0) == (direction == FORWARD)
            where = f"{'before' if is_first else 'behind'} the {'recursions' if several else 'recursion'}"
        yield f"{direction}, {where}"


def levels(plan: Plan) -> list[tuple[list[Step], list[Step]]]:
    """Of every recursion, in the order in which they run forwards, what a level runs, both ways."""
    steps, phases = sequence(plan, mode_of(plan)), Phases.of(plan.program)
    ways = [
        [step for step in steps if step.phase == phase]
        for phase in range(phases.count)
        if phases.has_levels(phase)
    ]
    return list(zip(ways[: phases.strata], reversed(ways[phases.strata :]), strict=True))


def exchange_count(steps: list[Step]) -> int:
    """How many exchanges the workers of a replica make for them."""
    return len({step.step for step in steps})


def _exchanges(plan: Plan) -> Iterator[ExchangeFacts]:
    for name, steps in phase_steps(plan).items():
        found: dict[int, list[str]] = {}
        for step in steps:
            found.setdefault(step.step, []).append(step.segment.name)
        if steps:
            names = tuple(tuple(names) for _, names in sorted(found.items()))
            yield ExchangeFacts(name, exchange_count(steps), names)


def _pushes(plan: Plan) -> Iterator[str]:
    for pushed in plan.pushes:
        what = "partial sums" if pushed.value is None else pushed.value.name
        yield f"{what} of {pushed.segment}"


def _polls(plan: Plan) -> Iterator[str]:
    kinds = ((polled.segment, "partial sums" if polled.partial else "states") for polled in plan.polled)
    return (f"{kind} of {segment}" for segment, kind in dict.fromkeys(kinds))


def _parts(plan: Plan) -> Iterator[str]:
    parts = Modes(plan).mode(mode_of(plan)).parts
    for part in range(0 if parts is None else parts.count):
        assert parts is not None
        yield " and ".join(space for space, number in parts.of_space.items() if number == part)


def _reductions(plan: Plan) -> Iterator[str]:
    return (segment.name for segment in plan.segments if segment.summed & set(plan.reduced))


def _cost(plan: Plan, chip: Machine) -> Iterator[str]:
    yield from plan.remarks
    if not chip.is_gpu:
        yield "none on a CPU, where the grid is chosen by the size of the batch when it runs"
        return
    assert plan.tiling is not None
    workers = plan.tiling.workers
    held = sum(p.bytes_per_worker for p in plan.placements if p.residency != STREAMED) * workers
    yield f"L2 to SM, per replica: {held / 1024:,.0f} KiB of resident weights once a launch"
    again = sum(p.bytes_per_worker for p in plan.placements if p.residency == REGISTER) * workers
    if turns(plan) and plan.trains and again:
        yield f"{again / 1024:,.0f} KiB of them once more, for gradients on tensor cores, in another order"
    uses: dict[str, int] = {}
    for segment in plan.segments:
        if plan.program.stage(segment.stage).placement == LEVEL:
            for product in segment.products:
                uses[product.parameter] = uses.get(product.parameter, 0) + 1
            for transposed in segment.transposed:
                uses[transposed.parameter] = uses.get(transposed.parameter, 0) + 1
    for place in plan.placements:
        if place.residency == STREAMED:
            size = place.bytes_per_worker * workers / 1024
            often = f"{uses.get(place.parameter, 0)} times a level"
            if plan.program.parameter(place.parameter).kind == STACK:
                often += " for each of the stack that it uses"
            yield f"L2 to SM, per replica: {size:,.0f} KiB of {place.parameter}, {often}"


def _spaces(plan: Plan) -> Iterator[SpaceFacts]:
    """Bytes of activations that a mode writes, a row of every space."""
    assert plan.tiling is not None
    written: set[str] = set()
    for step in sequence(plan, mode_of(plan)):
        written |= {store.buffer for store in step.segment.stores}
        written |= {place.buffer for place in step.segment.scratch}
        written |= step.segment.summed
    for space in plan.program.spaces:
        sizes = {False: 0, True: 0}
        for buffer in plan.buffers:
            if buffer.space == space.name and buffer.name in written:
                runs = plan.runs_in(buffer, 1, plan.tiling.workers)  # as in batches that fill the memory
                sizes[buffer.children is not None] += buffer.width * 4 * runs
        if any(sizes.values()):
            arms = plan.program.struct(space.struct).arms
            some = "" if len(space.arms) == len(arms) else f".{'|'.join(space.arms)}"
            rows = "roots" if space.selection == ROOT else "vertices"
            yield SpaceFacts(space.name, f"{rows} of {space.struct}{some}", sizes[False], sizes[True])
