"""Small transformations of cells and stages that several passes share.

In: cells, stages. Out: new ones. Guaranteed: the results' values do not change.
"""

from __future__ import annotations

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.program import Stage


def substitute(op: Op, replaced: dict[Value, Value]) -> Op:
    """`op` with its operands replaced."""
    if not any(operand in replaced for operand in op.operands):
        return op
    return attrs.evolve(op, operands=tuple(replaced.get(operand, operand) for operand in op.operands))


def used_ops(ops: tuple[Op, ...], results: tuple[Value, ...]) -> tuple[Op, ...]:
    """The operations that `results` depend on, in order."""
    needed = set(results)
    kept: list[Op] = []
    for op in reversed(ops):
        if op.result in needed:
            kept.append(op)
            needed.update(op.operands)
    return tuple(reversed(kept))


def prune(stage: Stage) -> Stage:
    """The stage without operations and inputs that no result needs."""
    ops = used_ops(stage.cell.ops, stage.cell.results)
    needed = {operand for op in ops for operand in op.operands} | set(stage.cell.results)
    kept = [
        (value, source)
        for value, source in zip(stage.cell.inputs, stage.inputs, strict=True)
        if value in needed
    ]
    if len(kept) == len(stage.inputs) and len(ops) == len(stage.cell.ops):
        return stage
    cell = Cell(tuple(value for value, _ in kept), ops, stage.cell.results)
    return attrs.evolve(stage, inputs=tuple(source for _, source in kept), cell=cell)
