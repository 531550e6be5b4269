"""Batches encoded ahead, in processes of dnc or by the workers of a data loader.

In: sample numbers, or samples. Out: an `Encoded`, which a module takes in place of the batch. Guaranteed: the
same words as if the module had encoded the batch, so the same bits; what does not fit into the memory of
the module by the time it comes is encoded again there. Encoders and encoded batches can be pickled, and
need no device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakValueDictionary

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dnc.api.arguments import are_numbers, sample_numbers
from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE
from dnc.ir.plan import Plan
from dnc.runtime.ahead import Ahead
from dnc.runtime.batches import Drawn, distinct, groups
from dnc.runtime.data import Dataset
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.keys import Keys, keys_of
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.phases import BOTH, FORWARD_ONLY, PREDICT
from dnc.runtime.pool import StaticPool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import Schedules
from dnc.runtime.sharing import Sharing

# What an encoder is made for, and the mode of its schedules.
TRAINING, VALUES, PREDICTION = "training", "values", "prediction"
PURPOSES = {TRAINING: BOTH, VALUES: FORWARD_ONLY, PREDICTION: PREDICT}

# (replicas, workers) of batches of 1, 2, ... samples.
Grids = Sequence[tuple[int, int]]

_KNOWN: WeakValueDictionary[str, BatchEncoder] = WeakValueDictionary()


class Room(Protocol):
    """Where batches are to run."""

    def ahead_of(self, dataset: Dataset) -> Ahead:
        """What encodes batches of a data set for it."""

    @property
    def pool(self) -> StaticPool:
        """Its layout now."""

    def grow(self, problem: DoesNotFit) -> bool:
        """Makes room for what does not fit, if it can."""


def as_lists(counts: Mapping[str, Ints]) -> dict[str, list[int]]:
    """Rows of every sample, by field or output, for torch.split."""
    return {name: each.tolist() for name, each in counts.items()}


@attrs.frozen(eq=False, repr=False)
class Encoded:
    """A batch with its schedule for one layout of the pool, which may be missing.

    batch: what was encoded. samples: how many. count: what finds the sizes, of which few ask.
    """

    encoder: BatchEncoder
    batch: Any
    samples: int
    _count: Callable[[], Mapping[str, Ints]]
    _schedule: Schedule | None
    keys: Sequence[Keys]
    pool: StaticPool

    def __repr__(self) -> str:
        missing = "nothing: it is encoded when it comes"
        what = missing if self._schedule is None else self.encoder.purpose
        return f"<{self.samples} samples of {self.encoder.plan.program.name}, encoded for {what}>"

    @property
    def mode(self) -> str | None:
        """That of the schedule."""
        return None if self._schedule is None else self._schedule.mode

    @property
    def counts(self) -> Mapping[str, Ints]:
        """Rows of every sample, by pulled field and by output."""
        return self._count()

    @property
    def sizes(self) -> dict[str, list[int]]:
        """The same as `Module.sizes` has it, for torch.split."""
        return as_lists(self.counts)

    def schedule(self, mode: str, pool: StaticPool, words: int, noise: int) -> Schedule | None:
        """The schedule with some noise, if it is there for a mode and suits a pool of so many words."""
        found = self._schedule
        if found is None or found.mode != mode or not (self.pool is pool or self.pool == pool):
            return None
        if pool.words + found.activations > words:
            return None
        for keys in self.keys:
            keys.fill(found.words, noise)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what the encoder has: plan, positions, the numbers of all vertices."""
        light = None if self._schedule is None else self._schedule.bare()
        rest = (self.batch, self.samples, self.counts, light, self.keys, self.pool)
        return _received, (self.encoder.key, *rest)


def _received(
    key: str,
    batch: Any,
    samples: int,
    counts: Mapping[str, Ints],
    schedule: Schedule | None,
    keys: Sequence[Keys],
    pool: StaticPool,
) -> Encoded:
    encoder = _KNOWN.get(key)
    if encoder is None:
        raise fail("found a batch whose encoder is gone: keep what `encoder` returned while it is in use")
    whole = None if schedule is None else attrs.evolve(schedule, plan=encoder.plan)
    return Encoded(encoder, batch, samples, lambda: counts, whole, keys, pool)


@attrs.frozen(eq=False)
class _Samples:
    """Samples of a data set. kept: what they are known by, to encode them again."""

    dataset: Dataset
    encoder: Encoder
    sharing: Sharing
    samples: Ints
    kept: Any


