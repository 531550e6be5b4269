"""A session: parameters in a pool on one device, and batches that run on them.

In: a plan, a backend, first values of the parameters, and prepared data sets. Out: losses, metrics
and outputs. Guaranteed: one launch per batch (or per part of a batch that does not fit); batches are
encoded while those before them run, small ones several at a time; the same batches give the same
bits, however they are grouped; memory grows by need.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir import isa
from dnc.ir.forest import Forest, Ints
from dnc.ir.noise import NONE, step_noises
from dnc.ir.optimizers import OPTIMIZERS, Hyper, Update
from dnc.ir.plan import NoiseList, Plan
from dnc.ir.sparse import pruned
from dnc.runtime.ahead import Ahead
from dnc.runtime.answers import Answers
from dnc.runtime.backend import Backend, Fill
from dnc.runtime.batches import MOST_SAMPLES, Drawn, Groups, are_distinct, filled, full_group
from dnc.runtime.encoder import DoesNotFit, Encoder
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.encoder.guest import Guest
from dnc.runtime.encoder.job import Job
from dnc.runtime.encoder.modes import Modes
from dnc.runtime.encoder.processes import default_count
from dnc.runtime.encoder.tail import Part
from dnc.runtime.fitting import in_parts
from dnc.runtime.launches import Launches
from dnc.runtime.memory import Memory
from dnc.runtime.phases import TRAIN, trains
from dnc.runtime.pool import load_parameters, read_array
from dnc.runtime.predictions import Gradients, collect_gradients
from dnc.runtime.prepared import prepare
from dnc.runtime.results import BatchSums, Evaluation, StepResult
from dnc.runtime.schedule import Schedule
from dnc.runtime.schedules import Schedules
from dnc.runtime.trace.timeline import ENCODE, OFF, Timeline
from dnc.runtime.underway import Results, Underway

Floats = NDArray[np.float32]


class Session:
    """See the module. `data` arguments are what `attach` returned."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        table_rows: Mapping[str, int],
        values: Mapping[str, Floats],
        memory_words: int | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        seed: int = 1,
        timeline: Timeline = OFF,
        encoders: int | None = None,
    ) -> None:
        """classes: by metric what its classes are called, for those that have to know. encoders: other
        processes that may encode batches, once there are enough of them; None for as many as
        there are cores to spare, if the kernels leave the cores alone.
        """
        self.launches = Launches(backend, timeline)
        self.plan, self.backend, self.classes = plan, backend, classes or {}
        self.memory = Memory(plan, backend, table_rows, memory_words)
        self.steps_done, self.seed, self.modes = 0, seed, Modes(plan)
        self._most = MOST_SAMPLES * backend.devices  # of a group
        self.is_noisy = any(isinstance(item, NoiseList) for item in plan.lists)
        self.optimizer, self.optimizer_steps = "sgd", 0
        self._underway = Underway(self.launches)
        spare = default_count(backend.leaves_cores, backend.devices)
        processes = spare if encoders is None else encoders
        self.ahead, self.answers = Ahead(processes), Answers(self, processes)
        self.write_arrays(values)

    @property
    def timeline(self) -> Timeline:
        """What is told when the host and every worker did what."""
        return self.launches.timeline

    @timeline.setter
    def timeline(self, timeline: Timeline) -> None:
        self.launches.timeline = timeline

    # ---- parameters -----------------------------------------------------------------------------

    def write_arrays(self, values: Mapping[str, Floats], place: str = isa.PARAMETERS) -> None:
        """Writes parameters by name, of sparse ones what is kept; or what lies at their places elsewhere.

        What is not named stays as it is.
        """
        self.settle()
        words, pool = self.memory.read_static(), self.memory.pool
        shift = (pool.bases[place] - pool.bases[isa.PARAMETERS]) * 4
        some = tuple(p for p in self.plan.program.parameters if p.name in values)
        program = attrs.evolve(self.plan.program, parameters=some)
        own = {p.name: pruned(p, values[p.name]) if place == isa.PARAMETERS else values[p.name] for p in some}
        load_parameters(attrs.evolve(self.plan, program=program), pool, own, words[shift:])
        self.memory.write_static(words)

    def read_arrays(self, place: str = isa.PARAMETERS) -> dict[str, Floats]:
        """Every parameter by name, or what lies at those of trained ones in another arena."""
        self.settle()
        words, pool = self.memory.read_static(), self.memory.pool
        whole = place == isa.PARAMETERS
        names = [p.name for p in self.plan.program.parameters if whole or p.trained]
        return {name: read_array(self.plan, pool, name, words, place) for name in names}

    def read_state(self) -> dict[str, dict[str, Floats]]:
        """What the optimizer keeps: state -> trained parameter -> values."""
        states = OPTIMIZERS[self.optimizer].states
        return {state.name: self.read_arrays(isa.STATES[at]) for at, state in enumerate(states)}

    def write_state(self, optimizer: str, steps: int, values: Mapping[str, Mapping[str, Floats]]) -> None:
        """Goes on with an optimizer that has made so many steps, from what `read_state` returned."""
        self.start_optimizer(optimizer)
        for at, state in enumerate(OPTIMIZERS[optimizer].states):
            self.write_arrays(values[state.name], isa.STATES[at])
        self.optimizer_steps = steps

    def start_optimizer(self, optimizer: str) -> None:
        """Begins with an optimizer anew: its state is zero."""
        self.settle()
        self.memory.clear_states(len(OPTIMIZERS[optimizer].states))
        self.optimizer, self.optimizer_steps = optimizer, 0

    # ---- data -----------------------------------------------------------------------------------

    def attach(self, forest: Forest) -> Encoder:
        """Prepares a data set for this session's plan; the work that is done once per set."""
        return Encoder(prepare(self.plan, forest), self.memory.pool, self.modes)

    def reserve(self, data: Encoder, batch: int) -> None:
        """Makes room for training batches of `batch` samples, measured on the heaviest ones."""
        heaviest = np.argsort(-data.prepared.weight, kind="stable")[:batch]
        self._encode_step(data, np.sort(heaviest).astype(np.int32), Update())

    # ---- training -------------------------------------------------------------------------------

    def step(self, data: Encoder, samples: Sequence[int] | Ints, hyper: Hyper = Hyper()) -> StepResult | None:
        """Starts training on a batch; the result of the step before, or None if there was none.

        The batch is encoded while earlier launches run. Another optimizer than that of the step before
        begins with a state of zeros. NotFinite if the step before made no update, because its gradient
        or loss was not finite.
        """
        self._train_alone(data, samples, self._updates([hyper])[0], Results())
        self._underway.settle(1)
        return self._underway.claim()

    def steps(
        self,
        data: Encoder,
        batches: Iterable[Sequence[int] | Ints],
        hyper: Hyper | Callable[[int], Hyper] = Hyper(),
    ) -> Iterator[StepResult]:
        """Trains on batches in order; their results in order, some batches late.

        hyper: the same for all batches, or what it is for the step of that number (counted from 1).
        Small batches are encoded and copied several at a time; each is a launch of its own.
        """
        drawn = Drawn(map(filled, batches))
        results = self.launches.unless_retired(self.stretches(data, [drawn], hyper))
        return drawn.through(each for each in results if each is not None)

    def stretches(
        self,
        data: Encoder,
        stretches: Iterable[Iterable[Sequence[int] | Ints]],
        hyper: Hyper | Callable[[int], Hyper] = Hyper(),
    ) -> Generator[StepResult | None, None, None]:
        """The same for one stretch of batches after another, as epochs are; None where one has ended.

        Then all its results are there, and nothing is under way. What comes next is taken before that, and
        encoded meanwhile, where other processes encode.
        """
        self.ahead.use(data.prepared)
        grouping, results = Groups(self._most, encoders=self.ahead.encoders), Results()

        def groups() -> Iterator[Ints | None]:
            for batches in stretches:
                yield from grouping.of(batches)
                yield None

        def hypers(count: int, before: int = 0) -> list[Hyper]:
            first = self.steps_done + 1 + before
            return [hyper(first + at) if callable(hyper) else hyper for at in range(count)]

        def make(group: Ints, coming: Sequence[Job] = ()) -> Job | None:
            before = sum(len(job.batches) for job in coming)
            wanted = hypers(len(group), before)
            if coming and wanted[0].optimizer != self.optimizer:
                return None
            noises, updates = self._noises(len(group), before), self._updates(wanted, before)
            return self.job(data, group, TRAIN, noises, len(coming), updates, place=self._place(before))

        for job in self.ahead.jobs(groups(), make):
            if job is not None:
                if job.place != self._place():  # the caller has gone on with something else meanwhile
                    job = make(job.batches)
                    assert job is not None  # nothing stands before it
                yield from self._train_job(data, job, hypers, results)
                continue
            yield from self._underway.taken(results, 0)
            self._underway.claim()
            yield None

    def sync(self) -> StepResult | None:
        """Waits for all launches; the result of the last step, unless it was handed out."""
        self.settle()
        return self._underway.claim()

    def job(
        self,
        data: Encoder,
        batches: Ints,
        mode: str,
        noises: NDArray[np.uint32],
        before: int,
        updates: Sequence[Update] = (),
        lanes: int = 1,
        place: tuple[int, int, str] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Job:
        """Batches that run in a mode, behind so many other jobs; in lanes, if these are several.

        place: in training, as in `Job`. grid: None for what suits the batches.
        """
        self._check_samples(data, batches)
        return Job(
            batches,
            grid or self.backend.grid(len(batches[0]), trains(mode), lanes),
            list(updates),
            noises,
            self.memory.pool,
            (self.launches.slot + before) % 2,
            self.memory.words,
            mode,
            lanes=lanes,
            place=place,
            devices=self.backend.devices if trains(mode) else 1,
        )

    def encode_job(self, data: Encoder, job: Job, ahead: Ahead) -> Schedules | None:
        """The schedules of the oldest job, for the slot whose turn it is; None if they do not fit at once."""
        count = len(job.batches)
        if count == 1 and not are_distinct(job.batches[0]):
            with suppress(DoesNotFit):
                ahead.schedules(job)  # what comes next is behind it
            return None
        while True:
            self.launches.check()
            try:
                with self.timeline.host(ENCODE, count):
                    schedules = ahead.schedules(job)
                    self.launches.turn_to(job.buffer)
                    here = job.moved(self.memory.pool, self.launches.slot, self.memory.words)
                    if schedules is None or here is not job:
                        schedules = here.encode(data)
                return schedules
            except DoesNotFit as problem:
                self.launches.drain()
                most = min(self._most, data.prepared.samples)
                times = full_group(len(job.batches[0]), most) / count if trains(job.mode) else 1.0
                if not self.memory.grow(problem.schedule_words, problem.activations, times):
                    if job.lanes == 1:
                        return None
                    job = attrs.evolve(job, lanes=1)

    def _train_job(
        self, data: Encoder, job: Job, hypers: Callable[[int], list[Hyper]], results: Results
    ) -> Iterator[StepResult]:
        """Launches the batches of a job, together if that is possible; results of those before."""
        if self._train_together(data, job, results):
            yield from self._underway.taken(results, len(job.batches))
            return
        for samples in job.batches:
            self._train_alone(data, samples, self._updates(hypers(1))[0], results)
            yield from self._underway.taken(results, 1)

    def _train_together(self, data: Encoder, job: Job, results: Results) -> bool:
        """Launches the batches of a job behind each other; False if they do not fit together."""
        schedules = self.encode_job(data, job, self.ahead)
        if schedules is None:
            return False
        self._go_on_with(job.updates[0])
        devices, first = job.devices, self.steps_done + 1
        found = [BatchSums(first + at, len(each), 1, devices) for at, each in enumerate(job.batches)]
        self.launches.start(schedules, [batch for batch in found for _ in range(devices)])
        self._count(found, results)
        return True

    def _train_alone(
        self, data: Encoder, samples: Sequence[int] | Ints, update: Update, results: Results
    ) -> None:
        """Launches a batch, in parts if it does not fit."""
        data, chosen = self.distinct(data, samples)
        parts = self._encode_step(data, chosen, update)
        self._go_on_with(update)
        batch = BatchSums(self.steps_done + 1, len(chosen), len(parts), self.backend.devices)
        for schedules in parts:
            self.launches.start(schedules, [batch] * len(schedules))
        self._count([batch], results)

    def _count(self, batches: list[BatchSums], results: Results) -> None:
        """Steps that were started; where their results go."""
        self.steps_done += len(batches)
        self.optimizer_steps += len(batches)
        self._underway.add(batches, results)

    def _updates(self, hypers: list[Hyper], before: int = 0) -> list[Update]:
        """What the next steps, behind so many others, make of their gradients; with room for that."""
        optimizer, steps = hypers[0].optimizer, self.optimizer_steps
        if optimizer != self.optimizer:
            self.settle()
            self.memory.add_states(len(OPTIMIZERS[optimizer].states))
            steps = 0
        return [hyper.update(steps + before + 1 + at) for at, hyper in enumerate(hypers)]

    def _go_on_with(self, update: Update) -> None:
        """What is launched next is such an update: what another optimizer kept goes now, and no sooner."""
        if update.optimizer != self.optimizer:
            self.start_optimizer(update.optimizer)

    def _place(self, before: int = 0) -> tuple[int, int, str]:
        """Where training is behind so many steps: what noises and updates follow from."""
        return self.steps_done + before, self.optimizer_steps + before, self.optimizer

    def _noises(self, count: int, before: int = 0) -> NDArray[np.uint32]:
        """The noise of the next steps; `NONE` for a program that draws no random numbers."""
        if not self.is_noisy:
            return np.full(count, NONE, np.uint32)
        return step_noises(self.seed, self.steps_done + before + 1, count)

    def next_noise(self) -> int:
        """That of the next training step."""
        return int(self._noises(1)[0])

    # ---- evaluation and prediction --------------------------------------------------------------

    def evaluate(self, data: Encoder, samples: Sequence[int] | Ints | None = None) -> Evaluation:
        """Loss and metrics over the samples (all of them by default), chunk by chunk."""
        return self.answers.evaluate(data, _all_or(data, samples))

    def predict(
        self, data: Encoder, samples: Sequence[int] | Ints | None = None, *, noise: int = NONE
    ) -> dict[str, list[Any]]:
        """The declared outputs by name, one entry a sample in the order of `samples`."""
        self.settle()
        return self.answers.predict(data, _all_or(data, samples), noise)

    def predictions(
        self, data: Encoder, batches: Iterable[Sequence[int] | Ints]
    ) -> Iterator[dict[str, list[Any]]]:
        """The same for one batch after another; some batches late, as in `steps`."""
        drawn = Drawn(map(filled, batches))
        return drawn.through(self.launches.unless_retired(self.answers.predictions(data, drawn)))

    # ---- values and gradients of others -----------------------------------------------------------

    def backward(
        self, data: Encoder, samples: Sequence[int] | Ints, hyper: Hyper = Hyper(), noisy: bool = True
    ) -> tuple[StepResult, dict[str, Gradients]]:
        """Trains on a batch and waits: its result, and the gradients by what was handed in.

        By "Struct.field"; what was pushed has its gradient in the data. Samples are distinct, and all of
        them fit into one launch. noisy: with random numbers; without, nothing is dropped.
        """
        if self.backend.devices > 1:
            raise fail(f"{self.backend.name}: gradients of what is handed in are on one device: choose one")
        self.settle()
        chosen = np.asarray(samples, np.int32)
        self._check_samples(data, chosen)
        update, noise = self._updates([hyper])[0], None if noisy else NONE
        schedules = self.encode(data, chosen, TRAIN, update, noise=noise)
        if len(schedules) > 1:
            raise fail("the batch does not fit into memory at once; take fewer samples")
        self._go_on_with(update)
        batch = BatchSums(self.steps_done + 1, len(chosen), 1)
        self.launches.start(schedules, [batch])
        results = Results()
        self._count([batch], results)
        self.settle()
        self._underway.claim()
        return results[0], collect_gradients(self.backend, data, schedules[0])

    def shared(self, data: Encoder, samples: Ints, mode: str, guest: Guest, noise: int = NONE) -> Schedule:
        """The schedule of a batch that shares vectors and results with another net.

        In training gradients are made, and no parameter changes. Samples are distinct, and all of them
        fit into one launch.
        """
        self._check_samples(data, samples)
        schedules = self.encode(data, samples, mode, guest=guest, noise=noise)
        if len(schedules) > 1:
            raise fail("the batch does not fit into memory at once; take fewer samples")
        return schedules[0]

    def start(self, schedule: Schedule, fill: Fill) -> None:
        """Starts the launch of such a schedule behind all training steps, and does not wait.

        fill: writes into the pool what the other net hands in.
        """
        self.settle()
        self.launches.start([schedule], fill=fill)

    def wait(self) -> None:
        """Waits for all launches."""
        self.settle()
        self.launches.drain()

    # ---- launches -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Waits for all training steps; NotFinite if one of them made no update."""
        self.launches.check()
        self._underway.settle(0)

    def run(
        self, schedule: Schedule, reads: Sequence[tuple[int, int]], fill: Fill | None = None
    ) -> list[Floats]:
        """One launch to its end, behind all that is under way; then words of the pool: (first, count)."""
        return self.launches.run(schedule, reads, fill)

    def distinct(self, data: Encoder, samples: Sequence[int] | Ints) -> tuple[Encoder, Ints]:
        """The batch's data and sample numbers; a sample that occurs twice gets vertices of its own."""
        chosen = np.asarray(samples, np.int32)
        self._check_samples(data, chosen)
        if are_distinct(chosen):
            return data, chosen
        return self.attach(data.prepared.forest.select(chosen)), np.arange(len(chosen), dtype=np.int32)

    def _check_samples(self, data: Encoder, chosen: Ints) -> None:
        filled(chosen.reshape(-1))
        least, most = int(chosen.min()), int(chosen.max())
        if least < 0 or most >= data.prepared.samples:
            wrong = least if least < 0 else most
            raise fail(f"a batch holds sample {wrong}; the data has {data.prepared.samples}")

    def encode(
        self,
        data: Encoder,
        samples: Ints,
        mode: str,
        update: Update = Update(),
        guest: Guest | None = None,
        noise: int | None = None,
        ending: Ending | None = None,
        lanes: int = 1,
    ) -> list[Schedule]:
        """The schedules of a batch: one, or as many parts as it takes to fit.

        noise: None for that of the next step in training, and for none otherwise. ending: `mode` is its.
        lanes: on the grid, and so with the bits, of one that runs beside others.
        """
        if noise is None:
            noise = self.next_noise() if trains(mode) else NONE
        replicas, workers = self.backend.grid(len(samples), trains(mode), lanes)

        def encode(numbers: Ints, part: Part, buffer: int) -> Schedule:
            return data.encode(
                numbers,
                mode=mode,
                replicas=replicas,
                workers=workers,
                update=update,
                part=part,
                buffer=buffer,
                pool_words=self.memory.words,
                noise=noise,
                guest=guest,
                ending=ending,
            )

        return in_parts(self, data, samples, mode, encode)

    def _encode_step(self, data: Encoder, samples: Ints, update: Update) -> list[Schedules]:
        """The schedules of a training step, of all devices, in as many parts as it takes to fit."""
        grid = self.backend.grid(len(samples))  # also of parts

        def encode(numbers: Ints, part: Part, buffer: int) -> Schedules:
            job = self.job(data, numbers[None], TRAIN, self._noises(1), 0, [update], grid=grid)
            return attrs.evolve(job, part=part, buffer=buffer).encode(data)

        return in_parts(self, data, samples, TRAIN, encode)


def _all_or(data: Encoder, samples: Sequence[int] | Ints | None) -> Ints:
    chosen = np.arange(data.prepared.samples) if samples is None else np.asarray(samples)
    return chosen.astype(np.int32)
