"""Launches that read and write tensors.

In: a batch, pulled vectors, gradients of pushed values, all on the device. Out: values and gradients, on the
device, without waiting for it. Guaranteed: everything runs on PyTorch's current stream; what a launch
leaves in the pool is good until the next one, before which those who still need it copy it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary, ref

import attrs
import torch
from torch import Tensor

from dnc.api import Model
from dnc.diagnostics import fail
from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE, step_noise
from dnc.ir.plan import Result, padded
from dnc.runtime.data import Dataset
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.phases import TRAIN
from dnc.runtime.schedule import Schedule
from dnc.runtime.sharing import GRADIENT, OUTPUT, Sharing
from dnc.torch import memory
from dnc.torch.memory import Memory

Values = Mapping[str, Tensor]


@attrs.frozen(eq=False)
class BatchOf:
    """Samples of a data set. noise: what dropout draws from, `NONE` for no dropout.

    moves: whether running statistics move, as they do in training.
    """

    dataset: Dataset
    samples: Ints
    noise: int = NONE
    moves: bool = False


@attrs.frozen(eq=False)
class Launched:
    """A launch that is under way, or over, and the places that it shares."""

    schedule: Schedule
    guest: Guest
    number: int  # launches of the device so far, this one included


class Launches:
    """Starts launches of a model whose pool PyTorch shares."""

    def __init__(self, model: Model, pool: Memory, parameters: Callable[[], Values]) -> None:
        self.model, self.memory, self._parameters = model, pool, parameters
        self._draws = 0
        self._use_stream: Callable[[int], None] | None = getattr(model.backend, "use_stream", None)
        self._sharings: WeakKeyDictionary[Dataset, Sharing] = WeakKeyDictionary()
        self._late: Callable[[], Gradients | None] = lambda: None
        self._results = {result.name: result for result in model.plan.results if result.kind != "metric"}
        self._running = [p.name for p in model.program.parameters if p.running]
        self._header = isa.layout(model.plan).header

    def sharing(self, dataset: Dataset) -> Sharing:
        """The places of a data set."""
        if dataset not in self._sharings:
            self._sharings[dataset] = Sharing(self.model.plan, dataset)
        return self._sharings[dataset]

    def noise(self) -> int:
        """Another noise for every training batch, from the seed of the model; none without dropout."""
        if not self.model.session.is_noisy:
            return NONE
        self._draws += 1
        return step_noise(self.model.session.seed, self._draws)

    def run(
        self,
        batch: BatchOf,
        mode: str,
        pulled: Values,
        pushed: Values | None = None,
        loss: Tensor | None = None,
    ) -> Launched:
        """Starts a launch. pushed: gradients by output; with it, `loss` is the gradient of the loss."""
        self.enter()
        late = self._late()
        if late is not None:
            late.rescue()
        self._late = lambda: None
        parameters = self._parameters()
        self.memory.bring_in(parameters)
        session, sharing = self.model.session, self.sharing(batch.dataset)
        if session is not self.memory.session:
            raise fail("the model was restored under its module: make another one, with checkpoint=")
        guest = sharing.guest(batch.samples, GRADIENT if mode == TRAIN else OUTPUT, mode == TRAIN)
        places = {**sharing.pulled, **(sharing.pushed if mode == TRAIN else {})}
        given = {**pulled, **(pushed or {})}

        def fill(schedule: Schedule) -> None:
            self.memory.refresh(parameters)
            first = schedule.address * 4
            for name, value in given.items():
                space, field = places[name]
                handed = guest.handed[space.struct, field]
                at = first + guest.vectors[space.struct, field]
                room = self.memory.floats.narrow(0, at, handed.rows * handed.stride)
                room.view(handed.rows, handed.stride)[:, : handed.width].copy_(value)
            if pushed is not None:
                at = first + self._header["loss_scale"]
                scale = self.memory.floats.narrow(0, at, 1)
                scale.mul_(0.0 if loss is None else loss)

        kept = {} if mode != TRAIN or batch.moves else {n: parameters[n].clone() for n in self._running}
        encoder = self.model.encoder(batch.dataset)
        schedule = session.share(encoder, batch.samples, mode, guest, fill, batch.noise)
        if self._use_stream is None:
            session.wait()
        for name, value in kept.items():
            parameters[name].data.copy_(value)
        return Launched(schedule, guest, self.model.launches)

    def enter(self) -> None:
        """Goes on in PyTorch's current stream."""
        if self._use_stream is not None:
            self._use_stream(memory.current_stream())

    # ---- what a launch leaves -------------------------------------------------------------------

    def loss(self, launched: Launched) -> Tensor:
        """The mean loss over the samples."""
        schedule = launched.schedule
        words = [word for name, (word, _) in schedule.results.items() if name.startswith("loss:")]
        first = schedule.bases[isa.RESULTS] * 4
        terms = [self.memory.floats[first + word] for word in words]
        total = torch.stack(terms).sum() if len(terms) > 1 else terms[0]
        return total / len(schedule.samples)

    def values(self, launched: Launched, names: Iterable[str]) -> dict[str, Tensor]:
        """Results by name: rows of all samples, one sample after another."""
        return {name: self._result(launched, self._results[name]) for name in names}

    def _result(self, launched: Launched, result: Result) -> Tensor:
        schedule, guest = launched.schedule, launched.guest
        rows, count = schedule.rows[result.space], len(guest.taken[result.name])
        width = schedule.plan.buffer(result.buffer).width
        size = 1
        for each in result.shape:
            size *= each
        found = self.memory.floats.narrow(0, schedule.bases[result.buffer] * 4, rows * width)
        at = schedule.address * 4 + guest.numbers[result.name]
        index = self.memory.words.narrow(0, at, count)
        values = found.view(rows, width)[:, :size].index_select(0, index).view(count, *result.shape)
        return values.round().long() if result.dtype == "i32" else values

    def gradients(self, launched: Launched) -> Gradients:
        """The gradients of a training launch, which lie in the pool still."""
        found = Gradients(self, launched)
        self._late = ref(found)
        return found


