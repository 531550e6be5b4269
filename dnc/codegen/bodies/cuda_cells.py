"""Cells of UNIT segments on CUDA: what stands behind the products of a tile.

In: a tile whose sums are staged. Out: statements that run the cell of every vertex and unit, store what
the segment stores, and stage the deltas for the transposed products. A thread has one unit of a vertex,
or four neighbouring ones, so that a load brings 16 bytes; the bits are the same. Where a cell adds up many
runs of partial sums, several lanes have the same one (`cuda_runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_operands import NARROW
from dnc.codegen.bodies.cuda_runs import StagedParts, shares_runs, sharing, vertices_together
from dnc.codegen.bodies.cuda_staging import UnitTile, rows_of
from dnc.codegen.cells import Started, UnitCell
from dnc.codegen.emit import Expr, either, fixed, let, local, put, smaller, store_four, stride_loop, when
from dnc.codegen.quads import QUAD, UnitQuad
from dnc.ir.cell import Value
from dnc.ir.machine import THREADS
from dnc.ir.plan import (
    Address,
    BufferAddress,
    ChildrenAddress,
    GatherAddress,
    Load,
    ParameterAddress,
    Plan,
    Segment,
    SlotsAddress,
)
from dnc.ir.repeated import staged_operand
from dnc.ir.sent import MOST_CELLS

ROUNDS = MOST_CELLS // THREADS  # of cells with a unit a thread: faster than one of cells with four
MOST_EARLY = 6  # registers of loads that are not through lists, with those that are: more would be spilled


def early_loads(plan: Plan, segment: Segment) -> list[Load]:
    """What is loaded early: all that goes through lists, and rows of its own while there are registers."""
    chosen = [load for load in segment.loads if isinstance(load.address, GatherAddress)]
    taken = sum(_gates(segment, load) for load in chosen)
    for load in segment.loads:
        address = load.address
        if isinstance(address, BufferAddress) and not plan.buffer(address.buffer).partial:
            taken += _gates(segment, load)
            if taken > MOST_EARLY:
                break
            chosen.append(load)
    return chosen


def _plain_slots(segment: Segment) -> list[SlotsAddress]:
    """Where cells read plain slots, an element for every unit."""
    addresses = [load.address for load in segment.loads if load.value.tensor.size == segment.units]
    return [at for at in dict.fromkeys(addresses) if isinstance(at, SlotsAddress) and at.plain is not None]


def _are_all(segment: Segment, early: Sequence[Address]) -> bool:
    """Whether cells read nothing else, but vectors of parameters, and runs of partial sums."""

    def is_other(address: Address) -> bool:
        runs_alone = isinstance(address, SlotsAddress) and address.plain is None
        return not (address in early or runs_alone or isinstance(address, ParameterAddress))

    return not any(is_other(load.address) for load in segment.loads)


def _gates(segment: Segment, load: Load) -> int:
    return max(1, load.value.tensor.size // segment.units)


# By value, or by where plain slots are: emits the reads, and its answer what is read, gate by gate.
_Reads: TypeAlias = dict[Value | SlotsAddress, Callable[[], Started]]


class EarlyLoads:
    """What the cells of a few vertices load through lists, or a little of their own rows: under way
    during the products, or while runs of partial sums come; then with the plain slots beside these.

    All loads would take more registers than there are. A thread without a cell loads what one with it
    does, and throws it away.
    """

    def __init__(self, tile: UnitTile, most: int = NARROW) -> None:
        """Emits where they read, so that this is known when `start` comes. most: so many vertices leave every
        thread one cell at most."""
        self.held: dict[Value | SlotsAddress, Any] = {}
        self.started = False
        segment, units, plain = tile.segment, tile.units, list[SlotsAddress]()
        chosen = [load for load in early_loads(tile.worker.plan, segment) if not _is_staged(tile, load)]
        if not chosen or most * units > THREADS:
            return
        if not segment.products:
            plain = _plain_slots(segment)
            by_parts = vertices_together(tile.worker, segment, tile.staging.tile) > 0
            if not by_parts or not _are_all(segment, [*(load.address for load in chosen), *plain]):
                return  # cells wait for nothing, or for the others all the same
        elif shares_runs(tile.worker, segment):
            return  # other threads have the cells
        for address in plain:
            self.held[address] = local("alone", "float32", T.float32(0.0))
        for load in chosen:
            self.held[load.value] = local("early", "float32", T.float32(0.0), _gates(segment, load))
        self.few = tile.count <= most
        item = let("item", smaller(tile.worker.thread, tile.count * units - 1))
        own = let("own", item % units)
        cell = _unit_cell(tile, let("vertex", item // units), own)
        if units * tile.worker.workers > segment.units:
            cell = attrs.evolve(cell, unit=let("near", smaller(cell.unit, segment.units - 1)), values={})
        self._reads = self._places(cell, chosen)

    def start(self) -> None:
        """Emits the loads, once."""
        if self.held and not self.started:
            self.started = True
            with when(self.few):
                self._keep(self._reads)

    def _places(self, cell: UnitCell, loads: Sequence[Load]) -> _Reads:
        """Emits where a cell reads what is held; plain slots first."""
        reads: _Reads = {load.value: cell.load(load) for load in loads}
        slots: _Reads = {key: _plain_slot(cell, key) for key in self.held if isinstance(key, SlotsAddress)}
        return slots | reads

    def _keep(self, reads: _Reads) -> None:
        for key, start in reads.items():
            for gate, found in enumerate(start()()):
                put(self.held[key], gate, found)

    def alone(self, address: SlotsAddress) -> Expr | None:
        """The only plain slot, in a cell that was given what is loaded, if that is there."""
        return self.held[address][0] if address in self.held else None

    def give(self, cell: UnitCell) -> None:
        """Loads what is not there yet, and hands it to the cell."""
        if self.held:
            loads = [load for load in cell.segment.loads if load.value in self.held]
            with when(tirx.Not(self.few)):
                self._keep(self._places(cell, loads))
            for load in loads:
                held = self.held[load.value]
                cell.values[load.value] = [held[gate] for gate in range(cell.gates(load.value))]


def _plain_slot(cell: UnitCell, address: SlotsAddress) -> Callable[[], Started]:
    """Emits where the only plain slot of a cell's unit is; as `UnitCell.load`."""
    slots = cell.access.slots(address, cell.row)

    def start() -> Started:
        found = slots.plain(cell.unit)
        return lambda: [found]

    return start


