"""The plan: a program cut into worker-local segments, with buffers, index lists and placements.

`passes/cut.py` cuts every stage into `Segment`s exactly where distributions disagree; the later
planning passes fill in where weights live, tile sizes and opcodes. Code generators, the encoder,
the verifier and the reference VM read nothing but a plan, so this file is the border between the
compiler and every target.

Memory is one *pool* of 4-byte words, float32 or int32. Addresses in index lists and in the
header of a schedule count units of 4 words from the start of the pool. The pool starts with a
row of zeros, so the address 0 reads as an absent vertex.

Distributions (docs/architecture.md). The workers of a replica share its vertices in one of two ways.
UNIT: every worker takes all rows of a group and its own hidden units, `units` split evenly over
the workers (rows g * units + u of every gate g of a unit stay together: GRNN's output tiling).
VERTEX: every worker takes its own rows of the group and computes them whole. A transposed product
on units yields *partials*: every worker stores its own sum, and whoever loads adds them up. In a UNIT
segment some values may be REPEATED: every worker computes all of them, for itself alone.
"""

from __future__ import annotations

from typing import TypeVar

import attrs

from dnc.ir import sparse
from dnc.ir.cell import Cell, Value
from dnc.ir.index_lists import ChildrenList as ChildrenList
from dnc.ir.index_lists import ClassList as ClassList
from dnc.ir.index_lists import GatherList as GatherList
from dnc.ir.index_lists import IndexList as IndexList
from dnc.ir.index_lists import NoiseList as NoiseList
from dnc.ir.index_lists import OperandList as OperandList
from dnc.ir.index_lists import ShareList as ShareList
from dnc.ir.index_lists import SlotList as SlotList
from dnc.ir.index_lists import SlotSource as SlotSource
from dnc.ir.index_lists import TableList as TableList
from dnc.ir.index_lists import VectorList as VectorList
from dnc.ir.program import LEVEL, Program
from dnc.ir.sent import Polled as Polled
from dnc.ir.sent import Pushed as Pushed
from dnc.ir.weight_format import WeightFormat as WeightFormat
from dnc.ir.weight_format import padded as padded

Runs = TypeVar("Runs")

UNIT, VERTEX = "unit", "vertex"
ROWS, ENTRIES = "rows", "entries"

MANY_UNITS = 32  # of a worker: so many that up to 3 more are no matter

# Residency of a weight slice. SPARSE: what is not zero of every row, with its columns, in shared memory.
REGISTER, SHARED, STREAMED, SPARSE = "register", "shared", "streamed", "sparse"


@attrs.frozen
class Buffer:
    """Rows of `width` floats (a multiple of 4), one per row of `space` or per entry of `children`.

    With `partial` a row holds one run of `width` floats per worker of the replica.
    """

    name: str
    space: str
    width: int
    partial: bool = False
    children: str | None = None


# ---- addresses: how a segment reads a value ------------------------------------------------------


@attrs.frozen
class ParameterAddress:
    """Element i of a dense parameter, from `offset`: the same for every row.

    Of a stack: element i of the one that `select`, the list of an index, names for the row.
    """

    parameter: str
    offset: int = 0
    select: str | None = None


@attrs.frozen
class BufferAddress:
    """Element i of the row's own record in `buffer`, from `offset` (partials are added up)."""

    buffer: str
    offset: int = 0


@attrs.frozen
class GatherAddress:
    """Element i of the record that `list` names for the row, from `offset`."""

    list: str
    offset: int = 0


@attrs.frozen
class ChildrenAddress:
    """A list value: one element per child in the ragged `list`, from `offset` in its record."""

    list: str
    offset: int = 0


@attrs.frozen
class SlotsAddress:
    """The sum over the row's slots: the `plain` list in order, then the `partial` list.

    `width` is the distance between the runs of a partial slot.
    """

    plain: str | None
    partial: str | None
    width: int
    offset: int = 0


@attrs.frozen
class IndexAddress:
    """The integer that `list` holds for the row."""

    list: str


@attrs.frozen
class EntriesAddress:
    """A list of scalars that another segment of the stage keeps in `buffer`: a record per entry of
    the ragged list `children`."""

    buffer: str
    children: str


@attrs.frozen
class SeedAddress:
    """The launch's loss scale."""


@attrs.frozen
class RepeatedAddress:
    """Element i of a repeated value of the segment, from `offset`: the worker has made it itself."""

    value: Value
    offset: int = 0


Address = (
    ParameterAddress
    | BufferAddress
    | GatherAddress
    | ChildrenAddress
    | EntriesAddress
    | SlotsAddress
    | IndexAddress
    | SeedAddress
    | RepeatedAddress
)


@attrs.frozen
class Load:
    """Binds `value`, an input of the segment's cell, to an address."""

    value: Value
    address: Address


@attrs.frozen
class Store:
    """Writes `value` to the row's record of `buffer`, from `offset`.

    For a list value the record is that of each entry of `children`.
    """

    value: Value
    buffer: str
    offset: int = 0
    children: str | None = None


