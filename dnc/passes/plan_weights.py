"""Plan weights: decides where the slice of every weight lives during a launch, and says why.

In: a plan with segments and a tiling. Out: the plan with a `Placement` for every slice. Weights
of the recursion come first, the ones read most per byte before the others, or the large ones where
then more of them fit; registers before shared memory; what fits neither is split between them, where the
tiling or small batches ask for that, or STREAMED from the L2 cache at every use. Nothing is too large.
What is read once a batch is kept in shared memory as a whole or not at all: a part of it would take the room
of tiles from the rest, which may be the most work of a launch, as scores of all words are.
Recursions that run one behind the other may have the same registers, each with its own weights, where more
of them are held then.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dnc.diagnostics import Span
from dnc.ir import sparse
from dnc.ir.costs import GATHERED
from dnc.ir.machine import THREADS, Machine, weight_registers
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    SPARSE,
    STREAMED,
    UNIT,
    Placement,
    Plan,
    shared_stride,
    unit_share,
    weights_of_register,
)
from dnc.ir.program import FORWARD, LEVEL, STACK, ParameterInput
from dnc.ir.regions import generates, turns
from dnc.ir.remarks import Remarks
from dnc.ir.uses import uses_of

MOST_PACKED = 96  # registers that hold two weights each: with 120 of them kernels spill
# Registers where a replica is no cluster and a level of it has more rows than these: launches whose products
# of 16 rows then were no tiles took 6,150 us with 128 registers, and 5,460 with none.
MOST_APART, FEW_ROWS = 96, 2
# Of an element of a weight, for one row, in the time of a multiplication by one in registers: those of sparse
# rows are gathered; and what others take beside it, however many rows there are, where they are elsewhere.
READ_SHARED, READ_STREAMED = 4, 21
FEWER = (16, 32, 64, 96, 128, 160)  # registers than the most
# Of shared memory, kept for the schedule's window and tables, what is looked up ahead, and staging: a tile of
# a weight gradient takes 50 KiB. The rest of a slice that is split may have 16 KiB of it, for smaller tiles.
STAGING_BYTES, LENT_BYTES = 62 * 1024, 16 * 1024


def most_registers(chip: Machine, precision: str) -> int:
    """Registers of a thread that weights may take."""
    return min(chip.registers, MOST_PACKED) if weights_of_register(precision) > 1 else chip.registers


def fewer_registers(chip: Machine, precision: str) -> list[int]:
    """Registers for weights that a kernel gets along with in turn, as long as it spills."""
    most = most_registers(chip, precision)
    return [most - fewer for fewer in FEWER if most >= fewer]


@attrs.frozen
class Slice:
    """A parameter as the unit segments use it: rows = gates * units. packed: weights of a register. repeated:
    every worker has all units. strata: those whose recursions use it; outside: whether anything else does.
    both_ways: whether one direction of the program multiplies by it as it is and transposed, where these want
    it in registers in different orders. kept: elements of a row that are not zero; 0 where all may be other
    than that, or something multiplies by it transposed."""

    parameter: str
    units: int
    gates: int
    columns: int
    recursive: bool
    stacked: bool = False
    packed: int = 1
    repeated: bool = False
    strata: frozenset[int] = frozenset()
    outside: bool = False
    both_ways: bool = False
    kept: int = 0

    @property
    def fits_registers(self) -> bool:
        """Whether registers can hold it, if there are as many."""
        return not (self.stacked or self.both_ways)

    def rows(self, workers: int) -> int:
        """Rows that one worker holds."""
        return self.gates * unit_share(self.units, 1 if self.repeated else workers)

    def registers(self, workers: int) -> int:
        """Registers a thread."""
        return weight_registers(self.rows(workers), self.columns, self.packed)

    def split(self, free: int) -> int:
        """Registers that hold a part of it: of 8 rows and 16 columns, of which a thread has four weights; or
        of all columns of 8 rows, where a register may hold weights of two neighbouring blocks of columns."""
        strips = weight_registers(1, self.columns, self.packed) * self.packed // 4
        whole = strips * 4 // self.packed if self.packed > 1 and strips % 2 else 4
        return free // whole * whole

    def words(self, workers: int) -> int:
        """Words of shared memory a worker."""
        return self.rows(workers) * shared_stride(self.columns)

    def sparse_words(self, workers: int) -> int:
        """The same of the elements that are not zero, with their columns."""
        return sparse.packed_words(self.rows(workers), self.kept)


def slices(plan: Plan) -> tuple[Slice, ...]:
    """Every slice that unit segments use, recursive ones first, then by use and size."""
    found: dict[tuple[str, int, int, bool], Slice] = {}
    uses: dict[tuple[str, int, int, bool], int] = {}
    packed = weights_of_register(plan.precision)
    for segment in plan.segments:
        if segment.mapping != UNIT:
            continue
        stage = plan.program.stage(segment.stage)
        recursive = stage.placement == LEVEL
        other_way = segment.transposed if stage.direction == FORWARD else segment.products
        turning = {product.parameter for product in other_way}
        for parameter, repeated in uses_of(segment):
            rows, columns = plan.program.parameter(parameter).type.shape
            key = (parameter, segment.units, rows // segment.units, repeated)
            stacked = plan.program.parameter(parameter).kind == STACK
            kept = _kept(plan, parameter)
            sizes = segment.units, key[2], columns
            known = Slice(parameter, *sizes, False, stacked, packed, repeated, kept=kept)
            before = found.get(key, known)
            found[key] = attrs.evolve(
                before,
                recursive=before.recursive or recursive,
                strata=before.strata | ({stage.stratum} if recursive else set()),
                outside=before.outside or not recursive,
                both_ways=before.both_ways or (turns(plan) and parameter in turning),
            )
            uses[key] = uses.get(key, 0) + 1
    order = sorted(found, key=lambda key: (not found[key].recursive, -uses[key], found[key].columns))
    return tuple(found[key] for key in order)


def _kept(plan: Plan, parameter: str) -> int:
    found = plan.program.parameter(parameter)
    turned = any(p.parameter == parameter for segment in plan.segments for p in segment.transposed)
    return 0 if turned or not found.is_sparse or found.type.shape[-1] > sparse.MOST_COLUMNS else found.kept


def _use(plan: Plan, parameter: str) -> tuple[str, Span | None]:
    """The first stage of the recursion that multiplies by a parameter, and where it does."""
    for stage in plan.program.stages:
        names = {
            value
            for value, source in zip(stage.cell.inputs, stage.inputs, strict=True)
            if isinstance(source, ParameterInput) and source.parameter == parameter
        }
        for op in stage.cell.ops:
            if stage.placement == LEVEL and names & set(op.operands):
                return stage.name, op.span or stage.span
    return "", plan.program.parameter(parameter).span


@attrs.frozen
class PlanWeights:
    """Places slices on `machine`; `residency` forces one for all (for tests), if it fits.

    limit: the most registers for weights, if fewer than the machine has to offer. batch: samples of a batch,
    None where that is not known. Where levels have few rows, what is in shared memory is read for each of
    them, so as much as there is room for is in registers, of a slice that does not fit as a whole, too.
    """

    machine: Machine
    residency: str | None = attrs.field(default=None)
    limit: int | None = attrs.field(default=None)
    batch: int | None = None
    name: str = attrs.field(default="plan-weights", init=False)
    optional: bool = attrs.field(default=False, init=False)

    @residency.validator
    def _known(self, _: object, value: str | None) -> None:
        if value not in (None, REGISTER, SHARED, STREAMED, SPARSE):
            expected = f"{REGISTER}, {SHARED}, {STREAMED} or {SPARSE}"
            raise ValueError(f"residency: found '{value}', expected {expected}")

    @limit.validator
    def _not_below(self, _: object, value: int | None) -> None:
        if value is not None and value < 0:
            raise ValueError(f"registers: found {value}, expected 0 or more")

    def __call__(self, plan: Plan) -> Plan:
        """The plan with its placements."""
        return self.decide(plan, Remarks())

    def decide(self, plan: Plan, collected: Remarks) -> Plan:
        """The same; weights of the recursion that are not in registers are remarked upon."""
        assert plan.tiling is not None
        if not self.machine.is_gpu:
            reason = "the caches of the core hold what they can"
            made = tuple(
                Placement(s.parameter, s.units, s.gates, s.columns, STREAMED, 0, 0, reason, s.repeated)
                for s in slices(plan)
            )
            return attrs.evolve(plan, placements=made)
        workers, cluster = plan.tiling.workers, plan.tiling.cluster
        rows = self.batch and -(-self.batch // self.machine.replicas(workers, cluster))
        few = rows is not None and rows <= FEW_ROWS
        most = most_registers(self.machine, plan.precision)
        if cluster == 1 and not (few or plan.tiling.splits):
            most = min(most, MOST_APART)
        offered = most if self.limit is None else min(self.limit, most)
        splits = few or plan.tiling.splits
        pieces = slices(plan)
        large_first = sorted(pieces, key=lambda piece: (not piece.recursive, -piece.words(workers)))
        orders = pieces, large_first

        def room(reuse: bool) -> _Room:
            words = (self.machine.shared_bytes - STAGING_BYTES) // 4
            return _Room(_Registers(offered, reuse), _Memory(words), splits, few, rows or 1)

        def filled(reuse: bool) -> list[_Filled]:
            return min((self._filled(order, workers, room(reuse)) for order in orders), key=_streamed)

        found = filled(False)
        if self._may_reuse(plan, pieces):
            found = min(found, filled(True), key=lambda each: (_streamed(each), _not_in_registers(each)))
        for piece, placement, missing in found:
            if piece.recursive and placement.residency != REGISTER and self.residency is None:
                stage, span = _use(plan, piece.parameter)
                collected.add(stage, f"{piece.parameter} is {missing}", span)
        remarks = plan.remarks
        if offered < most:
            bound = f"weights: at most {offered} registers a thread; with more the kernel would spill"
            remarks = (*remarks, bound)
        return attrs.evolve(plan, placements=tuple(placement for _, placement, _ in found), remarks=remarks)

    def _may_reuse(self, plan: Plan, pieces: Sequence[Slice]) -> bool:
        """Whether recursions may have the same registers: not where anything else multiplies by what is in
        registers, which then has to be there all the time, nor where a recursion may be left."""
        elsewhere = self.residency is not None or any(piece.recursive and piece.outside for piece in pieces)
        return plan.program.strata > 1 and not elsewhere and not generates(plan)

    def _filled(self, pieces: Sequence[Slice], workers: int, room: _Room) -> list[_Filled]:
        """The places of slices in their order, and what was missing where one is not in registers."""

        def fill(piece: Slice, room: _Room) -> _Filled:
            room.registers.choose(piece)
            placement = self._place(piece, workers, room)
            missing = _missing(piece, placement.residency, workers, room.registers, room.shared)
            return piece, placement, missing

        once = [piece for piece in pieces if not (piece.recursive or piece.stacked)]
        found = [fill(piece, room) for piece in pieces if piece not in once]
        if self.residency is None and sum(each.words(workers) for each in once) > room.shared.free:
            room = attrs.evolve(room, shared=_Memory(0))
        return [*found, *(fill(piece, room) for piece in once)]

    def _place(self, piece: Slice, workers: int, room: _Room) -> Placement:
        """Takes the place of a slice: registers before shared memory, and neither for a stack."""
        registers, shared = room.registers, room.shared
        need, words = piece.registers(workers), piece.words(workers)
        kind = "the recursion reads it at every level" if piece.recursive else "read once a batch"
        in_registers = self.residency == REGISTER or (piece.recursive and self.residency is None)
        kind += ", whole by every worker" if piece.repeated else ""
        size, free = f"{_size(words)} a worker", f"{shared.free * 4 // 1024} KiB"
        slot, held, rest = 0, range(0), range(0)
        own = piece.split(registers.free)
        other = (need - own) * piece.packed * THREADS
        fits = own > 0 and other <= shared.free + LENT_BYTES // 4
        splits = in_registers and room.splits and fits and piece.fits_registers
        if in_registers and need <= registers.free and piece.fits_registers:
            reason = f"{kind}; {need} registers a thread, {registers.free} were free"
            residency, held = REGISTER, registers.take(need)
        elif self._is_sparse(piece, workers, room):
            words = piece.sparse_words(workers)
            whose = f"{piece.kept} of {piece.columns} elements of a row, with their columns"
            reason = f"{kind}; {whose}: {_size(words)} a worker, {free} were free"
            residency, slot = SPARSE, shared.take(words)
        elif splits and (room.first or words > shared.free):
            reason = (
                f"{kind}; {own} of {need} registers a thread, the rest in {_size(other)} of shared memory"
            )
            residency, held = REGISTER, registers.take(own)
            rest = range(shared.take(other), shared.used)
        elif self.residency != STREAMED and words <= shared.free and not piece.stacked:
            reason = f"{kind}; {size}, {free} were free"
            residency, slot = SHARED, shared.take(words)
        else:
            residency = STREAMED
            if self.residency == STREAMED:
                reason = "asked for"
            elif piece.stacked:
                reason = f"{kind}; {size} of one at a time, chosen by the rows of an instruction"
            elif not (piece.recursive or shared.size):
                reason = f"{kind}; {size}: not all such weights fit, and a part would take the room of tiles"
            else:
                reason = (
                    f"{kind}; {size} and {need} registers a thread do not fit: "
                    f"{free} and {registers.free} registers are left"
                )
        return Placement(
            piece.parameter,
            piece.units,
            piece.gates,
            piece.columns,
            residency,
            slot,
            words * 4,
            reason,
            piece.repeated,
            held,
            rest,
            piece.kept,
        )

    def _is_sparse(self, piece: Slice, workers: int, room: _Room) -> bool:
        """Whether a slice that registers have no room for is kept as the elements that are not zero: where it
        is asked for, or levels of the expected rows take less time than with all of it, wherever that is."""
        if not piece.kept or piece.sparse_words(workers) > room.shared.free:
            return False
        if self.residency is not None or not piece.recursive:
            return self.residency == SPARSE
        other = READ_SHARED if piece.words(workers) <= room.shared.free else READ_STREAMED
        return room.rows * GATHERED * sparse.pairs(piece.kept) < (other + room.rows) * piece.columns


@attrs.frozen
class _Room:
    """What a worker has room for. splits: a slice without room in either may be in registers, as far as there
    are such, and in shared memory; first: even one that has room in shared memory. rows: of a level, as far
    as that is known."""

    registers: _Registers
    shared: _Memory
    splits: bool
    first: bool
    rows: int


_Filled = tuple[Slice, Placement, str]


def _streamed(found: list[_Filled]) -> int:
    """Bytes a worker that levels of recursions stream."""
    return sum(p.bytes_per_worker for piece, p, _ in found if piece.recursive and p.residency == STREAMED)


def _not_in_registers(found: list[_Filled]) -> int:
    """Bytes a worker of recursions that are elsewhere."""
    recursive = [place for piece, place, _ in found if piece.recursive]
    return sum(4 * len(p.rest) if p.residency == REGISTER else p.bytes_per_worker for p in recursive)


@attrs.define
class _Memory:
    """Words of a worker, given out from the first on."""

    size: int
    used: int = 0

    @property
    def free(self) -> int:
        return max(0, self.size - self.used)

    def take(self, count: int) -> int:
        """The first of `count`."""
        self.used += count
        return self.used - count


class _Registers:
    """Registers of a thread, given out from the first on: to all, or, with `reuse`, by stratum, as every
    recursion has all of them for what it alone uses."""

    def __init__(self, size: int, reuse: bool) -> None:
        self.size, self._reuse = size, reuse
        self._used: dict[int | None, int] = {}
        self._strata: frozenset[int] | None = None

    def choose(self, piece: Slice) -> None:
        """Those for a slice, from here on."""
        self._strata = piece.strata if self._reuse and piece.strata else None

    def _first(self) -> int:
        """The first one that no other slice has meanwhile."""
        whose = [used for stratum, used in self._used.items() if self._shared_with(stratum)]
        return max(whose, default=0)

    def _shared_with(self, stratum: int | None) -> bool:
        return stratum is None or self._strata is None or stratum in self._strata

    @property
    def free(self) -> int:
        return self.size - self._first()

    def take(self, count: int) -> range:
        """So many of them."""
        first = self._first()
        self._used |= dict.fromkeys(self._strata or (None,), first + count)
        return range(first, first + count)


def _size(words: int) -> str:
    return f"{words * 4 / 1024:.0f} KiB"


def _missing(piece: Slice, residency: str, workers: int, registers: _Registers, shared: _Memory) -> str:
    """Where a weight of the recursion is kept instead of in registers, and what was missing."""
    if residency == SPARSE:
        return f"kept as {piece.kept} elements of a row with their columns, in shared memory"
    kept = "kept in shared memory, not in registers" if residency == SHARED else "not kept on the chip"
    if piece.stacked:
        return f"{kept}: it is a stack, of which the rows of an instruction choose one"
    if piece.both_ways:
        return f"{kept}: it is multiplied both as it is and transposed in one direction of the program"
    missing = f"it takes {piece.registers(workers)} registers a thread, and {registers.free} are free"
    if residency == STREAMED:
        packed = f", {_size(piece.sparse_words(workers))} packed" if piece.kept else ""
        free = f"{shared.free * 4 // 1024} KiB are free"
        missing += f"; or {_size(piece.words(workers))}{packed} a worker, and {free}"
    return f"{kept}: {missing}"
