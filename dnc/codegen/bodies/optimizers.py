"""The optimizers' instructions share a body on every target; the opcode says which step it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dnc.codegen.emit import Expr, dispatch
from dnc.ir import isa
from dnc.ir.optimizers import OPTIMIZERS, Optimizer
from dnc.ir.plan import Plan


def each_optimizer(plan: Plan, opcode: Expr, table: str, step: Callable[[Optimizer], None]) -> None:
    """The step of the optimizer that the opcode names; table: "" for the dense parameters."""
    found = isa.optimizers_of(plan, table)
    dispatch(opcode, {number: partial(step, OPTIMIZERS[name]) for number, name in found.items()})
