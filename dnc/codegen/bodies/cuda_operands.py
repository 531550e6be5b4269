"""Operands of products on CUDA: where they lie, and copies of them into shared memory.

In: the pieces that an operand is put together from, rows of a space. Out: statements that stage the
operands, 16 bytes a copy where every piece starts and ends at a whole address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import primitives as cuda
from dnc.codegen.bodies.cuda_worker import CHUNK, Worker, chunks
from dnc.codegen.emit import Expr, both, either, fixed, let, put, quad_at, smaller, stride_loop, when, wide
from dnc.ir.machine import THREADS
from dnc.ir.plan import GatherAddress, Piece

STAGED_TOGETHER = 4  # loads a thread has under way
NARROW = 2  # rows up to which a product takes one at a time, or both


SPARE = 16  # words between staged operands: two neighbours are in different halves of the banks


def padded_columns(columns: int) -> int:
    """Columns of a staged operand: whole chunks."""
    return chunks(columns) * CHUNK


def operand_stride(columns: int) -> int:
    """Words from one staged operand to the next."""
    return padded_columns(columns) + SPARE


@attrs.frozen(eq=False)
class StagedRows:
    """Operands of rows first .. first + count, put together from aligned pieces, in staging from word `at`
    on: `rows` of them, those behind the last one zeros, as is what stands behind the columns of each."""

    pieces: tuple[Piece, ...]
    first: Expr
    count: Expr
    rows: Expr
    at: int = 0

    @property
    def columns(self) -> int:
        """Of an operand."""
        return sum(piece.width for piece in self.pieces)

    @property
    def quads(self) -> int:
        """Of 16 bytes, of an operand with its zeros."""
        return padded_columns(self.columns) // 4

    @property
    def stride(self) -> int:
        """Words from one operand to the next."""
        return operand_stride(self.columns)


def _whole_groups(count: Expr, group: int) -> Expr:
    """Vertices that products may read where they take `group` of them together."""
    return (count + group - 1) // group * group


def stage_operand(
    worker: Worker,
    pieces: tuple[Piece, ...],
    first: Expr,
    count: Expr,
    group: int,
    at: int,
    meanwhile: Callable[[], None] | None = None,
    started: Expr | None = None,
) -> None:
    """Copies the operands of rows first .. first + count into staging.

    Row v lies at `at` + v * `operand_stride`, zeros behind its columns. What a product may read
    beyond the last row (more than `NARROW` are multiplied together, `group` of them) is zero as well; of
    weights from L2 a product may read more, for sums that nobody reads.
    meanwhile: emits what is done while the copies are under way. started: whether `start_operand` did it.
    """
    rounded = _whole_groups(count, group)
    if all_aligned(worker, pieces):
        pushes = worker.push is not None

        def stage(rows: Expr, together: int, worker: Worker) -> None:
            # Few rows are staged by the last warps: the first ones have cells, and look for what these need.
            thread = T.bitwise_xor(worker.thread, THREADS // 2) if pushes and together == 1 else worker.thread
            start_quads(worker, StagedRows(pieces, first, count, rows, at), together, thread)

        def stage_all(worker: Worker) -> None:
            if group > 1:
                many = partial(stage, rounded, STAGED_TOGETHER, worker)
                either(count <= NARROW, partial(stage, count, 1, worker), many)
            else:
                stage(count, 1, worker)

        far = attrs.evolve(worker, push=None)
        awaits = None if worker.awaits is None or worker.awaits.sums else worker.awaits
        if awaits is not None:
            with when(tirx.Not(awaits.by_data(count))):
                stage_all(far)
        elif worker.push is not None and worker.push.states():
            either(worker.push.receives, partial(stage_all, worker), partial(stage_all, far))
        elif started is not None:
            with when(tirx.Not(started)):
                stage_all(far)
        else:
            stage_all(far)
        cuda.copy_commit()
        if meanwhile is not None:
            meanwhile()
        if awaits is not None:
            with when(awaits.by_data(count)):
                rows = fixed("polled_rows", T.Select(count <= NARROW, count, rounded))
                awaits.stage(worker, StagedRows(pieces, first, count, rows, at))
        cuda.copy_wait(0)
    else:
        rows = let("staged", rounded)
        if meanwhile is not None:
            meanwhile()
        _stage_pieces(worker, pieces, first, count, rows, at)


def start_operand(worker: Worker, pieces: tuple[Piece, ...], first: Expr, count: Expr, group: int) -> None:
    """Starts copying operands as `stage_operand` has them, from 0 on; all are aligned, none was pushed."""
    start_quads(worker, StagedRows(pieces, first, count, _whole_groups(count, group)), STAGED_TOGETHER)
    cuda.copy_commit()


def start_quads(worker: Worker, staged: StagedRows, together: int, thread: Expr | None = None) -> None:
    """Starts copying operands, 16 bytes at a time. A thread looks up `together` places before it starts the
    first copy. thread: its number among those that do, if another one."""
    total = let("quads", staged.rows * staged.quads)
    with stride_loop("item", worker.thread if thread is None else thread, total, THREADS * together) as item:
        places = quad_places(worker, staged, item, together)
        for part, place in enumerate(places):
            with when(item + part * THREADS < total):
                copy = partial(worker.start_copy, place.to, place.source)
                if place.pushed is None:
                    copy()
                else:
                    either(place.pushed, partial(_copy_near, worker, place.to, place.near), copy)


@attrs.frozen(eq=False)
class QuadPlace:
    """Of 16 bytes of an operand the word of staging they belong to, and their position in the pool, 0 where
    there are none; whether they were pushed (None: never), and where they then are."""

    to: Expr
    source: Expr
    pushed: Expr | None
    near: Expr


def quad_places(
    worker: Worker, staged: StagedRows, item: Expr, together: int, step: int = THREADS
) -> list[QuadPlace]:
    """Those of the quads `item`, `item` + step, ..., `together` of them."""
    pieces, places = staged.pieces, []
    for part in range(together):
        index = fixed("index", item + part * step) if part else item
        vertex = fixed("vertex", index // staged.quads)
        element = fixed("element", (index - vertex * staged.quads) * 4)
        near = let("near", staged.first + smaller(vertex, staged.count - 1))
        valid = vertex < staged.count
        if staged.quads * 4 > staged.columns:
            valid = both(valid, element < staged.columns)
        word = piece_word(worker, pieces, near, element)
        source = fixed("from", piece_at(worker, pieces, near, element, valid, word), "int64")
        pushed, place = _pushed(worker, pieces, element, valid, word)
        places.append(
            QuadPlace(fixed("to", staged.at + vertex * staged.stride + element), source, pushed, place)
        )
    return places


def piece_word(worker: Worker, pieces: tuple[Piece, ...], row: Expr, element: Expr) -> Expr | None:
    """The word of a list that `piece_at` needs for an element of an operand; None if it needs none.

    A thread that looks it up before other work does not wait for it.
    """
    gathered = [
        (begin, piece.address)
        for begin, piece in zip(piece_begins(pieces), pieces, strict=True)
        if isinstance(piece.address, GatherAddress)
    ]
    if not gathered:
        return None
    near = worker.access.near
    if near is not None and all(address.list in near.places for _, address in gathered):
        places = [(begin, near.places[address.list]) for begin, address in gathered]
        return near.word(_chosen(places, element), row)
    lists = [(begin, let("list", worker.access.list_at(address.list))) for begin, address in gathered]
    return worker.words[_chosen(lists, element) + row]


def piece_at(
    worker: Worker,
    pieces: tuple[Piece, ...],
    row: Expr,
    element: Expr,
    valid: Expr | None,
    word: Expr | None = None,
) -> Expr:
    """Position of an element of an operand of aligned pieces; 0 where there is none or it is not valid.

    valid: None for always. word: what `piece_word` found, if it was asked before.
    """
    begins = piece_begins(pieces)
    if word is None:
        word = piece_word(worker, pieces, row, element)
    if all(isinstance(piece.address, GatherAddress) for piece in pieces):
        shifts = [
            (begin, piece.address.offset - begin)  # type: ignore[union-attr]
            for begin, piece in zip(begins, pieces, strict=True)
        ]
        at = let("piece", wide(word) * 4 + _chosen(shifts, element))
    else:
        positions = []
        for begin, piece in zip(begins, pieces, strict=True):
            if isinstance(piece.address, GatherAddress):
                found = wide(word) * 4 + piece.address.offset
            else:
                found = worker.access.position(piece.address, row)
            positions.append((begin, let("piece", found - begin)))
        at = _chosen(positions, element)
    return at + element if valid is None else T.Select(valid, at + element, T.int64(0))


def _pushed(
    worker: Worker, pieces: tuple[Piece, ...], element: Expr, valid: Expr, word: Expr | None
) -> tuple[Expr | None, Expr]:
    """Whether the row that an element of an operand is of was pushed (None: never), and where it then is."""
    if worker.push is None or word is None:
        return None, 0
    found = [worker.push.state_near(piece, word) for piece in pieces]
    begins = piece_begins(pieces)
    near = both(valid, _chosen(list(zip(begins, (near for near, _ in found), strict=True)), element))
    places = [(begin, place - begin) for begin, (_, place) in zip(begins, found, strict=True)]
    return let("near", near), let("near_at", _chosen(places, element) + element)


def _copy_near(worker: Worker, to: Expr, place: Expr) -> None:
    """Copies 16 bytes inside the staging area."""
    T.buffer_store(worker.staging, worker.staging[quad_at(place)], [quad_at(to)])


def piece_begins(pieces: tuple[Piece, ...]) -> list[int]:
    """The first element of every piece."""
    return [sum(piece.width for piece in pieces[:index]) for index in range(len(pieces))]


def _chosen(values: list[tuple[int, Any]], element: Expr) -> Any:
    """The value of the last one that begins before or at an element."""
    found = values[0][1]
    for begin, value in values[1:]:
        found = T.Select(element >= begin, value, found)
    return found


def _stage_pieces(
    worker: Worker, pieces: tuple[Piece, ...], first: Expr, count: Expr, rows: Expr, at: int
) -> None:
    """One element at a time, for operands that are sums or not aligned."""
    columns = sum(piece.width for piece in pieces)
    stride, begin = operand_stride(columns), 0
    for piece in pieces:
        with stride_loop("item", worker.thread, rows * piece.width, THREADS) as item:
            vertex = fixed("vertex", item // piece.width)
            element = fixed("element", item - vertex * piece.width)
            to = fixed("to", at + vertex * stride + begin + element)
            with T.If(vertex < count):
                with T.Then():
                    put(worker.staging, to, worker.access.reader(piece.address, first + vertex)(element))
                with T.Else():
                    put(worker.staging, to, T.float32(0.0))
        begin += piece.width
    rest = padded_columns(columns) - begin
    if rest:
        with stride_loop("item", worker.thread, rows * rest, THREADS) as item:
            put(worker.staging, at + item // rest * stride + begin + item % rest, T.float32(0.0))


def all_aligned(worker: Worker, pieces: tuple[Piece, ...]) -> bool:
    """Whether every piece starts and ends at a whole address in every row."""
    return all(piece.width % 4 == 0 and worker.access.is_aligned(piece.address) for piece in pieces)
