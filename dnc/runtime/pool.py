"""The pool: where everything lies in the one array of words that a kernel works on.

In: a plan and the sizes known when data is seen. Out: addresses (units of 4 words) of the static
places: the row of zeros, parameters, gradients, optimizer state, schedules; activations
follow behind. Guaranteed: areas are disjoint and start at multiples of 64 bytes.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.isa import (
    GRADIENTS,
    PARAMETERS,
    STATES,
    dense_parameters,
    gradient_floats,
    packed_base,
    packed_floats,
    packed_parameters,
    parameter_floats,
    trained_floats,
)
from dnc.ir.plan import Plan, padded
from dnc.ir.program import STACK, TABLE, Parameter
from dnc.ir.sparse import pack

Floats = NDArray[np.float32]
MAX_ADDRESS = 2**31 - 1
MOST_TRAINED = 2**31 - 1  # numbers of dense parameters, which a word of an update counts


def units(words: int) -> int:
    """Words as whole 64-byte lines, in address units."""
    return -(-words // 16) * 4


@attrs.frozen
class StaticPool:
    """Addresses of the static places, by base name; `schedules` holds two windows of words.

    gradients: arenas of dense gradients, the first at its base; a launch makes them in one. dense: floats of
    the trained dense parameters. table_rows: rows per table. states: arenas for what an optimizer keeps, each
    as large as all trained parameters.
    """

    bases: dict[str, int]
    gradients: tuple[int, ...]
    schedules: tuple[int, int]
    schedule_words: int
    dense: int
    table_rows: dict[str, int]
    activations: int
    states: int

    @property
    def words(self) -> int:
        """Words in front of the activations."""
        return self.activations * 4


def static_pool(
    plan: Plan, table_rows: dict[str, int], schedule_words: int, states: int = 0, arenas: int = 1
) -> StaticPool:
    """Lays out the static part of a pool; DiagnosticError where words of a schedule do not reach so far."""
    widest = max([buffer.width for buffer in plan.buffers] + [1024])
    at = units(widest * 2)
    bases: dict[str, int] = {}
    dense = trained_floats(plan)
    bases[PARAMETERS] = at
    arena = 0
    for parameter in arena_order(plan):
        bases[parameter.name] = at
        if parameter.kind == TABLE:
            at += units(table_rows[parameter.name] * padded(parameter.row_size))
        else:
            at += parameter_floats(plan, parameter.name) // 4
        if not parameter.frozen:
            arena = at - bases[PARAMETERS]
    for name in packed_parameters(plan):
        bases[packed_base(name)] = at
        at += units(packed_floats(plan, name))
    at += -at % 4
    gradients = units(gradient_floats(plan))
    for name, size in ((GRADIENTS, gradients), *((state, arena) for state in STATES[:states])):
        bases[name] = at
        at += size + -size % 4
    spare = [at + number * gradients for number in range(arenas - 1)]
    at += len(spare) * gradients
    schedules = []
    for _ in range(2):
        schedules.append(at)
        at += units(schedule_words)
    if at > MAX_ADDRESS:
        raise fail(f"the parameters need {at * 16 / 2**30:.1f} GiB; a pool holds at most 32 GiB")
    if dense > MOST_TRAINED:
        raise fail(f"{dense:,} numbers that are trained, expected at most {MOST_TRAINED:,}, beside tables")
    places = bases[GRADIENTS], *spare
    return StaticPool(
        bases, places, (schedules[0], schedules[1]), schedule_words, dense, table_rows, at, states
    )


def arena_order(plan: Plan) -> list[Parameter]:
    """All parameters as they lie in the pool: trained dense ones, trained tables, then frozen ones."""
    tables = [parameter for parameter in plan.program.parameters if parameter.kind == TABLE]
    return sorted((*dense_parameters(plan), *tables), key=lambda parameter: parameter.frozen)


def load_parameters(plan: Plan, pool: StaticPool, values: dict[str, Floats], words: Floats) -> None:
    """Writes parameter arrays into the words of a pool, in the plan's weight format."""
    for parameter in plan.program.parameters:
        at = pool.bases[parameter.name] * 4
        value = np.asarray(values[parameter.name], np.float32)
        if parameter.kind == TABLE:
            rows = np.zeros((value.shape[0], padded(parameter.row_size)), np.float32)
            rows[:, : parameter.row_size] = value.reshape(len(value), -1)
            words[at : at + rows.size] = rows.ravel()
        else:
            for own in value if parameter.kind == STACK else (value,):
                flat = plan.weight_format.pack(own)
                words[at : at + flat.size] = flat
                at += flat.size
        if (own_base := packed_base(parameter.name)) in pool.bases:
            flat, at = pack(value, parameter.kept), pool.bases[own_base] * 4
            words[at : at + flat.size] = flat


def read_array(plan: Plan, pool: StaticPool, name: str, words: Floats, place: str = PARAMETERS) -> Floats:
    """A parameter's array, or what lies at its place in another arena (gradients, optimizer)."""
    parameter = plan.program.parameter(name)
    at = (pool.bases[name] - pool.bases[PARAMETERS] + pool.bases[place]) * 4
    if parameter.kind == TABLE:
        width = parameter.row_size
        rows = pool.table_rows[name]
        flat = words[at : at + rows * padded(width)]
        shape = parameter.type.shape[1:]
        return flat.reshape(rows, padded(width))[:, :width].reshape(rows, *shape).copy()
    shape, size = parameter.type.shape, plan.weight_format.floats(parameter.type.shape)
    starts = range(at, at + parameter.count * size, size)
    found = [plan.weight_format.unpack(words[start : start + size], shape) for start in starts]
    return np.stack(found) if parameter.kind == STACK else found[0]
