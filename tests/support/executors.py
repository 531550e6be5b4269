"""Compares an executor of schedules with the definition: one training launch, every value.

In: a transformed program, its plan, a backend, a forest. Checked: loss, norm of the gradient,
every parameter after an update with plain SGD (so every gradient), metrics and declared outputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Forest
from dnc.ir.interpreter import Results, interpret
from dnc.ir.noise import DROPS, NONE, step_noise
from dnc.ir.optimizers import Hyper
from dnc.ir.plan import Plan
from dnc.ir.program import ROOT, DeclaredOutput, Program
from dnc.ir.sparse import pruned
from dnc.runtime.backend import Backend, VMBackend
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.encoder import Encoder, Part
from dnc.runtime.measurements import Measurements
from dnc.runtime.phases import BOTH, EVALUATE, PREDICT, RESULT_KINDS, TRAIN
from dnc.runtime.pool import StaticPool, load_parameters, read_array, static_pool
from dnc.runtime.predictions import collect, collect_gradients, read_columns
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import Schedule, values_of
from dnc.runtime.verifier import verify
from tests.support.forests import ForestGrower

Array = np.ndarray[Any, Any]

NOISE = step_noise(seed=3, step=5)
DRAWN = NOISE & ~DROPS
# Room for a schedule: of the batch, and of every worker's queue.
BATCH_WORDS, QUEUE_WORDS = 1 << 16, 1 << 12
# By mode what a launch of a bench has.
NOISES = {TRAIN: NOISE, BOTH: NOISE, PREDICT: DRAWN}


def random_parameters(program: Program, seed: int, vocabulary: int = 11) -> dict[str, Array]:
    """Normal values, of sparse parameters what is kept; open dimensions have `vocabulary` rows."""
    rng = np.random.default_rng(seed)
    values = {}
    for parameter in program.parameters:
        shape = [dimension.size or vocabulary for dimension in parameter.dimensions]
        fan = shape[-1] if len(shape) > 1 else 4
        made = rng.normal(size=shape) / np.sqrt(fan)
        # A running mean may be anything; of a running variance the root is taken.
        values[parameter.name] = pruned(parameter, np.abs(made) + 0.5 if parameter.running else made)
    return values


class OnGrid:
    """A backend that runs every batch on one grid."""

    def __init__(self, backend: Backend, grid: tuple[int, int]) -> None:
        self._backend, self._grid = backend, grid

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def grid(self, samples: int, trains: bool = True, lanes: int = 1) -> tuple[int, int]:
        """The one grid."""
        return self._grid


class Bench:
    """A program with its data on a backend."""

    def __init__(self, program: Program, plan: Plan, backend: Backend, forest: Forest, seed: int = 0) -> None:
        self.program, self.plan, self.backend, self.forest = program, plan, backend, forest
        self.values = random_parameters(program, seed)
        rows = {p.name: p.dimensions[0].size or 11 for p in program.parameters if p.kind == "table"}
        words = BATCH_WORDS + QUEUE_WORDS * math.prod(backend.grid(forest.samples))
        self.pool: StaticPool = static_pool(plan, rows, words, len(isa.STATES))
        self.encoder = Encoder(prepare(plan, forest), self.pool)
        self.samples = np.arange(forest.samples, dtype=np.int32)
        self._expected = dict[int, Results]()

    def expected(self, noise: int) -> Results:
        """What the definition says of the parameters as they are loaded."""
        if noise not in self._expected:
            self._expected[noise] = interpret(self.program, self.forest, self.values, noise=noise)
        return self._expected[noise]

    def launch(
        self, mode: str, hyper: Hyper = Hyper(), grid: tuple[int, int] | None = None
    ) -> tuple[Any, Array]:
        """Encodes everything, verifies it, loads parameters, launches; the schedule and its results."""
        replicas, workers = grid or self.backend.grid(self.forest.samples)
        if mode == TRAIN and self.backend.devices > 1:
            return self._launch_shares(hyper, replicas, workers)
        schedule = self.encode(mode, hyper, (replicas, workers))
        self.load(schedule.static_words + schedule.activations)
        return schedule, self.launched(schedule)

    def encode(self, mode: str, hyper: Hyper, grid: tuple[int, int]) -> Schedule:
        """Everything, for a mode."""
        replicas, workers = grid
        return self.encoder.encode(
            self.samples,
            mode=mode,
            replicas=replicas,
            workers=workers,
            update=hyper.update(),
            noise=NOISES.get(mode, NONE),
        )

    def launched(self, schedule: Schedule) -> Array:
        """Verifies and launches a schedule; its results."""
        verify(schedule)
        self.backend.launch([schedule], 0)
        return self.backend.finish(0)[0]

    def _launch_shares(self, hyper: Hyper, replicas: int, workers: int) -> tuple[Any, Array]:
        """The same for devices that train together, which have the same bits behind it; results are sums."""
        schedules = self.encoder.encode_group(
            [self.samples],
            replicas=replicas,
            workers=workers,
            updates=[hyper.update()],
            noises=np.array([NOISE], np.uint32),
            devices=self.backend.devices,
        )
        for schedule in schedules:
            verify(schedule)
        self.load(schedules.static_words + schedules.activations)
        self.backend.launch(schedules, 0)
        found = self.backend.finish(0)
        common = slice(isa.RESULT_NORM, isa.RESULT_UPDATED + 1)
        assert (found[:, common] == found[0, common]).all()
        total = found.sum(axis=0)
        total[common] = found[0, common]
        assert isinstance(self.backend, DataParallelBackend)
        first, count = self.pool.bases[isa.PARAMETERS] * 4, self.pool.schedules[0] * 4
        memories = [member.read(first, count - first) for member in self.backend.members]
        for memory in memories[1:]:
            np.testing.assert_array_equal(memory.view(np.int32), memories[0].view(np.int32))
        return schedules[0], total

    def load(self, words: int) -> None:
        """A pool of so many words, with the parameters in it."""
        self.backend.allocate(words + 16)
        # Nobody may rely on what lies in memory that is not static.
        self.backend.write(self.pool.words, np.full(words + 16 - self.pool.words, np.nan, np.float32))
        static = np.zeros(self.pool.words, np.float32)
        load_parameters(self.plan, self.pool, self.values, static)
        self.backend.write(0, static)

    def parameter(self, name: str, place: str = isa.PARAMETERS) -> Array:
        """A parameter as it is in the pool."""
        return read_array(self.plan, self.pool, name, self.backend.read(0, self.pool.words), place)

    def parameters(self) -> dict[str, Array]:
        """All parameters as they are in the pool."""
        words = self.backend.read(0, self.pool.words)
        return {p.name: read_array(self.plan, self.pool, p.name, words) for p in self.program.parameters}


def relative(found: Array, expected: Array) -> float:
    """Norm of the difference over the norm of what was expected."""
    scale = float(np.linalg.norm(expected)) or 1.0
    return float(np.linalg.norm(np.asarray(found, np.float64) - expected)) / scale


def check_training(bench: Bench, tolerance: float = 2e-5, rate: float = 1.0) -> Results:
    """One training launch against the interpreter; AssertionError names what differs."""
    expected = bench.expected(NOISE)
    schedule, results = bench.launch("train", Hyper(learning_rate=rate))
    _check_trained(bench, schedule, results, expected, tolerance, rate)
    return expected


def _check_loss(
    bench: Bench, schedule: Schedule, results: Array, expected: Results, tolerance: float
) -> None:
    loss = (
        sum(float(results[word]) for name, (word, _) in schedule.results.items() if name.startswith("loss:"))
        / bench.forest.samples
    )
    assert abs(loss - expected.loss) <= tolerance * max(1.0, abs(expected.loss)), (loss, expected.loss)


def _check_trained(
    bench: Bench, schedule: Schedule, results: Array, expected: Results, tolerance: float, rate: float
) -> None:
    """What a training launch has left."""
    _check_loss(bench, schedule, results, expected, tolerance)
    _check_update(bench, expected, tolerance, rate)
    norm = np.sqrt(
        sum(float((expected.gradients[p.name] ** 2).sum()) for p in bench.program.parameters if p.trained)
    )
    assert abs(float(results[isa.RESULT_NORM]) - norm) <= max(1e-4, tolerance) * norm + 1e-6, (
        results[isa.RESULT_NORM],
        norm,
    )
    assert results[isa.RESULT_UPDATED] == 1
    _check_pulled(bench, schedule, expected, tolerance)


def check_both(bench: Bench, tolerance: float = 2e-5) -> None:
    """A launch for values and one of training, which reads nothing of what the first has left, by one
    schedule, against the interpreter."""
    expected = bench.expected(NOISE)
    whole = bench.encode(BOTH, Hyper(learning_rate=1.0), bench.backend.grid(bench.forest.samples))
    bench.load(whole.static_words + whole.activations)
    values = values_of(whole, bench.encoder.layout)
    results = bench.launched(values)
    _check_loss(bench, values, results, expected, tolerance)
    _check_declared(bench, values, expected, tolerance)
    for name, value in bench.parameters().items():
        assert np.array_equal(value, bench.values[name]), name
    bench.backend.write(whole.static_words, np.full(whole.activations, np.nan, np.float32))
    _check_trained(bench, whole, bench.launched(whole), expected, tolerance, 1.0)


def _check_pulled(bench: Bench, schedule: Schedule, expected: Results, tolerance: float) -> None:
    """The gradients by pulled fields, vertex by vertex; where devices have shares, these are theirs."""
    if bench.backend.devices > 1:
        return
    gradients = collect_gradients(bench.backend, bench.encoder, schedule)
    assert gradients.keys() == expected.pulled.keys()
    for name, each in gradients.items():
        wanted = expected.pulled[name]
        found = each.of(np.arange(len(wanted), dtype=np.int32))
        assert relative(found, wanted) <= tolerance or np.allclose(found, wanted, atol=1e-6), name


def check_parts(bench: Bench, tolerance: float = 2e-5) -> None:
    """The same update from a batch that is launched in two parts."""
    expected = bench.expected(NOISE)
    tokens = {t.parameter: bench.encoder.tokens(t, bench.samples) for t in bench.plan.table_gradients}
    replicas, workers = bench.backend.grid(bench.forest.samples)
    schedules = [
        bench.encoder.encode(
            numbers,
            replicas=replicas,
            workers=workers,
            update=Hyper(learning_rate=1.0).update(),
            part=Part(last, last, bench.forest.samples, tokens, bench.encoder.followed(bench.samples)),
            noise=NOISE,
        )
        for last, numbers in enumerate(np.array_split(bench.samples, 2))
    ]
    bench.load(max(schedule.static_words + schedule.activations for schedule in schedules))
    for schedule in schedules:
        bench.backend.launch([schedule], 0)
        bench.backend.finish(0)
    _check_update(bench, expected, tolerance, 1.0)


def check_group(bench: Bench) -> None:
    """Batches of one sample that are encoded together: the bits of batches encoded one by one."""
    replicas, workers = bench.backend.grid(1)
    update, batches = Hyper(learning_rate=0.1).update(), [bench.samples[i : i + 1] for i in bench.samples]
    noises = [NOISE + 2 * step for step in range(len(batches))]
    alone = [
        bench.encoder.encode(batch, replicas=replicas, workers=workers, update=update, noise=noise)
        for batch, noise in zip(batches, noises, strict=True)
    ]
    together = bench.encoder.encode_group(
        batches,
        replicas=replicas,
        workers=workers,
        updates=[update] * len(batches),
        noises=np.array(noises, np.uint32),
    )
    found = []
    for schedules in (alone, together):
        bench.load(max(schedule.static_words + schedule.activations for schedule in schedules))
        for schedule in schedules:
            bench.backend.launch([schedule], 0)
            bench.backend.finish(0)
        found.append(bench.parameters())
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name


def _check_update(bench: Bench, expected: Results, tolerance: float, rate: float) -> None:
    """Every parameter against one step of plain SGD."""
    after = bench.parameters()
    for parameter in bench.program.parameters:
        before = bench.values[parameter.name].astype(np.float64)
        if parameter.frozen:
            assert np.array_equal(after[parameter.name], bench.values[parameter.name]), parameter.name
            continue
        found = (before - after[parameter.name]) / (rate * parameter.rate)
        if parameter.running:
            found = after[parameter.name] - before
        gradient = expected.gradients[parameter.name]
        if parameter.is_sparse:  # what is zero stays so
            gradient = np.where(before == 0, 0.0, gradient)
        # What float32 parameters can show of a gradient: half a unit in their last place.
        noise = 1e-7 * float(np.linalg.norm(before))
        difference = float(np.linalg.norm(found - gradient))
        assert difference <= tolerance * float(np.linalg.norm(gradient)) + noise + 1e-6, (
            parameter.name,
            difference,
            float(np.linalg.norm(gradient)),
        )


def check_evaluation(bench: Bench, tolerance: float = 2e-5) -> None:
    """Loss and metrics of an evaluation launch against the interpreter."""
    if not any(result.kind in RESULT_KINDS[EVALUATE] for result in bench.plan.results):
        return
    expected = bench.expected(NONE)
    schedule, results = bench.launch(EVALUATE)
    _check_loss(bench, schedule, results, expected, tolerance)
    measurements = Measurements(bench.plan, {})
    measurements.add(bench.encoder, schedule, read_columns(bench.backend, schedule))
    sums = {name: (float(results[word]), rows) for name, (word, rows) in schedule.results.items()}
    found = measurements.metrics(sums)
    assert found.keys() == expected.metrics.keys()
    for name, value in found.items():
        wanted = expected.metrics[name]
        # An exponential, as of a perplexity, magnifies the difference of what it is taken of.
        scale = 10 * abs(wanted) if abs(wanted) > 1 else 1.0
        alike = np.isnan(value) and np.isnan(wanted)
        assert alike or abs(value - wanted) <= tolerance * scale, (name, value, wanted)
    for parameter, value in bench.parameters().items():
        assert np.array_equal(value, bench.values[parameter]), parameter


def check_outputs(bench: Bench, tolerance: float = 2e-5) -> None:
    """The declared outputs of a prediction launch that draws against the interpreter, sample by sample."""
    expected = bench.expected(DRAWN)
    schedule, _ = bench.launch(PREDICT)
    _check_declared(bench, schedule, expected, tolerance)


def _check_declared(bench: Bench, schedule: Schedule, expected: Results, tolerance: float) -> None:
    """The declared outputs that a launch has left, sample by sample."""
    found = collect(bench.backend, bench.encoder, schedule, bench.samples)
    for stage in bench.program.stages:
        for output in stage.outputs:
            if isinstance(output, DeclaredOutput):
                space, values = bench.program.space(stage.space), found[output.output]
                if space.selection == ROOT:
                    rows: list[Array] = [np.asarray(each) for each in values if each is not None]
                else:
                    rows = [row for each in values for row in each]
                wanted = expected.outputs[output.output]
                shown = np.array(rows).reshape(wanted.shape)
                assert relative(shown, wanted) <= tolerance or np.allclose(shown, wanted, atol=1e-6), (
                    output.output
                )


def bench_on_vm(plan: Plan, samples: int, vertices: int, grid: tuple[int, int], seed: int) -> Bench:
    """A bench of random samples of so many vertices at most, on the reference VM as replicas x workers."""
    forest = ForestGrower(plan.program, seed).grow(samples, vertices, "random")
    backend: Any = OnGrid(VMBackend(plan, *grid, seed), grid)
    return Bench(plan.program, plan, backend, forest, seed)


def check_all(bench: Bench) -> None:
    """Training, evaluation, declared outputs, and, of more than one sample, a group of batches."""
    check_training(bench)
    check_evaluation(bench)
    check_outputs(bench)
    if bench.forest.samples > 1:
        check_group(bench)
