"""Batches encoded ahead, by the workers of a data loader if need be.

In: sample numbers, or samples. Out: an `Encoded`, which a module takes in place of the batch. Guaranteed: the
same words as if the module had encoded the batch, so the same bits; what does not fit into the memory of
the module by the time it comes is encoded again there. Encoders and encoded batches can be pickled, and
need no device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from dnc.ir.noise import vertex_keys
from dnc.ir.plan import NoiseList, Plan
from dnc.runtime.batches import are_distinct
from dnc.runtime.data import Dataset
from dnc.runtime.encoder import DoesNotFit, Encoder
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
    guest, nobody = schedule.guest, np.zeros(0, np.int32)
    assert guest is not None
    handed = {key: attrs.evolve(each, number=nobody) for key, each in guest.handed.items()}
    return attrs.evolve(schedule.bare(), guest=attrs.evolve(guest, handed=handed))


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
        given: Any = batch.numpy(force=True) if isinstance(batch, Tensor) else batch
        _, encoder, sharing, samples, kept = self._data(given)
        if not len(samples):
            raise fail("a batch holds no samples")
        schedules: dict[str, Schedule] = {}
        noises: dict[str, NoiseWords] = {}
        for mode, grids in self.grids.items():
            if len(samples) <= len(grids) and are_distinct(samples):
                grid, guest = grids[len(samples) - 1], sharing.guest_of(samples, mode)
                try:
                    found = encoder.encode(samples, mode=mode, replicas=grid[0], workers=grid[1], guest=guest)
                except DoesNotFit:
                    continue
                schedules[mode], noises[mode] = found, self._noise_words(encoder, found)
        return Encoded(self, kept, len(samples), sharing.counts(samples), schedules, noises, self.pool)

    def source(self, batch: Any) -> tuple[Dataset, Ints]:
        """The data of an encoded batch, and its sample numbers."""
        dataset, _, _, samples, _ = self._data(batch)
        return dataset, samples

    def _data(self, batch: Any) -> tuple[Dataset, Encoder, Sharing, Ints, Any]:
        """Also what is kept of the batch, to encode it again."""
        if isinstance(batch, Mapping | str | bytes) or not isinstance(batch, Sequence | np.ndarray):
            found = "one sample" if isinstance(batch, Mapping) else type(batch).__name__
            raise fail(f"found {found}, expected a list of samples, or of their numbers")
        if are_numbers(batch):
            if self.attached is None:
                raise fail("no data were attached when the encoder was made: call attach(data) before")
            samples = sample_numbers(batch, self.attached[0].samples)
            return *self.attached, samples, samples
        dataset = self.read(batch)
        own = Encoder(prepare(self.plan, dataset.forest), self.pool, self.modes)
        every = np.arange(dataset.samples, dtype=np.int32)
        return dataset, own, Sharing(self.plan, dataset), every, batch

    def _noise_words(self, encoder: Encoder, schedule: Schedule) -> NoiseWords:
        return [
            (
                list_words(schedule.words, self.modes.layout, item.name),
                encoder.prepared.spaces[item.space].vertex[schedule.positions[item.space]],
            )
            for item in self.modes.mode(schedule.mode).lists
            if isinstance(item, NoiseList)
        ]