@attrs.frozen
class Piece:
    """`width` consecutive elements of a product's operand, read from `address`."""

    address: Address
    width: int


@attrs.frozen
class Product:
    """result[r] = sum over k of parameter[r, k] * operand[k]; runs before the segment's cell.

    UNIT segments compute the worker's own rows. The operand is the concatenation of `pieces`,
    complete before the segment starts, or repeated. `select` is the list of the index that selects a matrix
    of a stack; all rows of an instruction have the same one there.
    """

    result: Value
    parameter: str
    pieces: tuple[Piece, ...]
    select: str | None = None


@attrs.frozen
class TransposedProduct:
    """result[k] = sum over the worker's rows r of parameter[r, k] * delta[r]; runs after the cell.

    `stores` write parts of the result: (buffer, offset in its record, begin, end); all these
    buffers are partial. `select` as in a `Product`.
    """

    delta: Value
    parameter: str
    columns: int
    stores: tuple[tuple[str, int, int, int], ...]
    select: str | None = None


@attrs.frozen
class ListScratch:
    """Where a VERTEX segment keeps a value of one scalar per child: a record per entry of the
    ragged list `children`."""

    value: Value
    buffer: str
    children: str


@attrs.frozen
class Segment:
    """Work of one stage between two exchanges.

    In a UNIT segment every value of the cell has a width that is a multiple of `units`; a value of
    g * units elements is g gates, and all operations work on the same unit of their operands.
    In a VERTEX segment the cell may hold any operation and `products` is empty (products are
    operations of the cell). `step` numbers the segments of a stage: those of one step are
    independent, and an exchange stands between steps. `repeated` are the values of a UNIT segment, results
    of products and of operations, that every worker makes in whole, from what is complete before it starts.
    """

    name: str
    stage: str
    space: str
    mapping: str
    step: int
    units: int
    loads: tuple[Load, ...]
    products: tuple[Product, ...]
    cell: Cell
    stores: tuple[Store, ...]
    transposed: tuple[TransposedProduct, ...] = ()
    scratch: tuple[ListScratch, ...] = ()
    repeated: tuple[Value, ...] = ()

    @property
    def summed(self) -> set[str]:
        """The buffers in which it leaves partial sums."""
        return {buffer for turned in self.transposed for buffer, *_ in turned.stores}


@attrs.frozen
class DenseGradient:
    """Gradient of a dense parameter: sum over the rows of `space` of delta (x) x.

    delta is [rows] floats at `delta` (a BufferAddress). Without pieces the deltas are summed: they
    are as large as the parameter, which may then have any shape. Of a stack an instruction adds to
    one parameter the rows whose index `field` selects it. table: over whose touched rows it runs instead
    where a `TableProduct` sums the deltas first; "" for none.
    """

    name: str
    parameter: str
    space: str
    delta: BufferAddress
    rows: int
    pieces: tuple[Piece, ...]
    field: str = ""
    table: str = ""

    @property
    def columns(self) -> int:
        """Elements of the operand; 0 without one."""
        return sum(piece.width for piece in self.pieces)


@attrs.frozen
class TableProduct:
    """A term of a table's gradient: for every touched token the sum of its vertices' deltas, times a matrix.

    result[k] = sum over r of parameter[r, k] * (sum over the token's vertices of delta[r]). source: the
    records of deltas, of `rows` floats. Where vertices are many, records of the buffer `sums` hold the sums,
    one a token; else it is another name of the source's. Lists of slots by token: `deltas`, and `terms`, what
    the product adds up: either those or the sums.
    """

    parameter: str
    rows: int
    source: SlotSource
    sums: str
    deltas: str
    terms: str


@attrs.frozen
class TableGradient:
    """Gradient of a table: per touched token the sum of its slots, plain sources first, and of products."""

    parameter: str
    width: int
    plain: tuple[SlotSource, ...]
    partial: tuple[SlotSource, ...]
    products: tuple[TableProduct, ...] = ()

    @property
    def sources(self) -> tuple[SlotSource, ...]:
        """All of them, in order."""
        return (*self.plain, *self.partial, *(product.source for product in self.products))


@attrs.frozen
class Result:
    """What the host reads back; one record of `buffer` a row.

    kind: loss and metric are summed over the rows on the device; output and column (the values of
    a metric that needs every row, called metric.position) are read as they are.
    """

    kind: str
    name: str
    buffer: str
    space: str
    shape: tuple[int, ...]
    dtype: str


@attrs.frozen
class Placement:
    """Where the slice of a parameter that a worker needs lives, and why.

    `units` and `gates` say which rows belong together (rows = gates * units); `columns` is K.
    `slot` is the first word of a SHARED or SPARSE slice. `registers` are those of a thread that hold a
    REGISTER one; what they have no room for is in the words `rest` of shared memory. repeated: every worker
    has all units, for a product that is repeated. kept: elements of a row that are not zero, at most.
    """

    parameter: str
    units: int
    gates: int
    columns: int
    residency: str
    slot: int
    bytes_per_worker: int
    reason: str
    repeated: bool = False
    registers: range = range(0)
    rest: range = range(0)
    kept: int = 0

    @property
    def pairs(self) -> int:
        """Elements of a row that a SPARSE slice has room for."""
        return sparse.pairs(self.kept)

    @property
    def in_shared(self) -> bool:
        """Whether it lies in shared memory from `slot` on."""
        return self.residency in (SHARED, SPARSE)


