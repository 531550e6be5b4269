"""Pushing on CUDA: what the workers of a cluster exchange between two narrow levels of one instruction.

In: a segment of a level. Out: a `Mailbox`, part of the staging area into which others push what the next
level reads of this one: states that are operands of products, partial sums of transposed products. It is
there, and known to be, after one way between two SMs; the pool, where all of it is written as well, serves
everybody who comes later. What else a segment reads of the level before was written by its own worker.
Guaranteed: the numbers, and the order in which they are added up, are those of an exchange through the pool.

Pushes release nothing of what went to the pool: that takes longer than a level. So a mailbox keeps all that
was pushed since all workers met at a barrier, and when it is full they meet. Within that time no row of it is
used twice; and as every worker waits for all others in every level, none is more than a level ahead.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen import sync
from dnc.codegen.bodies.cuda_staging import Staging
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, both, lane4, lanes, let, shift, smaller
from dnc.ir.cell import Value
from dnc.ir.plan import GatherAddress, Piece, Plan, Segment, padded, unit_share
from dnc.ir.states import state_buffers

SIGNALS, TURNS = 3, 6  # of a worker: a level waits for one; two phases of each
MOST_ROWS = 8  # of a level that pushes
ROWS = (64, 48, 32, 24, 16)  # of a mailbox
NEVER = tirx.const(False, "bool")


@attrs.frozen
class Sent:
    """Of every row: the units of `value`, which stand from `offset` on in the records of `buffer`; without a
    value those of its partial sums. at: first word in a row of the mailbox."""

    buffer: str
    offset: int
    value: Value | None
    at: int


@attrs.frozen
class Mailbox:
    """Where rows that others push lie, row r as the r % `rows`-th. share: units of a worker, at most.

    most: rows of a level that pushes, or reads what was pushed.
    """

    sent: tuple[Sent, ...]
    at: int
    row_words: int
    share: int
    rows: int
    most: int

    @property
    def kept(self) -> int:
        """Rows that may be pushed until all workers meet: none is overwritten before."""
        return self.rows - self.most


def sent_by(plan: Plan, segment: Segment) -> tuple[Sent, ...]:
    """What a segment pushes, with its place in a mailbox."""
    row_words, found = 0, []
    for pushed in plan.pushes:
        if pushed.segment == segment.name:
            found.append(Sent(pushed.buffer, pushed.offset, pushed.value, row_words))
            row_words += _words(plan, segment, found[-1])
    return tuple(found)


def _words(plan: Plan, segment: Segment, sent: Sent) -> int:
    """Words of a mailbox for a row: all units of a state, or the own units of every worker's partial sums."""
    assert plan.tiling is not None
    workers = plan.tiling.workers
    return padded(unit_share(segment.units, workers) * workers if sent.value is None else segment.units)


