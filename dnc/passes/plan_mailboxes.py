"""Plan mailboxes: what the workers of a cluster send each other between two levels, beside what they write.

In: a plan with segments and a tiling. Out: the plan with its `pushes`. A segment that is alone in its levels
pushes the states that are operands of its own products, and the partial sums of transposed products that it
adds up itself; so the next level finds them in its shared memory, and of what others wrote in the one before
reads nothing else. All of it is still written to the pool, for everybody who reads it later.

It is done where a level follows one other, as in a sequence: those levels are narrow. Of trees most rows are
in wide levels, which do not push; there the larger code costs more than narrow levels gain
(docs/performance-log.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dnc.ir.cell import Value
from dnc.ir.plan import (
    UNIT,
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    GatherAddress,
    ParameterAddress,
    Piece,
    Plan,
    Product,
    Pushed,
    Segment,
    SlotsAddress,
    levels_of,
    unit_share,
)
from dnc.ir.repeated import repeated_parts, staged_operand
from dnc.ir.states import state_buffers


@attrs.frozen
class PlanMailboxes:
    """sequences: only where a level follows one other."""

    sequences: bool = True
    name: str = attrs.field(default="mailboxes", init=False)
    optional: bool = attrs.field(default=True, init=False)

    def __call__(self, plan: Plan) -> Plan:
        """The plan with its pushes."""
        assert plan.tiling is not None
        if plan.tiling.cluster == 1:
            return plan
        found = [pushed for segment in plan.segments for pushed in self._of(plan, segment)]
        return attrs.evolve(plan, pushes=tuple(found))

    def _of(self, plan: Plan, segment: Segment) -> list[Pushed]:
        assert plan.tiling is not None
        if segment.mapping != UNIT or levels_of(plan, segment) != [segment]:
            return []
        workers = plan.tiling.workers
        if (workers - 1) * unit_share(segment.units, workers) >= segment.units:
            return []  # who has no units sends nothing, so that nobody would wait for it
        try:
            asked = dict.fromkeys(asked_of(plan, segment))
        except NotEnough:
            return []
        sums = sum(value is None for *_, value in asked)
        if self.sequences and (sums > 1 or len(_followed(plan, segment)) > 1):
            return []
        return [Pushed(segment.name, *each) for each in asked]


class NotEnough(Exception):
    """A segment reads something that cannot be pushed."""


# Buffer, offset, and the value where it is a state.
_Asked = tuple[str, int, Value | None]


def _followed(plan: Plan, segment: Segment) -> set[str]:
    """The lists through which a segment's products read what it wrote itself."""
    lists = {p.address.list for p in _pieces(segment) if isinstance(p.address, GatherAddress)}
    return {name for name in lists if state_buffers(plan, name) & _written(segment)}


def _pieces(segment: Segment) -> list[Piece]:
    return [piece for product in segment.products for piece in product.pieces]


def _written(segment: Segment) -> set[str]:
    return {store.buffer for store in segment.stores}


def asked_of(plan: Plan, segment: Segment, all_sums: bool = True) -> Iterator[_Asked]:
    """What a level reads of the one before that others made; NotEnough if that is more than can be sent.

    all_sums: of partial sums, a row's load has to read all that its users' products leave in a record.
    """
    written = _written(segment)
    summed = segment.summed
    if not all(_is_copied(plan, product, written) for product in segment.products):
        raise NotEnough
    for piece in _pieces(segment):
        yield from _asked_by_piece(plan, segment, piece, written, summed)
    staged = _staged(segment)
    for load in segment.loads:
        address = load.address
        if isinstance(address, GatherAddress | ChildrenAddress):
            for buffer in state_buffers(plan, address.list) & written:
                if load.value in staged and not staged[load.value]:
                    raise NotEnough
                _check_own(segment, buffer, address.offset, load.value)
        elif isinstance(address, SlotsAddress):
            if load.value in staged and (_slots(plan, address.plain) | _slots(plan, address.partial)) & (
                written | summed
            ):
                raise NotEnough
            for buffer in _slots(plan, address.plain) & written:
                _check_own(segment, buffer, address.offset, load.value)
            for buffer in sorted(_slots(plan, address.partial) & summed):
                if all_sums:
                    _check_sums(segment, buffer, address.offset, load.value)
                yield buffer, address.offset, None
        elif isinstance(address, BufferAddress | EntriesAddress) and address.buffer in written | summed:
            raise NotEnough


def _is_copied(plan: Plan, product: Product, written: set[str]) -> bool:
    """Whether an operand with states of the segment is copied from whole addresses, and so may be sent."""
    addresses = [piece.address for piece in product.pieces]
    lists = [address.list for address in addresses if isinstance(address, GatherAddress)]
    if not any(state_buffers(plan, name) & written for name in lists):
        return True
    plain = (GatherAddress, ParameterAddress, BufferAddress)
    return all(
        isinstance(piece.address, plain) and piece.width % 4 == piece.address.offset % 4 == 0
        for piece in product.pieces
    ) and not any(
        plan.buffer(address.buffer).partial for address in addresses if isinstance(address, BufferAddress)
    )


def _staged(segment: Segment) -> dict[Value, bool]:
    """What repeated operations load, all units of it, and whether that is an operand that was staged."""
    first, _ = repeated_parts(segment)
    return {load.value: staged_operand(first, load) is not None for load in first.loads}


def _asked_by_piece(
    plan: Plan, segment: Segment, piece: Piece, written: set[str], summed: set[str]
) -> Iterator[_Asked]:
    """The states of which an operand's piece reads, those of one value."""
    address = piece.address
    if isinstance(address, SlotsAddress):
        if (_slots(plan, address.plain) | _slots(plan, address.partial)) & (written | summed):
            raise NotEnough
    elif isinstance(address, BufferAddress) and address.buffer in written | summed:
        raise NotEnough
    elif isinstance(address, GatherAddress):
        for buffer in sorted(state_buffers(plan, address.list) & written):
            stores = [s for s in segment.stores if (s.buffer, s.offset) == (buffer, address.offset)]
            sizes = {store.value.tensor.size for store in stores} | {piece.width, segment.units}
            if len(stores) != 1 or len(sizes) != 1 or stores[0].children is not None or piece.width % 4:
                raise NotEnough
            yield buffer, address.offset, stores[0].value


def _check_own(segment: Segment, buffer: str, offset: int, value: Value) -> None:
    """What is read of a buffer, unit by unit, was written by the unit's own worker."""
    stores = [store for store in segment.stores if store.buffer == buffer]
    if any(each.tensor.size % segment.units for each in (value, *(store.value for store in stores))):
        raise NotEnough
    if any((store.offset - offset) % segment.units for store in stores):
        raise NotEnough


def _check_sums(segment: Segment, buffer: str, offset: int, value: Value) -> None:
    """A load reads all that transposed products leave in a buffer, one element a unit."""
    made = [part for turned in segment.transposed for part in turned.stores if part[0] == buffer]
    if len(made) != 1 or offset % 4:
        raise NotEnough
    ((_, at, low, high),) = made
    if at != offset or {high - low, value.tensor.size} != {segment.units}:
        raise NotEnough


def _slots(plan: Plan, name: str | None) -> set[str]:
    """The buffers that a list of slots leads to."""
    return {
        source.buffer for item in plan.lists if item.name == name for source in getattr(item, "sources", ())
    }
