"""Launches that read and write tensors.

In: a batch, pulled vectors, gradients of pushed values, all on the device. Out: values and gradients, on the
device, without waiting for it. Guaranteed: everything runs on PyTorch's current stream; what a launch
leaves in the pool is good until the next one, before which those who still need it copy it; a launch reads
nothing that one before it left there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, ref

import attrs
import numpy as np
import torch
from torch import Tensor

from dnc.api import Model
from dnc.diagnostics import fail
from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.noise import NONE, step_noise
from dnc.ir.plan import Result, padded
from dnc.ir.program import TABLE
from dnc.runtime.ahead import Ahead
from dnc.runtime.data import Dataset, layout_of, read_samples
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.encoder.processes import default_count
from dnc.runtime.outside import pulled_fields, pushed_values
from dnc.runtime.phases import BOTH, TRAIN, trains
from dnc.runtime.pool import StaticPool
from dnc.runtime.schedule import Schedule, values_of
from dnc.runtime.session import Session
from dnc.runtime.sharing import Sharing
from dnc.torch import memory
from dnc.torch.encoded import PREDICTION, PURPOSES, TRAINING, BatchEncoder, Encoded
from dnc.torch.memory import Memory

Values = Mapping[str, Tensor]
# Gradients of pushed values; zeros for None.
Incoming = Mapping[str, Tensor | None]


@attrs.define(eq=False)
class Made:
    """A batch's schedule for values and gradients, and the layout of the memory that it is for."""

    schedule: Schedule | None = None
    pool: StaticPool | None = None

    def keep(self, schedule: Schedule, pool: StaticPool) -> None:
        """Without what grows with the data set, and only the encoder reads."""
        self.schedule, self.pool = attrs.evolve(schedule.bare(), plan=schedule.plan), pool

    def forget(self) -> None:
        """Nobody asks for the batch again."""
        self.schedule = self.pool = None


@attrs.frozen(eq=False)
class BatchOf:
    """Samples of a data set, or what was encoded of them. noise: for dropout, `NONE` for none of it.

    moves: whether running statistics move, as they do in training. made: what was encoded as it came.
    """

    data: tuple[Dataset, Ints] | Encoded
    noise: int = NONE
    moves: bool = False
    made: Made = attrs.field(factory=Made)

    def source(self) -> tuple[Dataset, Ints]:
        """The data set and the sample numbers."""
        if isinstance(self.data, Encoded):
            return self.data.encoder.source(self.data.batch)
        return self.data


@attrs.frozen(eq=False)
class Launched:
    """A launch that is under way, or over, and the places that it shares. arena: where its gradients are.

    number: launches of the device so far, this one included.
    """

    schedule: Schedule
    guest: Guest
    arena: int
    number: int


@attrs.frozen(eq=False)
class Statistics:
    """Copies of the running statistics. moves: of how many batches they had moved by then."""

    values: Values
    moves: int