@attrs.frozen
class Tiling:
    """Sizes that the kernel is built for.

    workers: of a replica. threads: of a worker. cluster: CTAs of a cluster (1 = none). tile:
    vertices worked on at a time. window: words of the schedule held on chip. splits: whether weights that
    would come from L2 at every level are in registers and shared memory together, if these have room.
    """

    workers: int
    threads: int
    cluster: int
    tile: int
    window: int
    splits: bool = False


@attrs.frozen
class Opcode:
    """One instruction of the model's set; `fields` name its words after the opcode.

    `region` says in which part of a launch it may stand (`dnc/ir/regions.py`).
    """

    name: str
    number: int
    fields: tuple[str, ...]
    region: int


class PlanTooLarge(Exception):
    """A kernel has no room for what an instruction of the plan needs in shared memory."""


# Of products: float32 throughout; or on tensor cores, with operands rounded to tf32 (10 bits of mantissa), or
# as sums of two such numbers, which is about as exact as float32, or rounded to bf16 (7 bits). Sums are
# float32 always.
FP32, TF32, TF32X3, BF16 = "fp32", "tf32", "tf32x3", "bf16"
PRECISIONS = (FP32, TF32, TF32X3, BF16)


def weights_of_register(precision: str) -> int:
    """Weights that a register holds: two where products round them to 16 bits."""
    return 2 if precision == BF16 else 1


@attrs.frozen
class Plan:
    """Everything a target and the runtime need to know of a model.

    polled: what levels of a replica over the whole chip wait for by looking at it, in place of a barrier.
    reduced: partial buffers whose runs the workers of a cluster may add up before they write a record, which
    is one run then: the header of a schedule says whether they do. trains: whether it holds what training
    needs: gradients, their norm, optimizers. precision: one of PRECISIONS.
    """

    program: Program
    target: str
    buffers: tuple[Buffer, ...]
    lists: tuple[IndexList, ...]
    segments: tuple[Segment, ...]
    dense_gradients: tuple[DenseGradient, ...]
    table_gradients: tuple[TableGradient, ...]
    results: tuple[Result, ...] = ()
    weight_format: WeightFormat = attrs.field(factory=WeightFormat)
    placements: tuple[Placement, ...] = ()
    tiling: Tiling | None = None
    pushes: tuple[Pushed, ...] = ()
    polled: tuple[Polled, ...] = ()
    reduced: tuple[str, ...] = ()
    opcodes: tuple[Opcode, ...] = ()
    remarks: tuple[str, ...] = ()
    trains: bool = True
    precision: str = FP32

    @property
    def table_products(self) -> tuple[TableProduct, ...]:
        """Those of all tables."""
        return tuple(product for table in self.table_gradients for product in table.products)

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`; KeyError if there is none."""
        return {buffer.name: buffer for buffer in self.buffers}[name]

    def is_reduced(self, name: str | None) -> bool:
        """Whether a list of partial slots leads to reduced buffers."""
        found = [item for item in self.lists if isinstance(item, SlotList) and item.name == name]
        return any(source.buffer in self.reduced for item in found for source in item.sources)

    def runs_in(self, buffer: Buffer, runs: Runs, workers: int) -> Runs | int:
        """Runs of a record of a buffer: of a reduced one those that a schedule says."""
        if buffer.name in self.reduced:
            return runs
        return workers if buffer.partial else 1

    def opcode(self, name: str) -> Opcode:
        """The opcode called `name`; KeyError if there is none."""
        return {opcode.name: opcode for opcode in self.opcodes}[name]


def shared_stride(columns: int) -> int:
    """Words between the rows of a slice in shared memory: an odd number of whole addresses, so that the
    same column of eight neighbouring rows lies in eight different groups of banks."""
    return 4 * (padded(columns) // 4 | 1)


def unit_share(units: int, workers: int) -> int:
    """Units of a worker, at most: where these are many, a multiple of 4, as whole addresses are. A single
    one has all of them: what every worker repeats lies gate by gate, without gaps."""
    even = -(-units // workers)
    return even if even < MANY_UNITS or workers == 1 else -(-even // 4) * 4


def unit_range(units: int, workers: int, rank: int) -> tuple[int, int]:
    """The units [begin, end) of worker `rank`."""
    share = unit_share(units, workers)
    begin = min(units, rank * share)
    return begin, min(units, begin + share)


def levels_of(plan: Plan, segment: Segment) -> list[Segment]:
    """The segments that run in the levels of a segment, if it runs in levels: one behind the other."""
    stage = plan.program.stage(segment.stage)
    if stage.placement != LEVEL:
        return []
    stages = {s.name for s in plan.program.stages if (s.turn, s.direction) == (stage.turn, stage.direction)}
    return [each for each in plan.segments if each.stage in stages]
