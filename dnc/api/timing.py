"""Times kernels of a model on the user's batches, with parameters of its own.

In: work (data and batches), kernels with the grids to launch them on. Out: microseconds a launch.
Guaranteed: no run, checkpoint or build is read or written; parameters are fresh ones, and the updates
have a rate of zero, so that every round does the same. Rounds go over all kernels in turn, so that what
else the machine does strikes them alike; of every batch the fastest launch counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import attrs
import numpy as np

from dnc.api.ranking import Work
from dnc.diagnostics import DiagnosticError
from dnc.explain.facts import mode_of
from dnc.ir.noise import NONE
from dnc.ir.plan import Plan
from dnc.runtime.backend import Backend
from dnc.runtime.devices import Place, backend_of
from dnc.runtime.initialize import initialize
from dnc.runtime.phases import TRAIN
from dnc.runtime.session import Session


@attrs.frozen(eq=False)
class Contestant:
    """A kernel on a grid. replicas: None for as many as a GPU holds."""

    plan: Plan
    files: Mapping[str, bytes]
    replicas: int | None
    workers: int


@attrs.frozen
class Measured:
    """microseconds: of a launch, the mean over the batches; None where it did not run: `problem` says why.

    replicas: that a launch had, which only the device knows where a contestant asks for all; 0 if none ran.
    """

    microseconds: float | None
    problem: str = ""
    replicas: int = 0


def measure(
    work: Work,
    place: Place,
    contestants: Sequence[Contestant],
    rounds: int,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Measured]:
    """Times of all contestants. tell: called with the number of rounds that are over; the first warms up."""
    runners, backends = list[_Runner | str](), list[Backend]()
    found: list[list[list[float]]] = [[] for _ in contestants]
    try:
        for each in contestants:
            try:
                backends.append(backend_of(place, each.plan, dict(each.files), each.replicas, each.workers))
                runners.append(_Runner(work, each, backends[-1]))
            except DiagnosticError as error:
                runners.append(_first_line(error))
        for done in range(rounds + 1):
            for at, runner in enumerate(runners):
                if isinstance(runner, _Runner):
                    try:
                        found[at].append(runner.round())
                    except DiagnosticError as error:
                        runners[at] = _first_line(error)
            tell(done)
    finally:
        for backend in backends:
            with suppress(DiagnosticError):  # of a device that has failed nothing can be given back
                backend.close()
    return [
        Measured(None, runner)
        if isinstance(runner, str)
        else Measured(_mean_of_fastest(times[1:]), replicas=runner.replicas)
        for runner, times in zip(runners, found, strict=True)
    ]


def _mean_of_fastest(rounds: list[list[float]]) -> float:
    return float(np.mean(np.min(np.array(rounds), axis=0))) * 1e6


def _first_line(error: DiagnosticError) -> str:
    return str(error.diagnostics[0].message)


class _Runner:
    """Fresh parameters on a backend, and batches that run on them."""

    def __init__(self, work: Work, contestant: Contestant, backend: Backend) -> None:
        self.work, self.backend, self.mode = work, backend, mode_of(contestant.plan)
        values = initialize(contestant.plan.program, work.rows, 1)
        self.session = Session(contestant.plan, backend, work.rows, values, encoders=0)
        self.data = self.session.attach(work.data.forest)

    @property
    def replicas(self) -> int:
        """Replicas of a launch."""
        return self.backend.grid(len(self.work.batches[0]), self.mode == TRAIN)[0]

    def round(self) -> list[float]:
        """Seconds of the kernels of every batch."""
        found = []
        try:
            for batch in self.work.batches:
                schedules = self.session.encode(self.data, batch, self.mode, noise=NONE)
                seconds = self.backend.time_kernels()
                assert seconds is not None
                for schedule in schedules:
                    self.session.run(schedule, ())
                found.append(sum(seconds))
        finally:
            self.backend.time_kernels(False)
        return found
