"""What the checks of a schedule ask of its plan, which is the same for all schedules of the plan and a mode.

In: a plan and a mode. Out: its parts by name, and numbers that follow from them, worked out once.
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from dnc.ir import cutting, isa
from dnc.ir.early import Early, early
from dnc.ir.plan import Buffer, DenseGradient, Plan, Segment, TableGradient, TableProduct
from dnc.ir.program import TABLE
from dnc.runtime.phases import sequence

PLANS = 16  # that are kept, each with its modes apart


@attrs.frozen(eq=False)
class Known:
    """segments: that the mode runs. fields: how many words each opcode has. along: see `cutting.made_along`.
    sizes: floats of parameters, but of tables, and of an arena of gradients. updates: the fields of every
    update of dense parameters."""

    layout: isa.Layout
    early: Early | None
    segments: dict[str, Segment]
    buffers: dict[str, Buffer]
    numbers: dict[str, int]
    fields: tuple[int, ...]
    dense: dict[str, DenseGradient]
    along: dict[str, DenseGradient]
    tables: dict[str, TableGradient]
    products: dict[str, TableProduct]
    norm_groups: tuple[tuple[int, int, str], ...]
    norm_count: int
    updates: list[dict[str, int]]
    sizes: dict[str, int]


class _Same:
    """A plan, which is no other one however alike that is: plans are large."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.plan is other.plan

    def __hash__(self) -> int:
        return id(self.plan)


def known(plan: Plan, mode: str) -> Known:
    """What is known of the schedules of a plan and a mode."""
    return _known(_Same(plan), mode)


@lru_cache(PLANS)
def _known(same: _Same, mode: str) -> Known:
    plan = same.plan
    sizes = {
        parameter.name: 0 if parameter.kind == TABLE else isa.parameter_floats(plan, parameter.name)
        for parameter in plan.program.parameters
    }
    sizes |= {isa.packed_base(name): isa.packed_floats(plan, name) for name in isa.packed_parameters(plan)}
    sizes[isa.GRADIENTS] = isa.gradient_floats(plan)
    return Known(
        layout=isa.layout(plan),
        early=early(plan),
        segments={step.segment.name: step.segment for step in sequence(plan, mode)},
        buffers={buffer.name: buffer for buffer in plan.buffers},
        numbers={opcode.name: opcode.number for opcode in plan.opcodes},
        fields=tuple(len(opcode.fields) for opcode in plan.opcodes),
        dense={gradient.name: gradient for gradient in plan.dense_gradients},
        along=cutting.made_along(plan),
        tables={f"gradient {table.parameter}": table for table in plan.table_gradients},
        products=isa.sum_opcodes(plan),
        norm_groups=isa.norm_groups(plan),
        norm_count=isa.norm_count(plan),
        updates=[isa.update_words(plan, group) for group in isa.update_groups(plan)],
        sizes=sizes,
    )
