"""Evaluation and prediction of many batches, on the road that training batches take.

In: a session, prepared data, batches. Out: outputs batch by batch, or losses and metrics. Guaranteed: the
bits of a batch do not depend on the others; batches are encoded while those before them run, small ones
several at a time, in other processes once there are enough of them; one copy brings the values of a group,
and nobody waits for a single launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE
from dnc.runtime.ahead import Ahead
from dnc.runtime.batches import are_distinct, groups, one_lane
from dnc.runtime.encoder import Encoder
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.readout import Readout
from dnc.runtime.measurements import Measurements
from dnc.runtime.phases import EVALUATE, PREDICT
from dnc.runtime.predictions import collect, read_columns
from dnc.runtime.results import BatchSums, Evaluation
from dnc.runtime.schedules import Schedules

if TYPE_CHECKING:
    from dnc.runtime.session import Session

# Samples of one launch where the caller does not say.
CHUNK = 256
# Samples of a group, at most, and of all lanes at a time: a launch is over sooner than one that trains.
MOST_SAMPLES = 2048
# Groups of one call before processes are started for it: they need a second to read the data.
GROUPS = 32
# Words that the host reads of a group, about; and of a batch, if it is to take this road at all.
GROUP_WORDS, BATCH_WORDS = 1 << 22, 1 << 24


class Answers:
    """See the module. ahead: what encodes for it."""

    def __init__(self, session: Session, processes: int) -> None:
        self.session, self.ahead = session, Ahead(processes, GROUPS)

    # ---- prediction -----------------------------------------------------------------------------

    def predictions(
        self, data: Encoder, batches: Iterable[Sequence[int] | Ints], noise: int = NONE
    ) -> Iterator[dict[str, list[Any]]]:
        """The declared outputs of every batch by name, one entry a sample, in order; some batches late."""
        yield from self._predictions(data, batches, noise, self._lanes)

    def _predictions(
        self,
        data: Encoder,
        batches: Iterable[Sequence[int] | Ints],
        noise: int,
        lanes: Callable[[int], int],
    ) -> Iterator[dict[str, list[Any]]]:
        session, waiting = self.session, deque[_Group]()
        session.settle()
        for job, schedules in self._encoded(data, batches, PREDICT, noise, lanes):
            if schedules is None:
                while waiting:
                    yield from self._collect(waiting.popleft())
                for samples in job.batches:
                    yield self._alone(data, samples, noise, lanes(len(samples)))
                continue
            group = _Group(len(job.batches[0]), schedules.readout)
            session.launches.start(schedules, take=group.take)
            waiting.append(group)
            while len(waiting) > 1:
                yield from self._collect(waiting.popleft())
        while waiting:
            yield from self._collect(waiting.popleft())

    def predict(self, data: Encoder, samples: Ints, noise: int = NONE) -> dict[str, list[Any]]:
        """The declared outputs of some samples, in order, in as many batches as it takes.

        Distinct ones are batches in the order in which they come, each on the whole device.
        """
        results = self.session.plan.results
        found: dict[str, list[Any]] = {r.name: [] for r in results if r.kind == "output"}
        once = are_distinct(samples)
        distinct, inverse = (samples, samples) if once else np.unique(samples, return_inverse=True)
        for outputs in self._predictions(data, _chunks(distinct), noise, one_lane):
            for name, values in outputs.items():
                found[name] += values
        return found if once else {name: [values[at] for at in inverse] for name, values in found.items()}

    def _collect(self, group: _Group) -> Iterator[dict[str, list[Any]]]:
        while group.outputs is None:
            if not self.session.launches.collect_oldest():
                raise fail("predictions were interrupted, and their results are lost")
        batches = 1 if group.readout is None else group.readout.batches
        for at in range(0, batches * group.size, group.size):
            yield {name: values[at : at + group.size] for name, values in group.outputs.items()}

    def _alone(self, data: Encoder, samples: Ints, noise: int, lanes: int = 1) -> dict[str, list[Any]]:
        """A batch in which a sample occurs twice, or that does not fit: a launch at a time."""
        session = self.session
        distinct, inverse = np.unique(samples, return_inverse=True)
        found: dict[str, list[Any]] = {r.name: [] for r in session.plan.results if r.kind == "output"}
        for schedule in session.encode(data, distinct, PREDICT, noise=noise, lanes=lanes):
            session.launches.start([schedule])
            session.launches.drain()
            outputs = collect(session.backend, data, schedule, np.sort(schedule.samples))
            for name, values in outputs.items():
                found[name] += values
        return {name: [values[at] for at in inverse] for name, values in found.items()}

    # ---- evaluation -----------------------------------------------------------------------------

    def evaluate(self, data: Encoder, samples: Ints) -> Evaluation:
        """Loss and metrics over the samples, chunk by chunk."""
        session = self.session
        session.settle()
        whole = BatchSums(0, len(samples), 0)
        measurements = Measurements(session.plan, session.classes)
        for job, schedules in self._encoded(data, _chunks(samples), EVALUATE, NONE, one_lane):
            if schedules is None:
                for each in job.batches:
                    self._evaluate_alone(data, each, whole, measurements)
                continue
            columns = _Columns(measurements, data, schedules)
            take = columns.take if measurements.need_rows else None
            session.launches.start(schedules, [whole] * len(schedules), take=take)
        session.launches.drain()
        return Evaluation(len(samples), whole.loss(), measurements.metrics(whole.sums))

    def _evaluate_alone(
        self, data: Encoder, samples: Ints, whole: BatchSums, measurements: Measurements
    ) -> None:
        session = self.session
        part, numbers = session.distinct(data, samples)
        for schedule in session.encode(part, numbers, EVALUATE):
            session.launches.start([schedule], [whole])
            if measurements.need_rows:
                session.launches.drain()
                measurements.add(part, schedule, read_columns(session.backend, schedule))

    # ---- both -----------------------------------------------------------------------------------

    def _lanes(self, samples: int) -> int:
        """How many batches of so many samples run at the same time: it follows from the batch alone."""
        lanes = self.session.backend.lanes
        return lanes if samples * lanes <= MOST_SAMPLES else 1

    def _encoded(
        self,
        data: Encoder,
        batches: Iterable[Sequence[int] | Ints],
        mode: str,
        noise: int,
        lanes: Callable[[int], int],
    ) -> Iterator[tuple[Job, Schedules | None]]:
        """Jobs in order, each with its schedules, to be launched at once; None if they do not fit together.

        Batches are taken some jobs ahead, if there is someone to encode them.
        """
        self.ahead.use(data.prepared)
        self.ahead.groups = 0
        words = data.read_words(mode)
        most = max(1, min(MOST_SAMPLES, int(GROUP_WORDS / words)))

        def make(group: Ints, coming: Sequence[Job]) -> Job:
            noises, turn = np.full(len(group), noise, np.uint32), lanes(len(group[0]))
            return self.session.job(data, group, mode, noises, len(coming), lanes=turn)

        def fits(job: Job) -> bool:
            return words * len(job.batches[0]) <= BATCH_WORDS

        for job in self.ahead.jobs(groups(batches, most, lanes, self.ahead.encoders), make, fits):
            assert job is not None  # there is none among the groups
            yield job, self.session.encode_job(data, job, self.ahead) if fits(job) else None


@attrs.define(eq=False)
class _Group:
    """Batches of `size` samples that run behind each other; their outputs, once they are over."""

    size: int
    readout: Readout | None
    outputs: dict[str, list[Any]] | None = None

    def take(self, words: NDArray[np.float32]) -> None:
        self.outputs = {} if self.readout is None else self.readout.outputs(words)


@attrs.frozen(eq=False)
class _Columns:
    """Where the rows of a group of evaluations go."""

    measurements: Measurements
    data: Encoder
    schedules: Schedules

    def take(self, words: NDArray[np.float32]) -> None:
        readout = self.schedules.readout
        assert readout is not None
        for schedule, columns in zip(self.schedules, readout.columns(words), strict=True):
            self.measurements.add(self.data, schedule, columns)


def _chunks(samples: Ints) -> Iterator[Ints]:
    return (samples[at : at + CHUNK] for at in range(0, len(samples), CHUNK))
