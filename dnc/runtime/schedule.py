"""A schedule: the encoded words of one launch, and the text they stand for.

In: words made by the encoder. Out: their fields by name. Everything here is derived from
`dnc.ir.isa`; nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.isa import AWAITED_SUMS, END, FLOAT_FIELDS, INSTRUCTION_WORDS, Layout, layout
from dnc.ir.plan import Plan
from dnc.runtime.phases import FORWARD_ONLY

if TYPE_CHECKING:
    from dnc.runtime.encoder.guest import Guest
    from dnc.runtime.encoder.readout import Readout

Words = NDArray[np.int32]


@attrs.define(eq=False)
class Schedule:
    """The words of one launch.

    address: where in the pool the words will lie. rows: rows per space. static_words: what the
    launch finds in the pool before it (vectors of another net, in later parts of a batch the gradients of
    tables too).
    activations: words behind the static pool. results: name -> (word in the results area, rows
    summed). samples: sample numbers in the order in which spaces over the sample roots hold them.
    positions: per space the row of the prepared data that every row is. mode: what it was encoded for.
    guest: what it shares with another net, if anything. known: by function the states that lie in the
    words: (address of the first, how many). readout: what the host reads of the group that it is one of.
    lean: whether the plan's lean kernel runs it, where there is one. devices: that have a share of the batch.
    forward: offset of another queue table, that of `values_of`; 0 if there is none.
    """

    plan: Plan
    words: Words
    address: int
    rows: dict[str, int]
    bases: dict[str, int]
    static_words: int
    activations: int
    results: dict[str, tuple[int, int]]
    samples: Words
    positions: dict[str, NDArray[np.intp]]
    mode: str
    guest: Guest | None = None
    known: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    readout: Readout | None = None
    lean: bool = False
    devices: int = 1
    forward: int = 0

    def bare(self) -> Schedule:
        """Without plan and positions: what another process needs to be sent, which has the plan."""
        nothing: Any = None
        guest = None if self.guest is None else self.guest.bare()
        return attrs.evolve(self, plan=nothing, positions={}, guest=guest)


def values_of(schedule: Schedule, where: Layout) -> Schedule:
    """Of one for BOTH that of FORWARD_ONLY: another launch of the same words, by their other queue table."""
    assert schedule.forward, schedule.mode
    words = schedule.words.copy()
    grid = int(words[where.header["replicas"]] * words[where.header["workers"]])
    words[where.queues_at : where.queues_at + grid] = words[schedule.forward : schedule.forward + grid]
    if AWAITED_SUMS in where.header:  # of gradients
        words[where.header[AWAITED_SUMS]] = 0
    return attrs.evolve(schedule, words=words, mode=FORWARD_ONLY, forward=0)


def header(words: Words, plan: Plan) -> dict[str, int]:
    """The header's words by name."""
    return {name: int(words[at]) for name, at in layout(plan).header.items()}


def queue(words: Words, plan: Plan, worker: int) -> Words:
    """The instructions of a worker up to and with `end`: [count, INSTRUCTION_WORDS]."""
    start = int(words[int(words[layout(plan).header["queues"]]) + worker])
    codes = words[start::INSTRUCTION_WORDS][: max(len(words) - start, 0) // INSTRUCTION_WORDS]
    ends = np.flatnonzero(codes == plan.opcode(END).number)
    count = int(ends[0]) + 1 if len(ends) else len(codes)
    return words[start : start + count * INSTRUCTION_WORDS].reshape(count, INSTRUCTION_WORDS)


def longest_queue(schedules: Sequence[Schedule]) -> int:
    """The most instructions that a worker has in one of some schedules."""
    found = 1
    for schedule in schedules:
        words, plan = schedule.words, schedule.plan
        head = header(words, plan)
        first = head["queues"]
        starts = words[first : first + head["replicas"] * head["workers"]]
        workers = np.unique(starts, return_index=True)[1]
        found = max(found, *(len(queue(words, plan, int(worker))) for worker in workers))
    return found


def disassemble(words: Words, plan: Plan, worker: int = 0) -> str:
    """The instructions of a worker as text, one a line, every field by its name."""
    lines = []
    for instruction in queue(words, plan, worker):
        number = int(instruction[0])
        if not 0 <= number < len(plan.opcodes):
            lines.append(f"??? {number}")
            continue
        opcode = plan.opcodes[number]
        words_of = zip(opcode.fields, instruction[1:], strict=False)
        fields = " ".join(
            f"{name}={word.view(np.float32) if name in FLOAT_FIELDS else int(word)}"
            for name, word in words_of
        )
        lines.append(f"{opcode.name} {fields}".rstrip())
    return "\n".join(lines)


def list_words(words: Words, where: Layout, name: str) -> int:
    """Offset of a list's words in the schedule."""
    return int(words[where.lists_at + where.lists[name]])