def mailbox(worker: Worker, segment: Segment, staging: Staging, most: int) -> Mailbox | None:
    """The mailbox of a segment: behind its staging, or in rows of operands that narrow levels have not."""
    sent = sent_by(worker.plan, segment)
    if not sent:
        return None
    row_words = sent[-1].at + _words(worker.plan, segment, sent[-1])
    share = unit_share(segment.units, worker.workers)
    behind = -(-staging.words // 4) * 4
    for rows in ROWS:
        free = -(-most // 4) * 4 * staging.operand_words
        if behind + rows * row_words <= worker.staging_words:
            return Mailbox(sent, behind, row_words, share, rows, most)
        if not (segment.transposed or segment.repeated) and free + rows * row_words <= staging.scratch:
            return Mailbox(sent, free, row_words, share, rows, most)
    return None


@attrs.frozen(eq=False)
class Push:
    """The mailbox of the level at hand: rows row .. row + rows.

    turn: counts the levels that have one, modulo TURNS: signals in two phases. follows: whether the next
    level is one of the same segment, as far as is known. fresh: emits a look-up of the first row, and the
    rows, that are in the mailbox. signals: the address of one.
    """

    worker: Worker
    segment: Segment
    box: Mailbox
    turn: Expr
    row: Expr
    rows: Expr
    follows: Expr
    fresh: Callable[[], tuple[Expr, Expr]]
    signals: Callable[[Expr], Expr]

    @property
    def sends(self) -> Expr:
        """Whether the level pushes."""
        return both(self.follows, both(self.rows > 0, self.rows <= self.box.most))

    @property
    def receives(self) -> Expr:
        """Whether something that the level reads was pushed."""
        return self.fresh()[1] > 0

    @property
    def signal(self) -> Expr:
        """Address of the level's signal."""
        return self.signals(T.Select(self.turn >= SIGNALS, self.turn - SIGNALS, self.turn))

    @property
    def phase(self) -> Expr:
        """The signal's phase, modulo 2."""
        return T.cast(self.turn >= SIGNALS, "int32")

    @property
    def next_turn(self) -> Expr:
        """The turn of the next level that has a mailbox."""
        return T.Select(self.turn == TURNS - 1, 0, self.turn + 1)

    def bytes(self) -> Expr:
        """What is pushed to a worker in the level."""
        units, begin = self.segment.units, self.worker.rank * self.box.share
        own = let("own_units", T.max(smaller(units - begin, self.box.share), 0))
        states = len(self.states())
        a_row = states * units + (len(self.box.sent) - states) * self.worker.workers * own
        return T.Select(self.sends, self.rows * a_row * 4, 0)

    def states(self) -> list[tuple[Sent, Value]]:
        """What is pushed by cells."""
        return [(item, item.value) for item in self.box.sent if item.value is not None]

    def sums(self, buffer: str) -> list[Sent]:
        """What transposed products push of what they leave in a buffer: one, or none."""
        return [item for item in self.box.sent if item.value is None and item.buffer == buffer]

    def send_state(self, item: Sent, vertex: Expr, unit: Expr, number: Expr) -> None:
        """Pushes a unit of a vertex to all workers."""
        place = let("push_at", self._word(item, self.row + vertex) + unit)
        sync.push_to_all(self._address(place), self.signal, number, self.worker.workers)

    def send_sums(self, item: Sent, row: Expr, element: Expr, value: Expr) -> None:
        """Pushes a row's partial sums from an element on, a vector, to the workers whose units they are."""
        units, width = self.box.share, lanes(value)
        first = let("push_row", self._word(item, row) + self.worker.rank * units)
        whole = width if units % width == 0 else 1
        for part in range(0, width, whole):
            owner = let("owner", (element + part) // units)
            place = let("push_at", first + (element + part - owner * units))
            numbers = [value if width == 1 else lane4(value, part + i) for i in range(whole)]
            sync.push_to(self._address(place), self.signal, owner, numbers)

    def state_near(self, piece: Piece, word: Expr) -> tuple[Expr, Expr]:
        """Whether the record at an address was pushed; if so, the word where the piece's elements begin."""
        address = piece.address
        if isinstance(address, GatherAddress):
            records = state_buffers(self.worker.plan, address.list)
            for item, _ in self.states():
                if item.buffer in records and item.offset == address.offset:
                    return self._near(item, word)
        return NEVER, T.int32(0)

    def slot(self, at: Expr, offset: int) -> tuple[Expr, Callable[[Expr, Expr], Expr]]:
        """Whether the partial slot at an address (of 4 words) was pushed; if so, element i of a run."""
        near, place = NEVER, T.int32(0)
        for item in (item for item in self.box.sent if item.value is None and item.offset == offset):
            found, there = self._near(item, at)
            near, place = any_of(near, found), T.Select(found, there, place)
        first = let("pushed", place - self.worker.rank * self.box.share)
        return let("near_slot", near), lambda run, i: self.worker.staging[
            shift(first + run * self.box.share, i)
        ]

    def _near(self, item: Sent, at: Expr) -> tuple[Expr, Expr]:
        """Whether the record at an address is of a row in the mailbox; the row's first word."""
        buffer = self.worker.plan.buffer(item.buffer)
        step = buffer.width * (self.worker.workers if buffer.partial else 1) // 4
        row, rows = self.fresh()
        behind = let("behind_first", at - self.worker.access.base_word(item.buffer) - row * step)
        near = both(behind >= 0, behind < rows * step)
        return near, self._word(item, row + T.truncdiv(behind, step))

    def joined(self, next_rows: Expr) -> tuple[Expr, Expr]:
        """The first row, and the rows, that are in the mailbox behind the level, for one of the same segment
        with so many rows; no rows where that cannot read them, or the workers have to meet."""
        first, rows = (let("kept", value) for value in self.fresh())
        beside = any_of(first + rows == self.row, self.row + self.rows == first)
        fits = both(any_of(rows == 0, beside), rows + self.rows <= self.box.kept)
        reads = both(self.sends, both(fits, next_rows <= self.box.most))
        joined = T.Select(any_of(rows == 0, self.row < first), self.row, first)
        return joined, T.Select(reads, rows + self.rows, 0)

    def _word(self, item: Sent, row: Expr) -> Expr:
        """The first word of something sent of a row."""
        return self.box.at + T.truncmod(row, self.box.rows) * self.box.row_words + item.at

    def _address(self, place: Expr) -> Expr:
        return T.address_of(self.worker.staging[place])
