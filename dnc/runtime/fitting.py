"""A batch that does not fit into memory: more memory, or the batch in parts.

In: a session, samples, and how a part of them is encoded. Out: what was encoded, of one part or several.
Guaranteed: memory grows before a batch is cut, and no part is smaller than a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.runtime.batches import parts_of
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.tail import Part
from dnc.runtime.memory import too_little
from dnc.runtime.trace.timeline import ENCODE

if TYPE_CHECKING:
    from dnc.runtime.session import Session

T = TypeVar("T")


def in_parts(
    session: Session, data: Encoder, samples: Ints, mode: str, encode: Callable[[Ints, Part, int], T]
) -> list[T]:
    """The batch encoded, in as many parts as it takes to fit.

    encode: makes of a part's samples, and which part it is, what goes into the place for schedules of that
    number; DoesNotFit. DiagnosticError if one sample does not fit alone.
    """
    parts, memory = 1, session.memory
    while True:
        session.launches.check()
        try:
            data.pool = memory.pool
            with session.timeline.host(ENCODE):
                cut = enumerate(parts_of(data, samples, mode, parts))
                return [
                    encode(numbers, part, (session.launches.slot + index) % 2)
                    for index, (numbers, part) in cut
                ]
        except DoesNotFit as problem:
            session.launches.drain()
            if memory.grow(problem.schedule_words, problem.activations):
                continue
            need = memory.pool.words + problem.activations
            if parts == len(samples):
                have = too_little(need, memory.most())
                raise fail(f"{session.backend.name}: a batch of one sample needs {have}") from None
            room = max(memory.most() - memory.pool.words, 1)
            parts = min(len(samples), max(parts + 1, parts * problem.activations // room))
