"""Tiles of weight gradients on CUDA: how the sums of all threads are written.

In: where each thread leaves its sums in shared memory, some rows of the tile at a time. Out: statements that
write these rows, or add them to what is there. Threads write neighbouring 16 bytes, in a loop: of what every
tile runs once, code takes longer to come than to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_dense_steps import TileWork
from dnc.codegen.emit import Expr, both, fixed, lane4, let, local, loop, put, quad_at, room, when, wide
from dnc.ir.machine import THREADS

TOGETHER = 4  # quads of a thread


@attrs.frozen(eq=False)
class Band:
    """Some rows of a tile. stage: leaves a thread's sums of them in shared memory, rows so many words apart.
    row: which row of the tile one of them is."""

    rows: int
    stage: Callable[[int], None]
    row: Callable[[Expr], Expr]


def write_bands(work: TileWork, columns: int, spare: int, bands: Sequence[Band]) -> None:
    """Writes a tile of so many columns. spare: words between two staged rows."""
    worker, stride = work.worker, columns + spare
    for band in bands:
        worker.stage(band.rows * stride)
        band.stage(stride)
        worker.synchronize()
        turns = band.rows * columns // (4 * THREADS)
        together = min(TOGETHER, turns)
        with loop("turn", turns // together, unroll=1) as turn:
            _write(work, band, turn * together, together, columns, stride)
        worker.synchronize()


def _write(work: TileWork, band: Band, turn: Expr, together: int, columns: int, stride: int) -> None:
    """So many turns of all threads; what is there is read before anything is written."""
    worker, quads = work.worker, columns // 4
    thread, behind = worker.here().thread, work.kind.stride
    sums = room("staged", 4 * together)
    places = []
    for number in range(together):
        item = (turn + number) * THREADS + thread
        line, own = fixed("line", item // quads), fixed("own_column", item % quads * 4)
        T.buffer_store(sums, worker.staging[quad_at(line * stride + own)], [quad_at(4 * number)])
        row, column = fixed("row", work.row + band.row(line)), fixed("column", work.column + own)
        there = local("there", "int32", 0)
        with when(both(row < work.kind.rows, column < behind)):
            put(there, 0, 1)
        at = T.Select(there[0] != 0, work.base + wide(row) * behind + column, work.base)
        places.append((there[0], fixed("at", at, "int64")))
    with when(work.accumulate != 0):
        old = [let("old", worker.pool[quad_at(at)]) for _, at in places]
        for number, found in enumerate(old):
            for i in range(4):
                put(sums, 4 * number + i, lane4(found, i) + sums[4 * number + i])
    for number, (there, at) in enumerate(places):
        with when(there != 0):
            T.buffer_store(worker.pool, sums[quad_at(4 * number)], [quad_at(at)])
