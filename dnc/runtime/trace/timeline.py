"""A timeline: when the host and every worker did what, for the first launches of a session.

In: what a session tells while it runs, and the times that a traced kernel has kept. Out: host spans
and `TracedLaunch`es, in ns. Guaranteed: without a timeline (`OFF`) a session does nothing more than
ask for it, and the kernel that runs is the plain one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import attrs

from dnc.ir.plan import Plan
from dnc.ir.stamps import Times
from dnc.runtime.schedule import Schedule, Words

# The system's clock that host spans and the workers of a CPU are measured by.
CLOCK = getattr(time, "CLOCK_MONOTONIC", 0)
ENCODE, LAUNCH, WAIT = "encode", "copy and launch", "wait for results"
HOST = (ENCODE, LAUNCH, WAIT)

_NOTHING: AbstractContextManager[None] = nullcontext()


def now() -> int:
    """The host's time in ns."""
    if hasattr(time, "clock_gettime_ns"):
        return time.clock_gettime_ns(CLOCK)
    return time.perf_counter_ns()


@attrs.frozen
class HostSpan:
    """A piece of the host's work, from `begin` to `end` in ns; batches: for how many."""

    name: str
    begin: int
    end: int
    batches: int


@attrs.frozen(eq=False)
class TracedLaunch:
    """A launch with its times: a run (`dnc.ir.stamps`) for every worker of its schedule.

    asked, done: when the host started it and when it had its results, in ns of the host's clock.
    """

    words: Words
    samples: int
    asked: int
    done: int
    runs: Times


class Timeline:
    """Records the next `launches` launches of a session; `device` is what it runs on, for people.

    host_clock: the workers' times are of the host's clock.
    """

    def __init__(self, plan: Plan, device: str, launches: int, host_clock: bool) -> None:
        self.plan, self.device, self.host_clock = plan, device, host_clock
        self.spans: list[HostSpan] = []
        self.launches: list[TracedLaunch] = []
        self._asked, self._missing = launches, launches

    @property
    def is_recording(self) -> bool:
        """Whether launches are missing."""
        return self._missing > 0

    def host(self, name: str, batches: int = 1) -> AbstractContextManager[None]:
        """Measures what the host does in the block, as long as launches are missing."""
        return self._span(name, batches) if self._missing else _NOTHING

    @contextmanager
    def _span(self, name: str, batches: int) -> Iterator[None]:
        begin = now()
        try:
            yield
        finally:
            self.spans.append(HostSpan(name, begin, now(), batches))

    def take(self, launches: int) -> int:
        """How many of the next launches are traced."""
        taken = min(self._asked, launches)
        self._asked -= taken
        return taken

    def add(self, schedules: Sequence[Schedule], runs: Sequence[Times], asked: int) -> None:
        """Takes in finished launches, of which the first are traced."""
        done = now()
        for schedule, times in zip(schedules, runs, strict=False):
            self.launches.append(TracedLaunch(schedule.words, len(schedule.samples), asked, done, times))
        self._missing -= len(runs)


class _Off(Timeline):
    """No timeline."""

    def __init__(self) -> None:
        self.spans, self.launches = [], []
        self._asked = self._missing = 0


OFF: Timeline = _Off()
