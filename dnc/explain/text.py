"""What the compiler made of a model, as text for people: `dnc explain`.

In: facts of a plan (and data for a schedule). Out: lines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnc.diagnostics import counted
from dnc.explain.facts import (
    IN_MEMORY,
    IN_TABLE,
    PlanFacts,
    StageFacts,
    WeightFacts,
    mode_of,
    replicas_of,
)
from dnc.explain.memory import MemoryFacts
from dnc.ir.forest import Forest
from dnc.ir.isa import REPLICA_BARRIER
from dnc.ir.machine import target_name
from dnc.ir.plan import Plan
from dnc.runtime.encoder import Encoder
from dnc.runtime.footprint import footprint, footprint_text
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import disassemble, queue


def as_text(facts: PlanFacts, memory: MemoryFacts) -> str:
    """Stages, weights, exchanges, instructions, registers, predicted cost and memory of a plan."""
    parts = [
        [f"target {target_name(facts.target)}: {facts.tiling}"],
        ["", "why it is fast", *(f"  {sentence}" for sentence in facts.why)],
        ["", "stages, in order (a segment is one instruction: work between two exchanges)"],
        [line for stage in facts.stages for line in _stage(stage)],
        ["", "weights", *(_weight(each, facts.on_chip is not None) for each in facts.weights), *_room(facts)],
        ["", f"exchanges between the workers of a replica, in {facts.doing}", *_exchanges(facts, memory)],
        ["", f"instructions ({len(facts.instructions)})", *_instructions(facts)],
        ["", "predicted cost", *(f"  {line}" for line in facts.cost)],
        ["", f"memory, in {facts.doing}", *_memory(facts, memory)],
    ]
    return "\n".join(line for part in parts for line in part)


def _stage(stage: StageFacts) -> Iterator[str]:
    yield f"  {stage.name}: {stage.direction}, {stage.placement}, rows of {stage.space}"
    for segment in stage.segments:
        shared = "every worker its units" if segment.by_units else "every worker its rows"
        if segment.repeated:
            shared += f", but all of {', '.join(segment.repeated)}"
        work = ", ".join((*segment.products, counted(segment.operations, "operation")))
        yield f"    step {segment.step}: {segment.name}: {work}; {shared}"


def _weight(weight: WeightFacts, by_worker: bool) -> str:
    many = f"{weight.count} x " if weight.count > 1 else ""
    shape, kib = f"{many}{list(weight.shape)}", weight.size / 1024
    if weight.residency == IN_TABLE:
        return f"  {weight.parameter}: {weight.reason}"
    if weight.residency == IN_MEMORY:
        return f"  {weight.parameter} {shape}: memory, {kib:.1f} KiB, {weight.reason}"
    size = f"{kib:.1f} KiB{' a worker' if by_worker else ''}"
    return f"  {weight.parameter} {shape}: {weight.residency.upper()}, {size}, {weight.reason}"


def _room(facts: PlanFacts) -> Iterator[str]:
    if facts.on_chip is not None:
        chip = facts.on_chip
        yield f"  registers for weights: {chip.registers_used} of {chip.registers} a thread"
        used, room = chip.shared_used / 1024, chip.shared / 1024
        yield f"  shared memory for weights: {used:.1f} of {room:.0f} KiB a worker"


def _exchanges(facts: PlanFacts, memory: MemoryFacts) -> Iterator[str]:
    for phase in facts.exchanges:
        names = "; ".join(" + ".join(step) for step in phase.steps)
        yield f"  {phase.phase}: {phase.count} ({names})"
    if facts.pushes:
        yield f"  pushed into shared memory between narrow levels: {', '.join(facts.pushes)}"
    if facts.polls:
        yield f"  waited for by looking at the data between narrow levels: {', '.join(facts.polls)}"
    if facts.parts:
        yield f"  apart, on replicas of their own, where that ends earlier: {'; '.join(facts.parts)}"
    if facts.reductions:
        yield f"  partial sums added up in the cluster where levels are wide: {', '.join(facts.reductions)}"
    if memory.grid_exchanges:
        yield f"  whole grid, once a batch: {memory.grid_exchanges}"


def _instructions(facts: PlanFacts) -> Iterator[str]:
    for number, name, fields in facts.instructions:
        yield f"  {number:3} {name} {' '.join(fields)}".rstrip()


def _memory(facts: PlanFacts, memory: MemoryFacts) -> Iterator[str]:
    yield "  activations, by the rows of a stage:"
    for space in facts.spaces:
        entry = f", and {space.entry:,} a child in its lists" if space.entry else ""
        yield f"    {space.name} ({space.vertices}): {space.row:,} bytes a row{entry}"
    yield (
        f"  {memory.samples}: {memory.sample:,.0f} bytes a sample of {memory.vertices:,.1f} vertices, "
        f"{memory.vertex:,.0f} a vertex; {memory.schedule:,.0f} bytes of schedule"
    )
    yield f"  parameters with gradients: {memory.parameters / 2**20:,.2f} MiB"
    samples = f"{memory.largest:,} such samples{memory.reach}"
    yield f"  largest batch in {memory.memory / 2**30:,.1f} GiB: {samples}"


def explain_schedule(plan: Plan, forest: Forest, table_rows: dict[str, int], batch: int) -> str:
    """The instructions that the first `batch` samples become, replica by replica."""
    assert plan.tiling is not None
    workers, replicas = plan.tiling.workers, replicas_of(plan)
    samples = np.arange(min(batch, forest.samples), dtype=np.int32)
    encoder = Encoder(prepare(plan, forest), static_pool(plan, table_rows, 2**24))
    mode = mode_of(plan)
    size = len(encoder.encode(samples, mode=mode, replicas=replicas, workers=workers).words)
    encoder.pool = static_pool(plan, table_rows, size)
    schedule = encoder.encode(samples, mode=mode, replicas=replicas, workers=workers)
    barrier = plan.opcode(REPLICA_BARRIER).number
    lines = [
        f"schedule of {len(samples)} samples on {replicas} replicas of {workers} workers: "
        f"{len(schedule.words):,} words, {schedule.activations:,} words of activations",
        f"memory, with an optimizer that keeps nothing: {footprint_text(footprint(schedule, encoder.pool))}",
    ]
    for replica in range(min(replicas, len(samples))):
        found = queue(schedule.words, plan, replica * workers)
        exchanges = int((found[:, 0] == barrier).sum())
        lines.append(f"replica {replica}: {len(found)} instructions, {exchanges} exchanges")
        lines += [f"  {line}" for line in disassemble(schedule.words, plan, replica * workers).split("\n")]
    return "\n".join(lines)
