"""Encoding ahead of the device: what comes next is encoded in other processes, once that pays.

In: the jobs of a session, in order. Out: their schedules. Guaranteed: what cannot be encoded elsewhere is
left to the caller, so a session works the same, and makes the same words, with processes or without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from dnc.ir.forest import Ints
from dnc.runtime.encoder import DoesNotFit
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.processes import Lost, Processes
from dnc.runtime.prepared import Prepared
from dnc.runtime.schedules import Schedules
from dnc.runtime.sharing import Sharing

# Groups of batches of a data set before processes are started for it: who takes a few steps needs none.
GROUPS = 4


class Ahead:
    """See the module. `count`: processes, 0 for none. `groups`: taken so far; behind `least` they start."""

    def __init__(self, count: int, least: int = GROUPS) -> None:
        self._count, self._least = count, least
        self._data: Prepared | None = None
        self._sharing: Sharing | None = None
        self.groups = 0
        self._processes: Processes | None = None
        self._taken = deque[Job]()

    def use(self, data: Prepared, sharing: Sharing | None = None) -> None:
        """The data set from now on, and what it shares; what was taken before is forgotten."""
        while self._taken:
            self.drop(self._taken[0])
        if data is not self._data:
            self._end()
            self._data, self._sharing, self.groups = data, sharing, 0

    @property
    def encoders(self) -> int:
        """How many jobs are encoded at the same time."""
        return max(self._count, 1)

    @property
    def is_starting(self) -> bool:
        """Whether processes are about to help: they have still to be started, or to read the data."""
        is_ready = self._is_ready
        return self._count > 0 and not is_ready  # who has lost them counts none

    @property
    def has_room(self) -> bool:
        """Whether a job can be taken now."""
        return self._is_ready and self._processes is not None and self._processes.has_room

    @property
    def _is_ready(self) -> bool:
        """Whether processes are there and have read the data."""
        try:
            return self._processes is not None and self._processes.ready
        except Lost:
            self._give_up()
            return False

    def jobs(
        self,
        groups: Iterable[Ints | None],
        make: Callable[[Ints, Sequence[Job]], Job | None],
        takes: Callable[[Job], bool] = lambda job: True,
    ) -> Iterator[Job | None]:
        """The jobs of groups of batches, each when its turn has come; groups are taken some jobs ahead.

        None among the groups comes back in its place. make: the job of a group behind others that are still
        to run; None if it cannot be made before the first of them has. takes: whether a job is to be encoded
        ahead. None is where other data are used meanwhile.
        """
        coming, data = deque[Job | None](), self._data
        for group in groups:
            while coming and not self.has_room:
                yield coming.popleft()
            job = None
            if group is not None:
                while (job := make(group, [each for each in coming if each is not None])) is None:
                    yield coming.popleft()
            waits = bool(coming) if job is None else takes(job) and data is self._data and self.take(job)
            while coming and not waits:
                yield coming.popleft()
            if waits:
                coming.append(job)
            else:
                yield job
        yield from coming

    def take(self, job: Job) -> bool:
        """Takes a job, to be handed back in order; False if it has to be encoded by the caller at once."""
        self.groups += 1
        if self._data is not None and self._count and self._processes is None and self.groups > self._least:
            try:
                self._processes = Processes(self._data, self._count, self._sharing)
            except (Lost, OSError):
                self._give_up()
        if not self.has_room or self._processes is None:
            return False
        try:
            self._processes.submit(job)
        except Lost:
            self._give_up()
        self._taken.append(job)
        return True

    def schedules(self, job: Job) -> Schedules | None:
        """The schedules of the oldest job, to be copied before the next one is taken; DoesNotFit.

        None: it has to be encoded by the caller. Jobs before it that nobody has asked for are dropped.
        """
        if job not in self._taken:
            return None
        while self._taken[0] is not job:
            self.drop(self._taken[0])
        self._taken.popleft()
        try:
            return None if self._processes is None else self._processes.receive(job)
        except Lost:
            self._give_up()
            return None

    def drop(self, job: Job) -> None:
        """A job that nobody waits for any longer."""
        with suppress(DoesNotFit):
            self.schedules(job)

    def _give_up(self) -> None:
        self._end()
        self._count = 0

    def _end(self) -> None:
        if self._processes is not None:
            self._processes.close()
            self._processes = None
