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
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dnc.api.arguments import are_numbers, sample_numbers
from dnc.diagnostics import fail
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE, vertex_keys
from dnc.ir.plan import NoiseList, Plan
from dnc.runtime.ahead import Ahead
from dnc.runtime.batches import are_distinct
from dnc.runtime.data import Dataset
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.phases import FORWARD_ONLY, PREDICT, TRAIN
from dnc.runtime.pool import StaticPool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import Schedule, list_words
from dnc.runtime.sharing import Sharing

# What an encoder is made for, and the modes of its schedules.
TRAINING, VALUES, PREDICTION = "training", "values", "prediction"
PURPOSES = {TRAINING: (FORWARD_ONLY, TRAIN), VALUES: (FORWARD_ONLY,), PREDICTION: (PREDICT,)}

# By mode (replicas, workers) of batches of 1, 2, ... samples.
Grids = Mapping[str, Sequence[tuple[int, int]]]
# Words of a schedule that noise is made into: (offset, vertex of every row).
NoiseWords = Sequence[tuple[int, NDArray[np.intp]]]

_KNOWN: WeakValueDictionary[str, BatchEncoder] = WeakValueDictionary()


@attrs.frozen(eq=False)
class Encoded:
    """A batch with its schedules by mode, for one layout of the pool; the schedules may be missing.

    batch: what was encoded. samples: how many. sizes: rows of every sample, by pulled field and by output.
    """

    encoder: BatchEncoder
    batch: Any
    samples: int
    sizes: Mapping[str, Ints]
    schedules: Mapping[str, Schedule]
    noises: Mapping[str, NoiseWords]
    pool: StaticPool

    def schedule(self, mode: str, pool: StaticPool, words: int, noise: int) -> Schedule | None:
        """The schedule of a mode with some noise, if it is there and suits a pool of so many words."""
        found = self.schedules.get(mode)
        if found is None or not (self.pool is pool or self.pool == pool):
            return None
        if pool.words + found.activations > words:
            return None
        for at, vertices in self.noises[mode]:
            found.words[at : at + len(vertices)] = vertex_keys(np.array([noise]), vertices)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what the encoder has: plan, positions, the numbers of all vertices."""
        light = {mode: _without_plan(schedule) for mode, schedule in self.schedules.items()}
        rest = (self.batch, self.samples, self.sizes, light, self.noises, self.pool)
        return _received, (self.encoder.key, *rest)


def _without_plan(schedule: Schedule) -> Schedule:
    assert schedule.guest is not None
    return attrs.evolve(schedule.bare(), guest=schedule.guest.bare())


def _received(
    key: str,
    batch: Any,
    samples: int,
    sizes: Mapping[str, Ints],
    schedules: Mapping[str, Schedule],
    noises: Mapping[str, NoiseWords],
    pool: StaticPool,
) -> Encoded:
    encoder = _KNOWN.get(key)
    if encoder is None:
        raise fail("found a batch whose encoder is gone: keep what `encoder` returned while it is in use")
    plan = encoder.plan
    whole = {mode: attrs.evolve(schedule, plan=plan) for mode, schedule in schedules.items()}
    return Encoded(encoder, batch, samples, sizes, whole, noises, pool)


@attrs.frozen(eq=False)
class _Samples:
    """Samples of a data set. kept: what they are known by, to encode them again."""

    dataset: Dataset
    encoder: Encoder
    sharing: Sharing
    samples: Ints
    kept: Any


@attrs.define(eq=False)
class BatchEncoder:
    """Encodes batches of one module; a data loader takes it as its `collate_fn`.

    owner: the module's. grids: of as many samples as it was made for. attached: what sample numbers
    mean. read: samples to a data set.
    """

    owner: str
    plan: Plan
    pool: StaticPool
    modes: Modes
    grids: Grids
    attached: tuple[Dataset, Encoder, Sharing] | None
    read: Callable[[Any], Dataset]
    key: str = attrs.field(factory=lambda: uuid4().hex)

    def __attrs_post_init__(self) -> None:
        _KNOWN[self.key] = self

    def __call__(self, batch: Sequence[Any] | NDArray[Any] | Tensor) -> Encoded:
        """A list of samples, or of numbers of those that were attached when the encoder was made."""
        return self._encoded(self._read(batch))

    def stream(
        self, batches: Iterable[Sequence[Any] | NDArray[Any] | Tensor], ahead: Ahead
    ) -> Iterator[Encoded]:
        """The same for batches in order, those of sample numbers made ahead."""
        if self.attached is not None:
            _, encoder, sharing = self.attached
            ahead.use(encoder.prepared, sharing)
        coming = deque[tuple[_Samples, dict[str, Job]]]()
        for batch in batches:
            while coming and not ahead.has_room:
                yield self._made_ahead(*coming.popleft(), ahead)
            found = self._read(batch)
            jobs = self._jobs(found)
            coming.append((found, {mode: job for mode, job in jobs.items() if ahead.take(job)}))
            while coming and not coming[-1][1]:  # nobody helps
                yield self._made_ahead(*coming.popleft(), ahead)
        while coming:
            yield self._made_ahead(*coming.popleft(), ahead)

    def source(self, batch: Any) -> tuple[Dataset, Ints]:
        """The data of an encoded batch, and its sample numbers."""
        found = self._read(batch)
        return found.dataset, found.samples

    def _read(self, given: Any) -> _Samples:
        batch: Any = given.numpy(force=True) if isinstance(given, Tensor) else given
        if isinstance(batch, Mapping | str | bytes) or not isinstance(batch, Sequence | np.ndarray):
            found = "one sample" if isinstance(batch, Mapping) else type(batch).__name__
            raise fail(f"found {found}, expected a list of samples, or of their numbers")
        if not len(batch):
            raise fail("a batch holds no samples")
        if are_numbers(batch):
            if self.attached is None:
                raise fail("no data were attached when the encoder was made: call attach(data) before")
            samples = sample_numbers(batch, self.attached[0].samples)
            return _Samples(*self.attached, samples, samples)
        dataset = self.read(batch)
        own = Encoder(prepare(self.plan, dataset.forest), self.pool, self.modes)
        every = np.arange(dataset.samples, dtype=np.int32)
        return _Samples(dataset, own, Sharing(self.plan, dataset), every, batch)

    def _encoded(self, found: _Samples) -> Encoded:
        """A batch, encoded here."""
        schedules: dict[str, Schedule] = {}
        for mode, job in self._jobs(found).items():
            with suppress(DoesNotFit):
                schedules[mode] = job.encode(found.encoder, found.sharing)[0]
        return self._with(found, schedules)

    def _made_ahead(self, found: _Samples, jobs: Mapping[str, Job], ahead: Ahead) -> Encoded:
        """A batch whose jobs were taken, but for some that have to be encoded here."""
        schedules: dict[str, Schedule] = {}
        for mode, job in self._jobs(found).items():
            with suppress(DoesNotFit):
                made = ahead.schedules(jobs[mode]) if mode in jobs else None
                if made is None:
                    schedules[mode] = job.encode(found.encoder, found.sharing)[0]
                else:  # its words lie where those of the next job come to lie
                    schedules[mode] = attrs.evolve(made[0], words=made.words[0].copy())
        return self._with(found, schedules)

    def _jobs(self, found: _Samples) -> dict[str, Job]:
        """By mode what there is to encode; nothing for batches that are encoded when they come."""
        count = len(found.samples)
        if not are_distinct(found.samples):
            return {}
        none = np.array([NONE], np.uint32)
        return {
            mode: Job([found.samples], grids[count - 1], [], none, self.pool, 0, None, mode, shares=True)
            for mode, grids in self.grids.items()
            if count <= len(grids)
        }

    def _with(self, found: _Samples, schedules: Mapping[str, Schedule]) -> Encoded:
        noises = {mode: self._noise_words(found.encoder, each) for mode, each in schedules.items()}
        sizes = found.sharing.counts(found.samples)
        return Encoded(self, found.kept, len(found.samples), sizes, schedules, noises, self.pool)

    def _noise_words(self, encoder: Encoder, schedule: Schedule) -> NoiseWords:
        return [
            (
                list_words(schedule.words, self.modes.layout, item.name),
                encoder.prepared.spaces[item.space].vertex[schedule.positions[item.space]],
            )
            for item in self.modes.mode(schedule.mode).lists
            if isinstance(item, NoiseList)
        ]
