"""Small transformations of cells and stages that several passes share.

In: cells, stages. Out: new ones. Guaranteed: the results' values do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.opdef import PRODUCT, VIEW
from dnc.ir.ops import OPS
from dnc.ir.program import Input, Output, Stage


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


def giving(stage: Stage, outputs: Iterable[tuple[Output, Value]]) -> Stage:
    """The stage with these outputs alone, each with the value of its cell that it is."""
    pairs = list(outputs)
    cell = attrs.evolve(stage.cell, results=tuple(value for _, value in pairs))
    return prune(attrs.evolve(stage, outputs=tuple(output for output, _ in pairs), cell=cell))


def behind_products(cell: Cell, free: set[Value]) -> set[Value]:
    """Those of `free` values that have a product in them."""
    found: set[Value] = set()
    for op in cell.ops:
        if op.result in free and (OPS[op.opcode].has(PRODUCT) or any(each in found for each in op.operands)):
            found.add(op.result)
    return found


def boundary(cell: Cell, movable: set[Value]) -> list[Value]:
    """Of values that another stage may make those that the rest of the cell uses, in order.

    A view of one of them stays in the cell, so that the whole vector is saved once.
    """

    def stays(op: Op) -> bool:
        return OPS[op.opcode].has(VIEW) and len(op.operands) == 1

    needed = set(cell.results)
    moved: set[Value] = set()
    for op in reversed(cell.ops):
        if op.result not in needed:
            continue
        if op.result in movable and not stays(op):
            moved.add(op.result)
        else:
            needed.update(op.operands)
    return [op.result for op in cell.ops if op.result in moved]


def reading(stage: Stage, sources: Mapping[Value, Input]) -> Stage:
    """The stage that reads some values of its cell in place of making them."""
    cell = Cell(
        (*stage.cell.inputs, *sources),
        tuple(op for op in stage.cell.ops if op.result not in sources),
        stage.cell.results,
    )
    return prune(attrs.evolve(stage, inputs=(*stage.inputs, *sources.values()), cell=cell))
