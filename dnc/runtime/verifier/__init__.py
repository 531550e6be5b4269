"""The schedule verifier: what a kernel may rely on, checked word by word before a launch.

In: a schedule. Out: nothing, or `ScheduleError` that says which word, instruction or list is
wrong. Guaranteed for what it accepts: every queue ends, every instruction is known and inside its
space, every row is worked on once by every segment of the mode, barriers pair up, every address
is a record of the right buffer, and no two buffers overlap. Whether the barriers suffice is what
the reference VM finds out.
"""

from __future__ import annotations

from dnc.runtime.schedule import Schedule
from dnc.runtime.verifier.closing import Closing
from dnc.runtime.verifier.early import rows_made_early
from dnc.runtime.verifier.places import Places
from dnc.runtime.verifier.queues import Queues
from dnc.runtime.verifier.text import ScheduleError, Text

__all__ = ["ScheduleError", "verify"]


def verify(schedule: Schedule) -> None:
    """ScheduleError if anything about the words of `schedule` is wrong."""
    text = Text(schedule)
    text.check_header()
    queues = Queues(text)
    tail = queues.check()
    closing = Closing(text, rows_made_early(text, queues.found, tail))
    closing.check(tail)
    Places(text, closing).check()
