"""What a launch needs of memory, by purpose: the prediction that a measurement is held against.

In: a schedule and the static pool it was encoded for. Out: bytes by purpose. Guaranteed: their sum is
what the pool needs for that schedule; what a session takes may be more (slack for larger batches).
"""

from __future__ import annotations

from dnc.ir import isa
from dnc.runtime.pool import StaticPool
from dnc.runtime.schedule import Schedule

WEIGHTS, GRADIENTS, STATE, SCHEDULES = "weights", "gradients", "optimizer state", "schedules"
ACTIVATIONS, PARTIAL = "activations", "partial sums"
UNIT = 16  # bytes of an address


def footprint(schedule: Schedule, pool: StaticPool) -> dict[str, int]:
    """Bytes by purpose; partial sums are those that the workers of a replica leave for each other."""
    states = [pool.bases[name] for name in isa.STATES if name in pool.bases]
    first_state = min(states, default=pool.schedules[0])
    gradients = pool.bases[isa.GRADIENTS]
    found = {
        WEIGHTS: gradients * UNIT,
        GRADIENTS: (first_state - gradients) * UNIT,
        STATE: (pool.schedules[0] - first_state) * UNIT,
        SCHEDULES: (pool.activations - pool.schedules[0]) * UNIT,
        ACTIVATIONS: schedule.activations * 4,
        PARTIAL: 0,
    }
    partial = {buffer.name for buffer in schedule.plan.buffers if buffer.partial}
    behind = sorted((at, name) for name, at in schedule.bases.items() if at >= pool.activations)
    ends = [at for at, _ in behind[1:]] + [pool.activations + schedule.activations // 4]
    for (at, name), end in zip(behind, ends, strict=True):
        if name in partial:
            found[PARTIAL] += (end - at) * UNIT
    found[ACTIVATIONS] -= found[PARTIAL]
    return found


def footprint_text(found: dict[str, int]) -> str:
    """The same on one line, in MiB."""
    parts = [f"{size / 2**20:,.1f} {name}" for name, size in found.items() if size]
    return f"{sum(found.values()) / 2**20:,.1f} MiB: {', '.join(parts)}"