def unit_cells(tile: UnitTile, early: EarlyLoads) -> None:
    """Cells with a thread per vertex and unit."""
    _one_unit(tile, early, 0, tile.count, None)


def gathered_cells(tile: UnitTile, early: EarlyLoads) -> None:
    """The same, of vertices for which all threads add up runs of partial sums in front of the cells, some
    vertices after another. Barriers inside, none at the end."""
    worker = tile.worker
    parts = StagedParts(tile, vertices_together(worker, tile.segment, tile.staging.tile))
    early.start()
    with stride_loop("staged", 0, tile.count, parts.vertices) as begin:
        count = let("together", smaller(tile.count - begin, parts.vertices))
        parts.add_up(begin, count)
        worker.synchronize()
        _one_unit(tile, early, begin, count, parts)
        with when(begin + parts.vertices < tile.count):
            worker.synchronize()


def _one_unit(tile: UnitTile, early: EarlyLoads, begin: Expr, count: Expr, parts: StagedParts | None) -> None:
    """Cells of `count` vertices of a tile from `begin` on. parts: what was added up for them."""
    worker, units = tile.worker.here(), tile.units
    with stride_loop("cell", worker.thread, count * units, THREADS) as item:
        number = fixed("number", item // units)
        vertex = begin + number
        own = fixed("own", item - number * units)
        near = tile
        if parts is not None:
            gathered = parts.reader(number, own)
            access = attrs.evolve(tile.worker.access, gathered=gathered, alone=early.alone)
            near = attrs.evolve(tile, worker=attrs.evolve(tile.worker, access=access))
        cell = _unit_cell(near, vertex, own)

        def body() -> None:
            early.give(cell)
            cell.run()
            cell.store()
            _push_states(tile, cell, vertex)
            stage_deltas(tile, [cell], own, vertex)

        inside_or_zeros(tile, cell.unit, body, own, 1, vertex)


def goes_in_pairs(tile: UnitTile) -> bool:
    """Whether threads may have a unit of two vertices at a time: of a tile that is two rounds of cells, where
    levels are known to be wide at times."""
    units, segment, worker = tile.units, tile.segment, tile.worker
    if not worker.plan.reduced or worker.access.added is False or worker.push is not None:
        return False
    two_rounds = THREADS < tile.staging.tile * units <= ROUNDS * THREADS
    whole = THREADS % units == 0 and units * worker.workers == segment.units
    lists = any(isinstance(load.address, ChildrenAddress) for load in segment.loads)
    return two_rounds and whole and not lists


def paired_cells(tile: UnitTile) -> None:
    """Cells with a unit of two vertices a thread, where a vertex each is not enough: what both load is under
    way together, as rounds would wait one after another."""
    worker, apart = tile.worker.here(), THREADS // tile.units
    first = fixed("vertex", worker.thread // tile.units)
    own = fixed("own", worker.thread - first * tile.units)
    second = let("second", first + apart)
    near = fixed("near", smaller(second, tile.count - 1))
    pair = [(_unit_cell(tile, vertex, own), vertex) for vertex in (first, near)]
    under_way = [(cell, vertex, cell.start()) for cell, vertex in pair]
    for cell, vertex, finish in under_way:
        with nullcontext() if vertex is first else when(second < tile.count):
            finish()
            cell.store()
            stage_deltas(tile, [cell], own, vertex)


def shared_cells(tile: UnitTile) -> None:
    """Cells with some lanes of a warp per vertex and unit, where runs of partial sums are many."""
    worker = tile.worker.here()
    tile = attrs.evolve(tile, worker=worker)
    lanes = sharing(tile)
    access = attrs.evolve(worker.access, add_runs=lanes.sum)
    tile = attrs.evolve(tile, worker=attrs.evolve(worker, access=access))
    with stride_loop("vertex", lanes.vertex, tile.count, lanes.step) as vertex:
        cell = _unit_cell(tile, vertex, lanes.own)

        def body() -> None:
            cell.run()
            with when(lanes.writes):
                cell.store()
                stage_deltas(tile, [cell], lanes.own, vertex)

        inside_or_zeros(tile, cell.unit, body, lanes.own, 1, vertex)


def quad_cells(tile: UnitTile) -> None:
    """Cells with a thread per vertex and four units; with lanes that add up runs together while there are
    more of these."""
    if shares_runs(tile.worker, tile.segment):
        few = tile.count * tile.units <= ROUNDS * THREADS
        either(few, partial(shared_cells, tile), partial(cells_in_quads, tile))
    else:
        cells_in_quads(tile)


def cells_in_quads(tile: UnitTile) -> None:
    """Cells with a thread per vertex and four units."""
    access = attrs.evolve(tile.worker.access, polls=None)  # levels that poll are too narrow to come here
    tile = attrs.evolve(tile, worker=attrs.evolve(tile.worker, access=access))
    worker, units = tile.worker, tile.units
    quads = units // QUAD
    with stride_loop("cell", worker.thread, tile.count * quads, THREADS) as item:
        vertex = fixed("vertex", item // quads)
        own = fixed("own", (item - vertex * quads) * QUAD)
        unit = fixed("unit", tile.first_unit + own)

        def product(result: Value, gate: int, i: int) -> Expr:
            return staged_sum(tile, result, gate, own + i, vertex)

        def body() -> None:
            row = fixed("row", tile.first + vertex)
            made = UnitQuad(worker.access, worker.math, tile.segment, row, unit, product)
            for i, one in enumerate(made.cells):
                _give_vectors(tile, one, own + i)
                _give_operands(tile, one, vertex)
            made.run()
            made.store()
            stage_deltas(tile, made.cells, own, vertex)

        inside_or_zeros(tile, unit, body, own, QUAD, vertex)


def _unit_cell(tile: UnitTile, vertex: Expr, own: Expr) -> UnitCell:
    """The cell of a vertex of the tile and one of the worker's own units."""
    worker = tile.worker

    def product(result: Value, gate: int) -> Expr:
        return staged_sum(tile, result, gate, own, vertex)

    unit = fixed("unit", tile.first_unit + own)
    row = fixed("row", tile.first + vertex)
    cell = UnitCell(worker.access, worker.math, tile.segment, row, unit, product)
    _give_vectors(tile, cell, own)
    _give_operands(tile, cell, vertex)
    return cell


def staged_sum(tile: UnitTile, result: Value, gate: int, own: Expr, vertex: Expr) -> Expr:
    """A product's sum for a gate of one of the worker's units."""
    plane = tile.staging.sums[result]
    return let("pre", tile.worker.staging[plane.place(gate * tile.units + own, vertex)])


def stage_deltas(tile: UnitTile, cells: Sequence[UnitCell], own: Expr, vertex: Expr) -> None:
    """Stages what neighbouring units, from `own` on, leave for the transposed products."""
    staging = tile.worker.staging
    for value, plane in tile.staging.deltas.items():
        for gate, deltas in enumerate(zip(*(cell.values[value] for cell in cells), strict=True)):
            first = gate * tile.units + own
            if len(cells) == QUAD and plane.row == 1 and (plane.at | plane.vertex | tile.units) % QUAD == 0:
                store_four(staging, plane.place(first, vertex), deltas)
            else:
                for i, delta in enumerate(deltas):
                    put(staging, plane.place(first + i, vertex), delta)


def _push_states(tile: UnitTile, cell: UnitCell, vertex: Expr) -> None:
    """Sends what the next level reads of this one to the other workers, too."""
    push = tile.worker.push
    if push is not None and push.states():
        with when(push.sends):
            for item, value in push.states():
                push.send_state(item, vertex, cell.unit, cell.values[value][0])


def _give_vectors(tile: UnitTile, cell: UnitCell, own: Expr) -> None:
    """Hands a cell what it reads of the vectors in shared memory; `own`: its unit among the worker's."""
    worker = tile.worker
    for load in cell.segment.loads:
        if isinstance(load.address, ParameterAddress) and load.address.select is None:
            slot = worker.vectors.get((load.address.parameter, cell.segment.units, worker.repeats))
            if slot is not None and load.address.offset == 0:
                first = tile.own + own
                places = [slot + gate * tile.share + first for gate in range(cell.gates(load.value))]
                cell.values[load.value] = [let("vector", worker.shared_vectors[at]) for at in places]


def _is_staged(tile: UnitTile, load: Load) -> bool:
    """Whether a load of repeated cells is an operand of their last product, which is still staged. If it was
    pushed, it is nowhere else."""
    return tile.worker.repeats and staged_operand(tile.segment, load) is not None


def _give_operands(tile: UnitTile, cell: UnitCell, vertex: Expr) -> None:
    """Hands a repeated cell what it reads of the staged operand."""
    for load in cell.segment.loads:
        if _is_staged(tile, load):
            first = vertex * tile.staging.operand_words + staged_operand(tile.segment, load)
            places = [first + cell.element(load.value, gate) for gate in range(cell.gates(load.value))]
            cell.values[load.value] = [let("operand", tile.worker.staging[at]) for at in places]


def inside_or_zeros(
    tile: UnitTile, unit: Expr, cell: Callable[[], None], own: Expr, lanes: int, vertex: Expr
) -> None:
    """Runs the cell where its units exist; the deltas of units that do not are zero, for the products."""
    worker, units, staging = tile.worker, tile.units, tile.staging

    def zeros() -> None:
        for value, plane in staging.deltas.items():
            for gate in range(rows_of(value, tile.segment, 1)):
                for i in range(lanes):
                    put(worker.staging, plane.place(gate * units + own + i, vertex), T.float32(0.0))

    if tile.units_end is None:
        cell()
    else:
        either(unit < tile.units_end, cell, zeros)
