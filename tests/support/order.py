"""What happens before what on a GPU with several streams: uploads that may meet what came before are found.

In: every operation of a stand-in for a driver, in the order in which the host asks for it. Out: pairs of an
operation and a later upload to the same memory that no stream, event or wait of the host puts in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

import attrs

Range = tuple[int, int]


@attrs.frozen
class Operation:
    """kind: of what it is; memory: the bytes it reads or writes; behind: the set of all operations that it
    surely follows, with itself, as bits of a number."""

    kind: str
    stream: int
    memory: Range | None
    behind: int


class Order:
    """See the module."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._last: dict[int, int] = {}  # by stream
        self._host: set[int] = set()  # what the host has waited for

    def note(self, stream: int, kind: str, memory: Range | None = None, behind: Iterable[int] = ()) -> int:
        """An operation at the end of a stream; its number."""
        before = {*self._host, *behind, *(self._last[stream] for _ in (0,) if stream in self._last)}
        number = len(self.operations)
        follows = reduce(or_, (self.operations[each].behind for each in before), 1 << number)
        self.operations.append(Operation(kind, stream, memory, follows))
        self._last[stream] = number
        return self._last[stream]

    def waited(self, operation: int) -> None:
        """The host goes on behind an operation."""
        self._host.add(operation)

    def drained(self, stream: int) -> None:
        """The host goes on behind all of a stream."""
        self._host |= {self._last[stream]} if stream in self._last else set()

    def follows(self, later: int, earlier: int) -> bool:
        """Whether one operation surely comes behind another."""
        return bool(self.operations[later].behind >> earlier & 1)

    def races(self) -> list[str]:
        """Uploads to memory that an operation before them may use still."""
        found = []
        for at, upload in enumerate(self.operations):
            for earlier, other in enumerate(self.operations[:at] if upload.kind == "upload" else ()):
                if upload.memory and other.memory and other.kind != "upload":
                    meets = other.memory[0] < upload.memory[1] and upload.memory[0] < other.memory[1]
                    if meets and not self.follows(at, earlier):
                        found.append(f"upload {at} meets {other.kind} {earlier} of stream {other.stream}")
        return found
