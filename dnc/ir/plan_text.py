"""Plans as text, for people: `--print-ir-after` behind fusion, and `dnc explain`.

In: a plan. Out: lines. Everything is read off the plan; nothing here is parsed back.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnc.ir.plan import (
    FP32,
    Address,
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    GatherAddress,
    IndexAddress,
    ParameterAddress,
    Plan,
    Product,
    RepeatedAddress,
    SeedAddress,
    Segment,
    TransposedProduct,
)
from dnc.ir.printer import print_op


def print_plan(plan: Plan) -> str:
    """Buffers, segments with their reads and writes, gradients, placements."""
    precision = "" if plan.precision == FP32 else f", {plan.precision}"
    lines = [f"plan {plan.program.name} for {plan.target or 'no machine yet'}{precision}"]
    for buffer in plan.buffers:
        rows = buffer.space if buffer.children is None else f"entries of {buffer.children}"
        runs = ", a run per worker" if buffer.partial else ""
        lines.append(f"buffer {buffer.name}: {buffer.width} floats per row of {rows}{runs}")
    for segment in plan.segments:
        lines += [f"segment {segment.name} ({segment.mapping}, step {segment.step})", *_segment(segment)]
    for gradient in plan.dense_gradients:
        selected = f"[{gradient.field}]" if gradient.field else ""
        lines.append(
            f"gradient {gradient.parameter}{selected} += {address_text(gradient.delta)} (x) "
            f"[{', '.join(address_text(piece.address) for piece in gradient.pieces) or '1'}]"
        )
    for table in plan.table_gradients:
        lines.append(
            f"gradient {table.parameter}: {len(table.plain)} + {len(table.partial)} sources of slots"
        )
        for product in table.products:
            source = product.source.buffer
            lines.append(f"gradient {table.parameter} += {product.parameter}ᵀ @ sum of rows of {source}")
    for pushed in plan.pushes:
        sums = "partial sums in " if pushed.value is None else ""
        lines.append(f"push {pushed.segment}: {sums}{pushed.buffer}+{pushed.offset}")
    lines += [f"poll {each.segment}: {each.buffer}+{each.offset}" for each in plan.polled]
    lines += [f"reduce {name}: in the cluster, where levels are wide" for name in plan.reduced]
    lines += [f"weight {p.parameter}: {p.residency} ({p.reason})" for p in plan.placements]
    return "\n".join(lines)


def _segment(segment: Segment) -> Iterator[str]:
    for load in segment.loads:
        yield f"    {load.value} = load {address_text(load.address)}"
    for product in segment.products:
        pieces = ", ".join(address_text(piece.address) for piece in product.pieces)
        yield f"    {product.result} = {_selected(product)} @ [{pieces}]"
    for op in segment.cell.ops:
        yield f"    {print_op(op).strip()}"
    if segment.repeated:
        yield f"    by every worker in whole: {', '.join(str(value) for value in segment.repeated)}"
    for store in segment.stores:
        yield f"    store {store.value} -> {store.buffer}+{store.offset}"
    for transposed in segment.transposed:
        targets = ", ".join(f"{name}+{offset}" for name, offset, _, _ in transposed.stores)
        yield f"    {targets} <- {_selected(transposed)}ᵀ @ {transposed.delta}"


def _selected(use: Product | TransposedProduct | ParameterAddress) -> str:
    """The parameter that is used, of a stack with the list that selects."""
    return use.parameter if use.select is None else f"{use.parameter}[{use.select}]"


def address_text(address: Address) -> str:
    """An address in a few words."""
    if isinstance(address, ParameterAddress):
        return f"{_selected(address)}+{address.offset}"
    if isinstance(address, BufferAddress):
        return f"{address.buffer}+{address.offset}"
    if isinstance(address, GatherAddress):
        return f"row[{address.list}]+{address.offset}"
    if isinstance(address, EntriesAddress):
        return f"entries[{address.children}] of {address.buffer}"
    if isinstance(address, ChildrenAddress):
        return f"rows[{address.list}]+{address.offset}"
    if isinstance(address, IndexAddress):
        return f"index[{address.list}]"
    if isinstance(address, SeedAddress):
        return "seed"
    if isinstance(address, RepeatedAddress):
        return f"{address.value}+{address.offset}"
    return f"sum of slots[{address.plain or '-'}, {address.partial or '-'}]+{address.offset}"
