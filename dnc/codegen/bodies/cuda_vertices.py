"""VERTEX segments on CUDA: a warp for every row, and the rows dealt out to all workers, then to their warps.

In: a segment and the fields of its instruction. Out: the body of the instruction. The lanes of a warp
share the loops of a row and add up in a fixed order; what a row needs in between lies in the staging area.
Where there are more rows than warps, and little to do for each, a warp has several at a time: a row waits
for memory more than it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.cells import ANY_SIZE, Element, Four, StoreFour, VertexCell, four_of, scratch_floats
from dnc.codegen.emit import Expr, both, either, fixed, let, local, loop, put, smaller, stride_loop, when
from dnc.codegen.quads import QUAD
from dnc.ir.machine import LANES, THREADS, WARPS
from dnc.ir.plan import BufferAddress, ParameterAddress, PlanTooLarge, Segment, padded
from dnc.ir.types import ListType

LOWEST = -3.4028234663852886e38  # of float32
WIDEST_KEPT = 512  # elements of a value that is kept, where the whole row does not fit
LONG = 4096  # elements of a value that is not kept where it leaves warps idle
TOGETHER = 8  # elements of a long vector, or quads of it, that a lane loads before it uses the first
NORMALIZED = 16  # quads, where nothing is written
ABREAST = 4  # rows that a warp has at a time, where each is at most so much work
LITTLE_WORK = 8192  # elements of all operands
SMALL_MATRIX = 4096  # words

Several = Callable[[Expr], list[Expr]]  # reads the elements of a place: one, or four
Join = Callable[[Expr, Expr], Expr]


def _one(read: Element, place: Expr) -> list[Expr]:
    return [read(place)]


def _quad(read: Four, place: Expr) -> list[Expr]:
    return read(place * QUAD)


def over_lanes(total: Any, index: int, join: Join, lanes: int) -> None:
    """Joins what so many neighbouring lanes of a warp have, in a fixed order, on every one of them."""
    mask = lanes // 2
    while mask:
        put(total, index, join(total[index], cuda.shuffle_xor(total[index], mask)))
        mask //= 2


@attrs.define(eq=False)
class WarpTarget:
    """Lanes of a warp, `lane` of which is this one, share the loops of one row; scratch lies in the staging
    area."""

    worker: Worker
    base: Any
    lane: Expr
    lanes: int = LANES
    used: int = 0

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """Lane l runs l, l + lanes, ..."""
        if extent <= self.lanes:
            with when(self.lane < extent):
                body(self.lane)
        else:
            with loop("part", -(-extent // self.lanes)) as part:
                index = let("element", part * self.lanes + self.lane)
                if extent % self.lanes:
                    with when(index < extent):
                        body(index)
                else:
                    body(index)
        self.synchronize()

    def fill(
        self,
        extent: int,
        read: Element,
        write: Callable[[Expr, Expr], None],
        write_four: StoreFour | None = None,
    ) -> None:
        """Lane l runs l, l + lanes, ...; of long vectors it reads several before it writes the first."""
        four = four_of(read)
        if four is not None and write_four is not None and extent % QUAD == 0:
            self._fill_quads(extent // QUAD, four, write_four)
            return
        if not self._unrolled(extent):
            self.each(extent, lambda index: write(index, read(index)))
            return
        with self._together(extent, TOGETHER) as (places, nears, whole):
            found = [let("found", read(near)) for near in nears]
            for place, value in zip(places, found, strict=True):
                with nullcontext() if whole else when(place < extent):
                    write(place, value)
        self.synchronize()

    def _fill_quads(self, quads: int, read: Four, write: StoreFour) -> None:
        if not self._unrolled(quads):
            self.each(quads, lambda quad: write(quad * QUAD, read(quad * QUAD)))
            return
        with self._together(quads, TOGETHER) as (places, nears, whole):
            found = [read(near * QUAD) for near in nears]
            for place, values in zip(places, found, strict=True):
                with nullcontext() if whole else when(place < quads):
                    write(place * QUAD, values)
        self.synchronize()

    @contextmanager
    def _together(self, extent: int, count: int) -> Iterator[tuple[list[Expr], list[Expr], bool]]:
        """A loop over so many of the lane's elements at a time: their places; the same, or the last one where
        there is none; whether there always are."""
        size = count * self.lanes
        whole = extent % size == 0
        with loop("group", -(-extent // size)) as group:
            first = let("first", group * size + self.lane)
            places = [let("element", first + part * self.lanes) for part in range(count)]
            yield places, places if whole else [let("near", smaller(at, extent - 1)) for at in places], whole

    def _unrolled(self, extent: int) -> int | bool:
        """How many rounds of a loop over a vector stand in the code: their loads are under way together."""
        return TOGETHER if extent >= TOGETHER * self.lanes and not self.worker.crowded else False

    def _add_up(self, total: Any, index: int, join: Join) -> None:
        """What all lanes have, in a fixed order, on every lane."""
        over_lanes(total, index, join, self.lanes)

    def _quads(self, extent: int, term: Element) -> Four | None:
        """How to read a long vector four elements at a time, where that can be done."""
        return four_of(term) if extent % QUAD == 0 and self._unrolled(extent // QUAD) else None

    @contextmanager
    def _all_quads(self, extent: int, read: Four, count: int) -> Iterator[list[tuple[Expr, Expr, Expr]]]:
        """A loop over `count` of the lane's quads at a time: an element's place, value, and whether there is
        one; where there is none, the value is that of another."""
        quads = extent // QUAD
        with self._together(quads, count) as (places, nears, _):
            found = [read(near * QUAD) for near in nears]
            yield [
                (place * QUAD + i, value, place < quads)
                for place, values in zip(places, found, strict=True)
                for i, value in enumerate(values)
            ]

    def _reduce(self, extent: int, term: Element, start: float, join: Join) -> Expr:
        total = local("reduced", "float32", T.float32(start))
        four = self._quads(extent, term)
        if four is not None:
            with self._all_quads(extent, four, TOGETHER) as elements:
                for _, value, there in elements:
                    put(total, 0, join(total[0], T.Select(there, value, T.float32(start))))
            self._add_up(total, 0, join)
            return let("all", total[0])
        with loop("part", -(-extent // self.lanes), unroll=self._unrolled(extent)) as part:
            index = let("element", part * self.lanes + self.lane)
            with when(index < extent):
                put(total, 0, join(total[0], term(index)))
        self._add_up(total, 0, join)
        return let("all", total[0])

    def sum(self, extent: int, term: Element) -> Expr:
        """Lanes take terms in turn, then add in a fixed order."""
        return self._reduce(extent, term, 0.0, lambda a, b: a + b)

    def products(self, extent: int, rows: Sequence[Element], vector: Element) -> list[Expr]:
        """All sums in one pass. Several loads of the vector are under way together: rows are often nearer."""
        total = local("sums", "float32", T.float32(0.0), len(rows))
        fours = [four for four in map(four_of, (vector, *rows)) if four is not None]
        times = min(LANES // self.lanes, 2)  # a lane has more of the row; all at once took too many registers
        if len(fours) > len(rows) and extent % QUAD == 0:
            x, *others = (partial(_quad, four) for four in fours)
            most = 1 if self.worker.crowded else TOGETHER // QUAD * times
            self._add_products(extent // QUAD, x, others, total, most)
        else:
            single = [partial(_one, each) for each in rows]
            most = 4 if self.worker.crowded else TOGETHER * times
            self._add_products(extent, lambda i: [let("x", vector(i))], single, total, most)
        for number in range(len(rows)):
            self._add_up(total, number, lambda a, b: a + b)
        return [let("all", total[number]) for number in range(len(rows))]

    def _add_products(
        self, extent: int, vector: Several, rows: Sequence[Several], total: Any, most: int
    ) -> None:
        """Adds the lane's terms, `most` places together; each reader reads the elements of a place."""
        with self._together(extent, min(-(-extent // self.lanes), most)) as (places, nears, whole):
            held = [vector(near) for near in nears]
            for place, near, x in zip(places, nears, held, strict=True):
                for number, row in enumerate(rows):
                    for a, b in zip(row(near), x, strict=True):
                        found = a * b
                        if not whole:
                            found = T.Select(place < extent, found, T.float32(0.0))
                        put(total, number, total[number] + found)

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term."""
        return self._reduce(extent, term, LOWEST, lambda a, b: T.max(a, b))

    def normalizer(self, extent: int, term: Element, exp: Callable[[Expr], Expr]) -> tuple[Expr, Expr]:
        """Two passes; of a long vector one, in which a lane's sum is of exp(term - the largest so far)."""
        four = self._quads(extent, term)
        if four is None:
            top = self.max(extent, term)
            return top, self.sum(extent, lambda i: exp(term(i) - top))
        tops = local("top", "float32", T.float32(LOWEST))
        total = local("total", "float32", T.float32(0.0))
        with self._all_quads(extent, four, NORMALIZED) as elements:
            before = fixed("top_before", tops[0], "float32")
            for _, value, _ in elements:
                put(tops, 0, T.max(tops[0], value))
            put(total, 0, total[0] * exp(before - tops[0]))
            for _, value, there in elements:
                put(total, 0, total[0] + T.Select(there, exp(value - tops[0]), T.float32(0.0)))
        own = fixed("own_top", tops[0], "float32")
        self._add_up(tops, 0, lambda a, b: T.max(a, b))
        put(total, 0, total[0] * exp(own - tops[0]))
        self._add_up(total, 0, lambda a, b: a + b)
        return let("top_of_all", tops[0]), let("all", total[0])

    def argmax(self, extent: int, term: Element) -> Expr:
        """The first index of the largest term."""
        top = self.max(extent, term)
        best = local("best", "int32", extent)

        def look(index: Expr, value: Expr, there: Expr) -> None:
            with when(there), when(both(value == top, index < best[0])):
                put(best, 0, index)

        four = self._quads(extent, term)
        if four is not None:
            with self._all_quads(extent, four, TOGETHER) as elements:
                for element in elements:
                    look(*element)
        else:
            with loop("part", -(-extent // self.lanes), unroll=self._unrolled(extent)) as part:
                index = let("element", part * self.lanes + self.lane)
                look(index, term(index), index < extent)
        self._add_up(best, 0, T.min)
        return let("argmax", best[0])

    def once(self, body: Callable[[], None]) -> None:
        """Lane 0."""
        with when(self.lane == 0):
            body()

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """The next `size` words of the row's part."""
        first = self.base + self.used
        self.used += padded(size)
        return self.worker.staging, first

    def synchronize(self) -> None:
        """Warp barrier: orders shared memory within the warp."""
        T.evaluate(T.cuda.warp_sync())


def vertex_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a VERTEX segment's instruction: workers, then their warps, take rows in turn.

    Whose a row is, worker and warp, follows from its number alone: what reads a row just made needs no
    exchange then.
    """
    worker = worker if worker.crowded else worker.here()
    floats, widest = _kept(worker, segment)
    warps = min(WARPS, worker.staging_words // floats)
    if warps == 0:
        raise PlanTooLarge(f"{segment.name}: {floats * 4} bytes of scratch for one vertex")

    def body(abreast: int) -> None:
        near = _copied(worker, segment, warps * abreast * floats) if abreast > 1 else {}
        every, lanes = worker.workers * warps, LANES // abreast
        turn = let("turn", worker.warp * worker.workers + worker.rank)
        with when(worker.warp < warps), stride_loop("row", turn, rows, every * abreast) as index:
            own, lane, at = worker.warp, worker.lane, index
            if abreast > 1:
                beside = fixed("beside", worker.lane // lanes)
                own, lane = own * abreast + beside, fixed("own_lane", worker.lane % lanes)
                # Behind the last row a warp's first one is made several times, alike.
                at = fixed("own_row", T.Select(index + beside * every < rows, index + beside * every, index))
            target = WarpTarget(worker, let("scratch", own * floats), lane, lanes)
            vertex = let("vertex", row + at)
            VertexCell(worker.access, worker.math, target, segment, vertex, widest, near).run()
            target.synchronize()

    words = warps * ABREAST * floats + sum(_matrices(worker, segment).values())
    if goes_abreast(segment) and words <= worker.staging_words:
        either(rows > worker.workers * warps, lambda: body(ABREAST), lambda: body(1))
    else:
        body(1)


def goes_abreast(segment: Segment) -> bool:
    """Whether a warp may have several rows at a time: their lanes stay together, as no loop depends on the
    row, and making a row twice changes nothing."""
    values = [load.value for load in segment.loads] + [op.result for op in segment.cell.ops]
    if any(isinstance(value.type, ListType) for value in values):
        return False
    if any(store.children is not None for store in segment.stores):
        return False
    own = {load.address.buffer for load in segment.loads if isinstance(load.address, BufferAddress)}
    if own & {store.buffer for store in segment.stores}:
        return False
    work = sum(max(v.tensor.size for v in (op.result, *op.operands)) for op in segment.cell.ops)
    return work <= LITTLE_WORK


def _matrices(worker: Worker, segment: Segment) -> dict[ParameterAddress, int]:
    """The small matrices that all rows read, and their words in the pool."""
    found = {}
    for load in segment.loads:
        shape, address = load.value.tensor.shape, load.address
        if isinstance(address, ParameterAddress) and len(shape) == 2 and address.select is None:
            words = shape[0] * worker.plan.weight_format.strides(shape)[-2]
            if worker.access.has_whole_rows(address) and words <= SMALL_MATRIX:
                found[address] = words
    return found


def _copied(worker: Worker, segment: Segment, first: int) -> dict[ParameterAddress, tuple[Any, Expr]]:
    """Copies these matrices to the staging area, from word `first` on: what rows write drives them out of L1.
    Ends with a barrier."""
    found: dict[ParameterAddress, tuple[Any, Expr]] = {}
    for address, words in _matrices(worker, segment).items():
        base = worker.access.position(address, 0)
        with stride_loop("quad", worker.thread * QUAD, words, THREADS * QUAD) as at:
            worker.start_copy(first + at, fixed("from", base + at, "int64"))
        found[address] = worker.staging, first
        first += words
    worker.stage(first)
    cuda.copy_commit()
    cuda.copy_wait(0)
    worker.synchronize()
    return found


def _kept(worker: Worker, segment: Segment) -> tuple[int, int]:
    """Words of scratch of a row, and the widest value that is kept there.

    The logits of a large vocabulary are not: a row of them would take the place of many rows.
    """
    for widest, warps in ((ANY_SIZE, WARPS), (LONG, WARPS), (ANY_SIZE, 1), (WIDEST_KEPT, 1)):
        floats = max(scratch_floats(segment, widest), QUAD)
        if warps * floats <= worker.staging_words:
            break
    return floats, widest