@attrs.define(eq=False, repr=False)
class BatchEncoder:
    """Encodes batches of one module; a data loader takes it as its `collate_fn`.

    owner: the module's. purpose: what its batches are for; mode: of their schedules. grids: of as many
    samples as it was made for. attached: what sample numbers mean. read: samples to a data set.
    """

    owner: str
    plan: Plan
    pool: StaticPool
    modes: Modes
    purpose: str
    mode: str
    grids: Grids
    attached: tuple[Dataset, Encoder, Sharing] | None
    read: Callable[[Any], Dataset]
    key: str = attrs.field(factory=lambda: uuid4().hex)

    def __repr__(self) -> str:
        return f"<encoder of batches of {self.plan.program.name}>"

    def __attrs_post_init__(self) -> None:
        _KNOWN[self.key] = self

    @property
    def reads_labels(self) -> bool:
        """Whether samples need what is to be predicted."""
        return self.purpose != PREDICTION

    def __call__(self, batch: Sequence[Any] | NDArray[Any] | Tensor) -> Encoded:
        """A list of samples, or of numbers of those that were attached when the encoder was made."""
        return self._encoded(self._read(batch))

    def stream(self, batches: Iterable[Any], room: Room) -> Iterator[Encoded]:
        """The same for batches in order, made ahead: several small ones of sample numbers at a time."""
        if self.attached is None:
            yield from (self(batch) for batch in batches)
            return
        drawn = Drawn(map(self._read, batches))
        yield from drawn.through(self._ahead(drawn, self.attached, room))

    def _ahead(
        self, batches: Iterable[_Samples], attached: tuple[Dataset, Encoder, Sharing], room: Room
    ) -> Iterator[Encoded]:
        """Batches that were read, in order, encoded in groups and in other processes as far as that goes."""
        dataset, encoder, sharing = attached
        ahead = room.ahead_of(dataset)
        ahead.use(encoder.prepared, sharing)
        coming = deque[tuple[list[_Samples], Job | None]]()
        try:
            for group in self._groups(batches, attached):
                while coming and not ahead.has_room:
                    yield from self._made_ahead(*coming.popleft(), ahead, room)
                self.pool = room.pool
                job, ours = self._job(group), group[0].encoder is encoder
                is_taken = job is not None and ours and ahead.take(job)
                coming.append((group, job))
                while coming and not is_taken:  # nobody helps
                    yield from self._made_ahead(*coming.popleft(), ahead, room)
            while coming:
                yield from self._made_ahead(*coming.popleft(), ahead, room)
        finally:
            for _, job in coming:  # broken off
                if job is not None:
                    ahead.drop(job)

    def _groups(
        self, batches: Iterable[_Samples], attached: tuple[Dataset, Encoder, Sharing]
    ) -> Iterator[list[_Samples]]:
        """Batches in order, in groups that can be encoded together: of numbers, if they share little."""
        _, encoder, sharing = attached
        together = sharing.in_groups(self.mode)
        for is_group, run in groupby(batches, lambda found: together and found.encoder is encoder):
            if not is_group:
                yield from ([found] for found in run)
                continue
            for group in groups(found.samples for found in run):
                yield [_Samples(*attached, samples, samples) for samples in group]

    def source(self, batch: Any) -> tuple[Dataset, Ints]:
        """The data of an encoded batch, and its sample numbers."""
        found = self._read(batch)
        return found.dataset, found.samples

    def _read(self, given: Any) -> _Samples:
        batch: Any = given.numpy(force=True) if isinstance(given, Tensor) else given
        if isinstance(batch, Mapping | str | bytes) or not isinstance(batch, Sequence | np.ndarray):
            found = "one sample" if isinstance(batch, Mapping) else type(batch).__name__
            raise fail(f"found {found}, expected a list of samples, or of their numbers")
        numbers = are_numbers(batch)
        if not len(batch):
            raise fail("a batch holds no samples")
        if numbers:
            if self.attached is None:
                raise fail("no data were attached when the encoder was made: call attach(data) before")
            batch = sample_numbers(batch, self.attached[0].samples)
            dataset, samples = distinct(self.attached[0], batch)
            if dataset is self.attached[0]:
                return _Samples(*self.attached, samples, batch)
        else:
            dataset = self.read(batch)
            samples = np.arange(dataset.samples, dtype=np.int32)
        own = Encoder(prepare(self.plan, dataset.forest), self.pool, self.modes)
        return _Samples(dataset, own, Sharing(self.plan, dataset), samples, batch)

    def _encoded(self, found: _Samples) -> Encoded:
        """A batch, encoded here; without a schedule where that does not fit."""
        schedules, job = None, self._job([found])
        if job is not None:
            with suppress(DoesNotFit):
                schedules = job.encode(found.encoder, found.sharing)
        return self._with([found], schedules)[0]

    def _made_ahead(
        self, group: list[_Samples], job: Job | None, ahead: Ahead, room: Room
    ) -> Iterator[Encoded]:
        """Batches whose job, if there is one, was taken, or is done here."""
        if job is None:
            yield from self._with(group, None)
            return
        found: Schedules | None = None
        with suppress(DoesNotFit):
            made = ahead.schedules(job)
            if made is not None and job.pool is self.pool:  # its words lie where those of others will
                found = attrs.evolve(made, words=made.words.copy())
        while True:
            try:
                if found is None:
                    here = job.moved(self.pool, job.buffer, job.pool_words)
                    found = here.encode(group[0].encoder, group[0].sharing)
                yield from self._with(group, found)
                return
            except DoesNotFit as problem:
                if not room.grow(problem):
                    break
                self.pool = room.pool
        yield from map(self._encoded, group)

    def _job(self, group: Sequence[_Samples]) -> Job | None:
        """What there is to encode; nothing for batches that are encoded when they come."""
        batches = np.stack([found.samples for found in group])
        count = batches.shape[1]
        if count > len(self.grids):
            return None
        none, grid = np.full(len(batches), NONE, np.uint32), self.grids[count - 1]
        return Job(batches, grid, [], none, self.pool, 0, None, self.mode, shares=True)

    def _with(self, group: Sequence[_Samples], schedules: Schedules | None) -> list[Encoded]:
        made = []
        for at, found in enumerate(group):
            own = None if schedules is None else schedules[at]
            keys = () if own is None else keys_of(found.encoder, own)
            count = partial(found.sharing.counts, found.samples)
            made.append(Encoded(self, found.kept, len(found.samples), count, own, keys, self.pool))
        return made
