"""What a launch is predicted to cost: the work of a queue of instructions, counted for its busiest worker.

In: a plan with placements, how many replicas and workers run it, the instructions of a queue. Out: counts
in the order of `Constants`, so that a time is their product with a machine's constants, and so that
constants can be fitted to measured times. The counts follow from the plan alone: nothing is measured here.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import cutting, isa
from dnc.ir.machine import Constants, machine
from dnc.ir.ops import OPS
from dnc.ir.plan import (
    BF16,
    SHARED,
    SPARSE,
    STREAMED,
    TF32,
    UNIT,
    Address,
    BufferAddress,
    DenseGradient,
    Placement,
    Plan,
    Product,
    RepeatedAddress,
    Segment,
    SlotsAddress,
    TransposedProduct,
    unit_share,
)
from dnc.ir.program import LEVEL
from dnc.ir.repeated import repeated_parts

Counts = NDArray[np.float64]
# Rows that one reading of weights in shared memory serves, where there are so many.
SHARED_ROWS = 4
# What operands and partial sums of a replica that is no cluster cost at most, against a cluster's: of 128
# workers a level of four gates with 512 units took 1.2 us a row on an H200, where the bytes at the price of a
# cluster are 0.2. Of 33 workers 16 rows took 22 us, forward and backward: 2.5 times that price.
FAR = 6.0
FAR_WORKERS = 13.2  # of fewer workers one such price for so many
# What repeated products and cells of a row cost, against their counts: so gated cells of 64 or 128 units are
# expected to gain by them up to about as many samples as on an H200.
REPEATED = 1.6
# What an operation of a product takes on tensor cores, of its time otherwise: fitted to launches on an H200.
# They work on whole blocks of vertices, which lack EMPTY on the average, and not for as few as FEW_ROWS.
ON_CORES, EMPTY, FEW_ROWS = {TF32: 0.3, BF16: 0.3}, 3.5, 2
# What an element of a sparse row takes, whose operand is gathered, of the time of one in registers.
GATHERED = 12.0
NAMES = tuple(field.name for field in attrs.fields(Constants))
LAUNCH, INSTRUCTION, CLUSTER, EXCHANGE, GRID, FLOP, TILED, ELEMENT, BYTE, SHARED_BYTE = range(len(NAMES))


def nanoseconds(counts: Counts, constants: Constants) -> float:
    """The time of what was counted."""
    return float(counts @ np.array(attrs.astuple(constants)))


@attrs.frozen(eq=False)
class _Share:
    """What an instruction on some rows costs a worker.

    row: for every row of the instruction. product: the same of products, which tensor cores round up. own:
    for every row of the worker's, where rows are shared out. tile: for every `size` rows. few: for every
    SHARED_ROWS of them, once at least.
    """

    row: Counts
    product: Counts
    own: Counts
    tile: Counts
    few: Counts
    size: int


class Costs:
    """The counts of a plan's instructions on `replicas` x `workers` workers."""

    def __init__(self, plan: Plan, replicas: int, workers: int) -> None:
        assert plan.tiling is not None
        self.plan, self.replicas, self.workers = plan, replicas, workers
        self.tiling, self.on_gpu = plan.tiling, machine(plan.target).is_gpu
        self._on_cores = ON_CORES.get(plan.precision)
        self._far = 1.0
        if self.on_gpu and self.tiling.cluster == 1 and workers > 1:
            self._far = min(FAR, max(1.0, workers / FAR_WORKERS))
        self._streamed = {_key(p) for p in plan.placements if p.residency == STREAMED or not self.on_gpu}
        self._shared = {_key(p): 1.0 for p in plan.placements if p.residency == SHARED}
        self._shared |= {_key(p): 4.0 * len(p.rest) / p.bytes_per_worker for p in plan.placements if p.rest}
        self._sparse = {_key(p): p.pairs / p.columns for p in plan.placements if p.residency == SPARSE}
        self._partial = {buffer.name for buffer in plan.buffers if buffer.partial}
        self._width = {buffer.name: buffer.width for buffer in plan.buffers}
        self._segments = {segment.name: self._segment(segment) for segment in plan.segments}
        self._gradients = {gradient.name: gradient for gradient in plan.dense_gradients}
        self._tables = {table.parameter: table.width for table in plan.table_gradients}

    def launch(self) -> Counts:
        """A launch with its resident weights, and nothing else."""
        found = np.zeros(len(NAMES))
        found[LAUNCH] = 1
        placements = [p for p in self.plan.placements if _key(p) not in self._streamed]
        found[BYTE] = sum(place.bytes_per_worker for place in placements)
        return found

    def queue(self, instructions: NDArray[np.int32]) -> Counts:
        """The instructions of a replica's queue, [count, INSTRUCTION_WORDS]."""
        found = np.zeros(len(NAMES))
        found[INSTRUCTION] = len(instructions)
        for number in np.unique(instructions[:, 0]):
            opcode = self.plan.opcodes[int(number)]
            words = instructions[instructions[:, 0] == number, 1:].astype(np.float64)
            fields = {name: words[:, at] for at, name in enumerate(opcode.fields)}
            found += self._opcode(opcode.name, fields, len(words))
        return found

    def segment(self, name: str, rows: Counts) -> Counts:
        """Instructions of a segment, on so many rows each; without fetching them."""
        share = self._segments[name]
        found: Counts = share.row * rows.sum() + share.own * np.ceil(rows / self.workers).sum()
        found += share.product * self._product_rows(rows).sum()
        found += share.tile * np.ceil(rows / share.size).sum()
        found += share.few * np.maximum(rows / SHARED_ROWS, 1.0).sum()
        return found

    def _product_rows(self, rows: Counts) -> Counts:
        """How many rows, without tensor cores, take as long as so many do."""
        if self._on_cores is None:
            return rows
        return np.where(rows > FEW_ROWS, (rows + EMPTY) * self._on_cores, rows)

    def exchange(self) -> Counts:
        """The workers of a replica meet."""
        found = np.zeros(len(NAMES))
        if self.workers > 1:
            found[CLUSTER if self.tiling.cluster > 1 else EXCHANGE] = 1
        return found

    # ---- instructions -----------------------------------------------------------------------------

    def _opcode(self, name: str, fields: dict[str, Counts], count: int) -> Counts:
        found, grid = np.zeros(len(NAMES)), self.replicas * self.workers
        if name in self._segments:
            return self.segment(name, fields["rows"])
        if name == isa.REPLICA_BARRIER:
            return self.exchange() * count
        if name == isa.GRID_BARRIER:
            found[GRID] = count if grid > 1 else 0
        elif name in self._gradients:
            found[TILED] = self._gradient(self._gradients[name], fields, grid)
        elif name == isa.OUTER:
            times = [self._outer(gradient) for gradient in self.plan.dense_gradients]
            own = np.array(times)[fields["gradient"].astype(int)]
            found[TILED] = (own * fields["rows"]).sum() / grid
        elif name == isa.REDUCE:
            found[ELEMENT] = fields["rows"].sum()
        elif "count" in fields:  # norm and updates of dense parameters
            found[BYTE] = 12 * fields["count"].sum() / grid
        elif "tokens" in fields:
            width = self._tables.get(name.rpartition(" ")[2], 0)
            found[BYTE] = 8 * np.ceil(fields["tokens"] / grid).sum() * width
        return found

    def _gradient(self, gradient: DenseGradient, fields: dict[str, Counts], grid: int) -> float:
        """Operations of the worker with the most tiles of a weight gradient."""
        columns = max(1, gradient.columns)
        if not self.on_gpu:
            return float(2.0 * gradient.rows * columns * fields["rows"].sum() / grid)
        shapes = cutting.gradient_tiles(gradient)
        chosen = fields["tile"].astype(int)
        size = np.array([shape.rows * shape.columns for shape in shapes])[chosen]
        tiles = np.array([cutting.tile_count(gradient, shape) for shape in shapes])[chosen]
        time = np.array([cutting.on_cores(shape, self.plan.precision) for shape in shapes])[chosen]
        pieces = np.ceil(tiles * fields["chunks"] / grid)
        return float((2.0 * pieces * size * time * fields["rows"] / fields["chunks"]).sum())

    def _outer(self, gradient: DenseGradient) -> float:
        """Operations of a row of all tiles that `outer` instructions cut a gradient into."""
        tile = cutting.outer_tile(gradient)
        elements = cutting.outer_tiles(gradient) * tile.rows * tile.columns
        return 2.0 * elements * cutting.on_cores(tile, self.plan.precision)

    def _segment(self, segment: Segment) -> _Share:
        row, product, own, tile, few = np.zeros((5, len(NAMES)))
        share = _Share(row, product, own, tile, few, self.tiling.tile)
        if segment.mapping == UNIT:
            self._unit(segment, share)
        else:
            self._vertex(segment, share)
        return share

    def _unit(self, segment: Segment, share: _Share) -> None:
        """Every worker takes all rows, and its units."""
        units = unit_share(segment.units, self.workers)
        fraction = units / segment.units
        flop = FLOP if self.plan.program.stage(segment.stage).placement == LEVEL else TILED
        products: tuple[Product | TransposedProduct, ...] = (*segment.products, *segment.transposed)
        for product in products:
            rows, columns = self.plan.program.parameter(product.parameter).type.shape
            repeated = isinstance(product, Product) and product.result in segment.repeated
            own = rows * (1.0 if repeated else fraction)
            density = self._sparse.get((product.parameter, segment.units, repeated))
            time = share.product if density is None else share.row  # nothing sparse is on tensor cores
            gathered = 1.0 if density is None else density * GATHERED
            time[flop] += 2.0 * own * columns * gathered * (REPEATED if repeated else 1.0)
            if (product.parameter, segment.units, repeated) in self._streamed:
                share.tile[BYTE] += 4.0 * own * columns
            else:
                key = product.parameter, segment.units, repeated
                share.few[SHARED_BYTE] += 4.0 * own * columns * self._shared.get(key, 0.0)
            if isinstance(product, TransposedProduct):
                share.row[BYTE] += 4.0 * columns * self._far
            else:
                pieces = [p for p in product.pieces if not isinstance(p.address, RepeatedAddress)]
                width = sum(p.width * self._runs(p.address) for p in pieces)
                share.row[BYTE] += 4.0 * width * self._far
        for part, own in zip(repeated_parts(segment), (REPEATED, fraction), strict=True):
            loads = [load for load in part.loads if not isinstance(load.address, RepeatedAddress)]
            for load in loads:
                share.row[BYTE] += 4.0 * own * load.value.tensor.size * self._runs(load.address) * self._far
            share.row[ELEMENT] += own * _operations(part)

    def _vertex(self, segment: Segment, share: _Share) -> None:
        """Every worker takes its rows, and computes them whole."""
        share.own[ELEMENT] += _operations(segment)
        for load in segment.loads:
            share.own[BYTE] += 4.0 * load.value.tensor.size * self._runs(load.address)

    def _runs(self, address: Address) -> int:
        """How many values are added up for one that is read."""
        partial = isinstance(address, BufferAddress) and address.buffer in self._partial
        partial = partial or (isinstance(address, SlotsAddress) and address.partial is not None)
        return self.workers if partial else 1


def _key(placement: Placement) -> tuple[str, int, bool]:
    return placement.parameter, placement.units, placement.repeated


def _operations(segment: Segment) -> float:
    found = 0
    for op in segment.cell.ops:
        found += OPS[op.opcode].flops(tuple(value.type for value in op.operands), op.result.type)
    return float(found)
