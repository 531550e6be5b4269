"""Scalars that every worker makes of whole vectors, on CUDA: all warps share out the vertices of a tile.

In: a tile, and the part of its segment that is made vertex by vertex. Out: statements that leave the scalars
in staging; the first worker stores what others read later. Few vertices have several warps each, as a level
waits for them. Barriers inside, which all threads reach, and one at the end. No vector is kept: what is read
twice is near then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_staging import Staging, UnitTile, by_rows
from dnc.codegen.bodies.cuda_vertices import LOWEST, Join, over_lanes
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.cells import Element, VertexCell, four_of
from dnc.codegen.emit import Expr, both, fixed, let, local, put, smaller, stride_loop, when
from dnc.codegen.quads import QUAD
from dnc.ir.cell import Value
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import Segment

TOGETHER = 4  # quads of a vector that a thread loads before it uses the first
PARTIALS = 2 * WARPS  # words: a reduction's are read while the next one's are written


@attrs.define(eq=False)
class RowTarget:
    """Lanes that share the loops of one row, a warp of them or several: `lanes` of them, of which this is
    `lane`, of `warps` warps from `first_warp` on. leads: this thread stores for its row.

    Whoever calls a reduction is with all threads of the block.
    """

    worker: Worker
    partials: int
    lane: Expr
    lanes: Expr
    first_warp: Expr
    warps: Expr
    leads: Expr
    reductions: int = 0

    def _terms(self, extent: int, term: Element, start: float) -> Iterator[Expr]:
        """All terms of the thread, inside a loop; `start` where there are no more."""
        four = four_of(term) if extent % QUAD == 0 else None
        size = QUAD if four is not None else 1
        items = extent // size
        together = min(TOGETHER, -(-items // LANES))
        step = fixed("step", self.lanes * together)
        with stride_loop("item", self.lane, items, step) as first:
            places = [first + part * self.lanes for part in range(together)]
            nears = [first, *(fixed("near", smaller(place, items - 1)) for place in places[1:])]
            found = [four(near * QUAD) if four is not None else [term(near)] for near in nears]
            found = [[let("found", value) for value in values] for values in found]
            yield from found[0]
            for place, values in zip(places[1:], found[1:], strict=True):
                yield from (T.Select(place < items, value, T.float32(start)) for value in values)

    def _over_all(self, total: Any, join: Join, start: Expr) -> Expr:
        """What all lanes of the row have, in a fixed order, on every lane; a block barrier."""
        over_lanes(total, 0, join, LANES)
        staging, first = self.worker.staging, self.partials + self.reductions % 2 * WARPS
        self.reductions += 1
        with when(self.worker.lane == 0):
            put(staging, first + self.worker.warp, total[0])
        self.worker.synchronize()
        begin = fixed("first_part", self.first_warp)
        places = [begin, *(smaller(begin + warp, WARPS - 1) for warp in range(1, WARPS))]
        parts = [let("part", staging[first + place]) for place in places]
        parts[1:] = [T.Select(warp < self.warps, part, start) for warp, part in enumerate(parts)][1:]
        while len(parts) > 1:
            parts = [join(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return let("all", parts[0])

    def _reduce(self, extent: int, term: Element, start: float, join: Join) -> Expr:
        total = local("reduced", "float32", T.float32(start))
        for value in self._terms(extent, term, start):
            put(total, 0, join(total[0], value))
        return self._over_all(total, join, T.float32(start))

    def sum(self, extent: int, term: Element) -> Expr:
        """Threads take terms in turn, then add in a fixed order."""
        return self._reduce(extent, term, 0.0, lambda a, b: a + b)

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term."""
        return self._reduce(extent, term, LOWEST, lambda a, b: T.max(a, b))

    def normalizer(self, extent: int, term: Element, exp: Callable[[Expr], Expr]) -> tuple[Expr, Expr]:
        """Two passes."""
        top = self.max(extent, term)
        return top, self.sum(extent, lambda i: exp(term(i) - top))

    def once(self, body: Callable[[], None]) -> None:
        """The thread that leads."""
        with when(self.leads):
            body()


def staging_of_scalars(whole: Segment, tile: int, first: int) -> Staging:
    """Where the scalars of a tile lie, as deltas, and what threads hand each other, from word `first` on."""
    at = -(-first // QUAD) * QUAD
    scratch, at = at, at + PARTIALS
    planes = dict[Value, Any]()
    for value in whole.cell.results:
        planes[value] = attrs.evolve(by_rows(tile, 1, 0), at=at)
        at += tile
    return Staging(tile, 1, {}, planes, at, scratch=scratch)


def make_scalars(tile: UnitTile, whole: Segment, staging: Staging) -> None:
    """Makes them, for all vertices of a tile."""
    worker, at_once = tile.worker.here(), local("rows_at_once", "int32", 0)
    with stride_loop("scalars", 0, tile.count, at_once[0]) as begin:
        left = let("rows_left", tile.count - begin)
        log = fixed("lanes_log", T.Select(left > 4, 5, T.Select(left > 2, 6, T.Select(left > 1, 7, 8))))
        put(at_once, 0, T.shift_right(THREADS, log))
        lanes, own = fixed("lanes", T.shift_left(1, log)), fixed("own_row", T.shift_right(worker.thread, log))
        lane, warps = fixed("lane_of_row", worker.thread - own * lanes), fixed("warps_of_row", lanes // LANES)
        vertex = let("vertex", begin + own)
        near = fixed("near", smaller(vertex, tile.count - 1))
        leads = let("leads", both(lane == 0, vertex < tile.count))
        target = RowTarget(worker, staging.scratch, lane, lanes, own * warps, warps, leads)
        cell = VertexCell(worker.access, worker.math, target, whole, tile.first + near, 0)
        cell.compute()
        with when(leads):
            for value, plane in staging.deltas.items():
                put(worker.staging, plane.place(0, vertex), cell.scalars[value])
        with when(worker.rank == 0):
            cell.store()
        worker.synchronize()
