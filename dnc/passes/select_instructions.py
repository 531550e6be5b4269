"""Select instructions: numbers the instruction set of a plan.

In: a plan with segments and gradients. Out: the plan with its opcodes, as `dnc.ir.isa` lays down.
"""

from __future__ import annotations

import attrs

from dnc.ir.isa import opcodes
from dnc.ir.plan import Plan


@attrs.frozen
class SelectInstructions:
    """Has no options."""

    name: str = attrs.field(default="select-instructions", init=False)
    optional: bool = attrs.field(default=False, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with its opcodes."""
        return attrs.evolve(plan, opcodes=opcodes(plan))