class Gradients:
    """Gradients in the pool; copied at the latest when the next launch is about to overwrite them."""

    def __init__(self, launches: Launches, launched: Launched) -> None:
        self._launches, self._launched = launches, launched
        self._arena, self._firsts = launches.memory.gradients()
        self._tables = {
            name: (self._rows(name, count), self._numbers(at, count), count)
            for name, (at, count) in launched.guest.touched.items()
        }
        self._pulled = [r.name for r in launched.schedule.plan.results if r.kind == GRADIENT]
        self._vectors: dict[str, Tensor] | None = None
        self._copied = self.used = False

    def _rows(self, name: str, count: int) -> Tensor:
        parameter = self._launched.schedule.plan.program.parameter(name)
        stride = padded(parameter.row_size)
        first = self._launched.schedule.bases[isa.table_base(name)] * 4
        room = self._launches.memory.floats.narrow(0, first, count * stride)
        return room.view(count, stride)[:, : parameter.row_size]

    def _numbers(self, at: int, count: int) -> Tensor:
        return self._launches.memory.words.narrow(0, self._launched.schedule.address * 4 + at, count)

    def rescue(self) -> None:
        """Copies what has not been used yet."""
        if not self._copied and not self.used:
            self._vectors = self._launches.values(self._launched, self._pulled)
            self._arena = self._arena.clone()
            self._tables = {
                name: (rows.clone(), numbers.clone(), count)
                for name, (rows, numbers, count) in self._tables.items()
            }
            self._copied = True

    def of(
        self, names: Iterable[str], pulled: Iterable[str], scale: Tensor | None, sparse: bool
    ) -> dict[str, Tensor]:
        """Gradients by parameter and by pulled field, times `scale`: copies, which nobody overwrites.

        RuntimeError where they are gone: used before, and overwritten since.
        """
        if not self._copied and self._launched.number != self._launches.model.launches:
            raise RuntimeError(
                "the gradients of this batch were used before (or belong to a model that ran outside of "
                "PyTorch meanwhile), and another batch has run since: call backward() before the next one"
            )
        self.used = True
        wanted, found = list(names), dict[str, Tensor]()
        places = self._launches.memory.places
        if any(name not in self._tables for name in wanted):
            arena = self._arena.clone() if scale is None else self._arena * scale
            for name in wanted:
                if name not in self._tables:
                    found[name] = places[name].read(arena, self._firsts[name])
        for name in wanted:
            if name in self._tables:
                found[name] = self._table(name, places[name].shape, scale, sparse)
        vectors = self._vectors or self._launches.values(self._launched, pulled)
        for name in pulled:
            found[name] = vectors[name] if scale is None else vectors[name] * scale
        return found

    def _table(self, name: str, shape: tuple[int, ...], scale: Tensor | None, sparse: bool) -> Tensor:
        rows, numbers, count = self._tables[name]
        values = rows.clone() if scale is None else rows * scale
        values = values.view(count, *shape[1:])
        if sparse:
            return torch.sparse_coo_tensor(
                numbers.long()[None], values, shape, is_coalesced=True, check_invariants=False
            )
        return values.new_zeros(shape).index_add_(0, numbers, values)
