"""What the compiler made of a model, as text for people: `dnc explain`.

In: plans (and data for a schedule). Out: lines. Everything is read off the plan, the phases and the
encoder, so it says what will happen, not what was meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dnc.ir.forest import Forest
from dnc.ir.isa import REPLICA_BARRIER
from dnc.ir.machine import Machine, machine
from dnc.ir.plan import REGISTER, SHARED, STREAMED, UNIT, Plan
from dnc.ir.program import LEVEL, TABLE
from dnc.runtime.encoder import Encoder
from dnc.runtime.phases import EVALUATE, PREDICT, RESULT_KINDS, TRAIN, Step, sequence
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import disassemble, queue

FORWARD_LEVEL, BACKWARD_LEVEL = "forward, a level of the recursion", "backward, a level of the recursion"
PHASES = (
    "forward, before the recursion",
    FORWARD_LEVEL,
    "forward, behind the recursion",
    "backward, before the recursion",
    BACKWARD_LEVEL,
    "backward, behind the recursion",
)

DOING = {TRAIN: "training", EVALUATE: "evaluation", PREDICT: "prediction"}


def explain_plan(plan: Plan) -> str:
    """Stages, weights, exchanges, instructions, registers and predicted cost of a plan."""
    chip = machine(plan.target)
    parts = [
        [f"target {plan.target}: {_tiling(plan, chip)}"],
        ["", "stages, in order (a segment is one instruction: work between two exchanges)", *_stages(plan)],
        ["", "weights", *_weights(plan, chip)],
        ["", f"exchanges between the workers of a replica, in {DOING[mode_of(plan)]}", *_exchanges(plan)],
        ["", f"instructions ({len(plan.opcodes)})", *_instructions(plan)],
        ["", "predicted cost", *_cost(plan, chip)],
    ]
    return "\n".join(line for part in parts for line in part)


def _tiling(plan: Plan, chip: Machine) -> str:
    assert plan.tiling is not None
    tiling = plan.tiling
    if not chip.is_gpu:
        return "replicas of one core each; a wide machine may share a replica"
    if tiling.cluster > 1:
        count = chip.cluster_replicas(tiling.cluster)
        return f"{count} replicas, each a cluster of {tiling.cluster} workers of {tiling.threads} threads"
    return f"one replica over the chip, {tiling.workers} workers of {tiling.threads} threads"


def _stages(plan: Plan) -> Iterator[str]:
    for stage in plan.program.stages:
        yield f"  {stage.name}: {stage.direction}, {stage.placement}, rows of {stage.space}"
        for segment in plan.segments:
            if segment.stage == stage.name:
                shared = "every worker its units" if segment.mapping == UNIT else "every worker its rows"
                work = [f"{product.parameter} @ x" for product in segment.products]
                work += [f"{product.parameter}ᵀ @ x" for product in segment.transposed]
                count = len(segment.cell.ops)
                work.append(f"{count} operation{'' if count == 1 else 's'}")
                yield f"    step {segment.step}: {segment.name}: {', '.join(work)}; {shared}"


def _weights(plan: Plan, chip: Machine) -> Iterator[str]:
    placed = {placement.parameter for placement in plan.placements}
    for place in plan.placements:
        rows = plan.program.parameter(place.parameter).type.shape
        size = f"{place.bytes_per_worker / 1024:.1f} KiB a worker, " if place.bytes_per_worker else ""
        yield f"  {place.parameter} {list(rows)}: {place.residency.upper()}, {size}{place.reason}"
    for parameter in plan.program.parameters:
        if parameter.name in placed:
            continue
        if parameter.kind == TABLE:
            yield f"  {parameter.name}: table in memory, the rows a batch touches are read"
        else:
            kib = math.prod(parameter.type.shape) * 4 / 1024
            shape = list(parameter.type.shape)
            yield f"  {parameter.name} {shape}: memory, {kib:.1f} KiB, not split by units"
    registers = sum(
        _registers(plan, place.parameter) for place in plan.placements if place.residency == REGISTER
    )
    if chip.is_gpu:
        shared = sum(place.bytes_per_worker for place in plan.placements if place.residency == SHARED)
        yield f"  registers for weights: {registers} of {chip.registers} a thread"
        room = chip.shared_bytes / 1024
        yield f"  shared memory for weights: {shared / 1024:.1f} of {room:.0f} KiB a worker"


def _registers(plan: Plan, parameter: str) -> int:
    from dnc.passes.plan_weights import slices

    assert plan.tiling is not None
    return max(s.registers(plan.tiling.workers) for s in slices(plan) if s.parameter == parameter)


def mode_of(plan: Plan) -> str:
    """What a plan is looked at in: training if it can train, else prediction if it has outputs."""
    if plan.trains:
        return TRAIN
    return PREDICT if any(result.kind in RESULT_KINDS[PREDICT] for result in plan.results) else EVALUATE


def phase_steps(plan: Plan) -> dict[str, list[Step]]:
    """What runs in each of the `PHASES` of a step; an exchange stands behind every number."""
    steps = sequence(plan, mode_of(plan))
    return {name: [step for step in steps if step.phase == phase] for phase, name in enumerate(PHASES)}


def exchange_count(steps: list[Step]) -> int:
    """How many exchanges the workers of a replica make for them."""
    return len({step.step for step in steps})


def _exchanges(plan: Plan) -> Iterator[str]:
    for name, steps in phase_steps(plan).items():
        if steps:
            yield f"  {name}: {exchange_count(steps)} ({_step_names(steps)})"
    if plan.trains:
        yield "  whole grid, once a batch: 3 (before the gradients, before the norm, before the update)"


def _step_names(steps: list[Step]) -> str:
    found: dict[int, list[str]] = {}
    for step in steps:
        found.setdefault(step.step, []).append(step.segment.name)
    return "; ".join(" + ".join(names) for _, names in sorted(found.items()))


def _instructions(plan: Plan) -> Iterator[str]:
    for opcode in plan.opcodes:
        yield f"  {opcode.number:3} {opcode.name} {' '.join(opcode.fields)}".rstrip()


def _cost(plan: Plan, chip: Machine) -> Iterator[str]:
    for remark in plan.remarks:
        yield f"  {remark}"
    if not chip.is_gpu:
        yield "  CPU: chosen by the size of the batch when it runs"
        return
    assert plan.tiling is not None
    workers = plan.tiling.workers
    held = sum(p.bytes_per_worker for p in plan.placements if p.residency != STREAMED) * workers
    yield f"  L2 to SM, per replica: {held / 1024:,.0f} KiB of resident weights once a launch"
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
            often = uses.get(place.parameter, 0)
            yield f"  L2 to SM, per replica: {size:,.0f} KiB of {place.parameter}, {often} times a level"


def explain_schedule(plan: Plan, forest: Forest, table_rows: dict[str, int], batch: int) -> str:
    """The instructions that the first `batch` samples become, replica by replica."""
    chip = machine(plan.target)
    assert plan.tiling is not None
    workers = plan.tiling.workers
    replicas = chip.cluster_replicas(plan.tiling.cluster) if chip.is_gpu and plan.tiling.cluster > 1 else 1
    samples = np.arange(min(batch, forest.samples), dtype=np.int32)
    encoder = Encoder(prepare(plan, forest), static_pool(plan, table_rows, 2**24))
    mode = mode_of(plan)
    size = len(encoder.encode(samples, mode=mode, replicas=replicas, workers=workers).words)
    encoder.pool = static_pool(plan, table_rows, size)
    schedule = encoder.encode(samples, mode=mode, replicas=replicas, workers=workers)
    barrier = plan.opcode(REPLICA_BARRIER).number
    lines = [
        f"schedule of {len(samples)} samples on {replicas} replicas of {workers} workers: "
        f"{len(schedule.words):,} words, {schedule.activations:,} words of activations"
    ]
    for replica in range(min(replicas, len(samples))):
        found = queue(schedule.words, plan, replica * workers)
        exchanges = int((found[:, 0] == barrier).sum())
        lines.append(f"replica {replica}: {len(found)} instructions, {exchanges} exchanges")
        lines += [f"  {line}" for line in disassemble(schedule.words, plan, replica * workers).split("\n")]
    return "\n".join(lines)