class Launches:
    """Starts launches of a model whose pool PyTorch shares.

    parameters: of the module, without what others stand in the place of. key: what encoded batches know it
    by. draws: batches so far that drew random numbers. moves: launches so far that moved running statistics.
    """

    def __init__(self, model: Model, pool: Memory, parameters: Callable[[], Values]) -> None:
        self.model, self.memory, self._parameters = model, pool, parameters
        self.key = uuid4().hex
        self._aheads: WeakKeyDictionary[Dataset, Ahead] = WeakKeyDictionary()
        self.draws = self.moves = 0
        self._gpu: Any = model.backend if hasattr(model.backend, "use_stream") else None
        self._sharings: WeakKeyDictionary[Dataset, Sharing] = WeakKeyDictionary()
        self._late: Callable[[], Gradients | None] = lambda: None
        plan = model.plan
        self._results: dict[str, list[Result]] = {}
        for result in plan.results:
            if result.kind != "metric":
                self._results.setdefault(result.name, []).append(result)
        self.pulled = frozenset(pulled_fields(model.program))
        places = {**pulled_fields(model.program), **pushed_values(model.program)}
        self._places = {name: (space.struct, field) for name, (space, field) in places.items()}
        self._running = [p.name for p in model.program.parameters if p.running]
        self._layout = isa.layout(plan)

    def sharing(self, dataset: Dataset) -> Sharing:
        """The places of a data set."""
        if dataset not in self._sharings:
            self._sharings[dataset] = Sharing(self.model.plan, dataset)
        return self._sharings[dataset]

    def noise(self) -> int:
        """Another noise for every training batch, from the seed of the model; none without dropout."""
        if not self.model.session.is_noisy:
            return NONE
        self.draws += 1
        return step_noise(self.model.session.seed, self.draws)

    def encoder(self, samples: int, purpose: str, at_once: bool) -> BatchEncoder:
        """An encoder for batches of up to so many samples, and memory for them.

        at_once: training takes one launch, which makes values and gradients.
        """
        self.enter()
        model, session = self.model, self.session()
        mode = TRAIN if at_once and purpose == TRAINING else PURPOSES[purpose]
        attached, known = model.attached, None
        if attached is not None:
            encoder, sharing = model.encoder(attached), self.sharing(attached)
            heaviest = np.argsort(-encoder.prepared.weight, kind="stable")[:samples].astype(np.int32)
            with self._growing():
                if len(heaviest):
                    session.shared(encoder, np.sort(heaviest), mode, sharing.guest_of(heaviest, mode))
            known = attached, Encoder(encoder.prepared, session.memory.pool, session.modes), sharing
        labels = purpose != PREDICTION
        read = partial(
            read_samples,
            program=model.program,
            vocabularies=model.vocabularies,
            labels_required=labels,
            layout=layout_of(model.program, labels),
        )
        grids = [model.backend.grid(count, trains(mode)) for count in range(1, samples + 1)]
        pool = session.memory.pool
        return BatchEncoder(self.key, model.plan, pool, session.modes, purpose, mode, grids, known, read)

    def ahead_of(self, dataset: Dataset) -> Ahead:
        """What encodes batches of a data set in other processes."""
        if dataset not in self._aheads:
            wanted = self.model.encoders
            spare = default_count(self.model.backend.leaves_cores)
            self._aheads[dataset] = Ahead(spare if wanted is None else wanted)
        return self._aheads[dataset]

    @property
    def pool(self) -> StaticPool:
        """The layout of the memory now."""
        return self.session().memory.pool

    def grow(self, problem: DoesNotFit) -> bool:
        """Makes room for what does not fit, if it can."""
        self.enter()
        session = self.session()
        with self._growing():
            session.launches.drain()
            return session.memory.grow(problem.schedule_words, problem.activations)

    def session(self) -> Session:
        """The session whose memory the parameters are."""
        if self.model.session is not self.memory.session:
            raise fail("the model was restored under its module: make another one, with checkpoint=")
        return self.memory.session

    @contextmanager
    def _growing(self, weights: Values | None = None) -> Iterator[None]:
        """While the memory may grow: gradients that lie there are copied before, parameters move with it.

        weights: what is to lie there in the place of all parameters; None for those of the module.
        """
        late, self._late = self._late(), lambda: None
        if late is not None:
            late.rescue()
        parameters = self._parameters() if weights is None else weights
        self.memory.bring_in(parameters)
        try:
            yield
        finally:
            self.memory.refresh(parameters)

    def schedule(self, batch: BatchOf, mode: str) -> Schedule:
        """The schedule of a batch: as it was encoded ahead, or for a launch before this one, if that still
        fits, else encoded now."""
        session, made = self.model.session, batch.made
        room = session.memory
        if isinstance(batch.data, Encoded):
            found = batch.data.schedule(mode, room.pool, room.words, batch.noise)
            if found is not None:
                return found
        if mode == BOTH and made.schedule is not None and made.pool is room.pool:
            return made.schedule
        dataset, samples = batch.source()
        guest = self.sharing(dataset).guest_of(samples, mode)
        found = session.shared(self.model.encoder(dataset), samples, mode, guest, batch.noise)
        if mode == BOTH:
            made.keep(found, room.pool)
        return found

    def run(
        self,
        batch: BatchOf,
        mode: str,
        pulled: Values,
        weights: Values,
        pushed: Incoming | None = None,
        loss: Tensor | None = None,
        statistics: Values | None = None,
    ) -> Launched:
        """Starts a launch; of BOTH without `pushed` the one that makes values alone.

        weights: all parameters, or what stands in their place. pushed: gradients of all outputs; with it,
        `loss` is the gradient of the loss. statistics: running ones that are there for this launch alone, of
        a batch that does not move them.
        """
        self.enter()
        session, kept = self.session(), dict[str, Tensor]()
        with self._growing(weights):
            schedule = self.schedule(batch, mode)
        if mode == BOTH and pushed is None:
            schedule = values_of(schedule, self._layout)
        learns = trains(schedule.mode)
        guest, arena = schedule.guest, self.memory.free_arena()
        assert guest is not None
        self._make_gradients_in(session.memory.pool.gradients[arena], schedule)

        def fill() -> None:
            for name, value in {**pulled, **(pushed or {})}.items():
                handed, at = guest.handed[self._places[name]], guest.vectors[self._places[name]] * 4
                room = self.memory.floats.narrow(0, at, handed.rows * handed.stride)
                if value is None:
                    room.zero_()
                else:
                    room.view(handed.rows, handed.stride)[:, : handed.width].copy_(value)
            if pushed is not None:
                at = schedule.address * 4 + self._layout.header["loss_scale"]
                scale = self.memory.floats.narrow(0, at, 1)
                scale.mul_(0.0 if loss is None else loss)
            if learns and not batch.moves:
                kept.update(self.statistics().values)
            for name, value in (statistics or {}).items():
                self._statistic(name).copy_(value)

        try:
            if self._gpu is None:
                session.wait()
                session.run(schedule, (), fill)
            else:
                session.start(schedule, fill)
        finally:
            for name, value in kept.items():
                self._statistic(name).copy_(value)
        self.moves += learns and batch.moves and bool(self._running)
        return Launched(schedule, guest, arena, self.model.launches)

    def statistics(self) -> Statistics:
        """The running statistics as the last launch left them."""
        return Statistics({name: self._statistic(name).clone() for name in self._running}, self.moves)

    def _statistic(self, name: str) -> Tensor:
        return self.memory.places[name].view(self.memory.floats, self.memory.first(name))

    def _make_gradients_in(self, address: int, schedule: Schedule) -> None:
        """The launch of a schedule leaves its gradients at an address."""
        schedule.words[self._layout.bases_at + self._layout.bases[isa.GRADIENTS]] = address
        schedule.bases[isa.GRADIENTS] = address

    def enter(self) -> None:
        """Goes on in PyTorch's current stream."""
        if self._gpu is not None:
            self._gpu.use_stream(memory.current_stream(self._gpu.device.ordinal))

    # ---- what a launch leaves -------------------------------------------------------------------

    def loss(self, launched: Launched) -> Tensor:
        """The mean loss over the samples."""
        schedule = launched.schedule
        words = [word for name, (word, _) in schedule.results.items() if name.startswith("loss:")]
        first = schedule.bases[isa.RESULTS] * 4
        terms = [self.memory.floats.select(0, first + word) for word in words]
        total = torch.stack(terms).sum() if len(terms) > 1 else terms[0]
        return total / len(schedule.samples)

    def values(self, launched: Launched, names: Iterable[str]) -> dict[str, Tensor]:
        """Results by name: rows of all samples, one sample after another."""
        return {name: self._value(launched, self._results[name]) for name in names}

    def vectors(self, launched: Launched, names: Set[str]) -> dict[str, Tensor]:
        """Gradients by pulled fields, zeros by one that nothing depends on."""
        found = self.values(launched, (name for name in names if name in self._results))
        for name in names - found.keys():
            handed = launched.guest.handed[self._places[name]]
            found[name] = self.memory.floats.new_zeros(handed.rows, handed.width)
        return found

    def _value(self, launched: Launched, results: Sequence[Result]) -> Tensor:
        """The value of a name: where arms have results of their own, the sum of these."""
        total = self._result(launched, results[0])
        for result in results[1:]:
            total += self._result(launched, result)
        return total

    def _result(self, launched: Launched, result: Result) -> Tensor:
        """A result of the vertices that are wanted, zeros where one has none."""
        schedule, guest = launched.schedule, launched.guest
        rows, count = schedule.rows[result.space], len(guest.taken[result.name])
        width = schedule.plan.buffer(result.buffer).width
        size = 1
        for each in result.shape:
            size *= each
        found = self.memory.floats.narrow(0, schedule.bases[result.buffer] * 4, rows * width)
        if not rows:
            return found.new_zeros(count, *result.shape)
        at = schedule.address * 4 + guest.numbers[result.buffer]
        index = self.memory.words.narrow(0, at, count)
        partial = result.buffer in guest.partial
        values = found.view(rows, width)[:, :size].index_select(0, index.clamp(min=0) if partial else index)
        if partial:
            values = torch.where((index >= 0).view(count, 1), values, 0.0)
        # No view: what autograd hands out may be changed in place.
        values = torch.ops.aten._unsafe_view(values, [count, *result.shape])
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
        self._copies: tuple[Tensor, dict[str, Rows], dict[str, Tensor]] | None = None
        self._is_over = False

    def _table_rows(self) -> dict[str, Rows]:
        """Of every table the gradients of the rows that are touched, where they lie: of no rows, where what
        is learned from does not depend on it."""
        schedule, pool = self._launched.schedule, self._launches.memory
        found = {}
        for name, (at, counts) in self._launched.guest.touched.items():
            count = int(counts[0])
            size = pool.places[name].parameter.row_size
            first = schedule.bases[isa.table_base(name)] * 4
            rows = pool.floats.as_strided((count, size), (padded(size), 1), first)
            found[name] = rows, pool.words.narrow(0, schedule.address * 4 + at, count)
        for name, place in pool.places.items():
            if place.parameter.kind == TABLE and name not in found:
                found[name] = pool.floats.new_zeros(0, place.parameter.row_size), pool.words.new_zeros(0)
        return found

    def rescue(self) -> None:
        """Copies what may still be asked for."""
        if self._copies is None and not self._is_over:
            places = self._table_rows().items()
            tables = {name: (rows.clone(), numbers.clone()) for name, (rows, numbers) in places}
            vectors = self._launches.vectors(self._launched, self._launches.pulled)
            dense = self._launches.memory.gradients(self._launched.arena).clone()
            self._copies = dense, tables, vectors

    def of(
        self, names: Iterable[str], pulled: Iterable[str], scale: Tensor | None, sparse: bool, once: bool
    ) -> dict[str, Tensor]:
        """Gradients by parameter and by pulled field, times `scale`, which nobody overwrites.

        once: whether nobody can ask again; then the dense ones may be handed out where they lie.
        RuntimeError where they are gone: overwritten since, by a launch that knows nothing of them.
        """
        if self._copies is None and self._launched.number != self._launches.model.launches:
            raise RuntimeError(
                "the gradients of this batch are gone: the model ran outside of PyTorch since; call "
                "backward() before it does"
            )
        self._is_over = once
        pool, found = self._launches.memory, dict[str, Tensor]()
        if self._copies is None:
            dense, tables = pool.gradients(self._launched.arena), self._table_rows()
            vectors = self._launches.vectors(self._launched, frozenset(pulled))
        else:
            dense, tables, vectors = self._copies
        if scale is not None and scale.device.type == "cpu" and scale.item() == 1:
            scale = None
        wanted = list(names)
        touched = [name for name in wanted if name in tables]
        # All dense ones are in one tensor, and every gradient is seen there.
        kept = self._kept(dense) if once and scale is None else None
        copied = [tables[name][0] for name in touched]
        own = _copies(copied if kept is not None else [*copied, dense], scale)
        whole = own[-1] if kept is None else kept
        rows = dict(zip(touched, own, strict=False))
        for name in wanted:
            place = pool.places[name]
            if name in tables:
                found[name] = _table(rows[name], tables[name][1], place.shape, sparse)
            else:
                found[name] = place.view(whole, pool.shift(name))
                if place.parameter.is_sparse:  # what is zero stays so
                    found[name].masked_fill_(place.view(pool.floats, pool.first(name)) == 0, 0.0)
        for name in pulled:
            found[name] = vectors[name] if scale is None else vectors[name] * scale
        return found

    def _kept(self, dense: Tensor) -> Tensor | None:
        """The dense ones where they lie, if nobody else will write there."""
        if self._copies is not None:
            return dense
        return self._launches.memory.kept_gradients(self._launched.arena)


# Rows of a table's gradient, and their numbers in the table.
Rows = tuple[Tensor, Tensor]


def _copies(values: list[Tensor], scale: Tensor | None) -> Sequence[Tensor]:
    return [each.clone() for each in values] if scale is None else torch._foreach_mul(values, scale)


def _table(rows: Tensor, numbers: Tensor, shape: tuple[int, ...], sparse: bool) -> Tensor:
    values = rows.view(len(numbers), *shape[1:])
    if sparse:
        return torch.sparse_coo_tensor(
            numbers.long()[None], values, shape, is_coalesced=True, check_invariants=False
        )
    return values.new_zeros(shape).index_add_(0, numbers, values)
