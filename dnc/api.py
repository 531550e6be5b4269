"""The Python interface: `dnc.load(build)` gives a `Model` that trains, evaluates and predicts.

In: a build, data as paths, samples or sample numbers. Out: losses, metrics, outputs, arrays.
Guaranteed: the command line uses nothing else; on the GPU neither TVM nor the frontend is imported;
every mistake of the user is a `DiagnosticError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from dnc.compiler import build_plan, machine_of, read_program, target_name
from dnc.diagnostics import Diagnostic, fail
from dnc.explain import explain_plan, explain_schedule
from dnc.ir.optimizers import DEFAULT, OPTIMIZERS, SETTINGS, default_hyper
from dnc.ir.plan import Plan
from dnc.ir.program import TABLE, Program
from dnc.runtime.atomic import check_output as check_output
from dnc.runtime.atomic import write_atomically
from dnc.runtime.backend import Backend
from dnc.runtime.build import Build, check_outside, read_build
from dnc.runtime.checkpoint import Checkpoint, Position, check_model, load_checkpoint, save_checkpoint
from dnc.runtime.curves import CURVES, TensorBoard, draw_curves, read_events
from dnc.runtime.curves import Missing as Missing
from dnc.runtime.data import (
    Dataset,
    Vocabulary,
    describe,
    examples,
    read,
    read_samples,
    summarize,
)
from dnc.runtime.devices import choose, open_backend
from dnc.runtime.embeddings import Embeddings, read_embeddings, table_of
from dnc.runtime.encoder import Encoder
from dnc.runtime.importers import import_file as import_file
from dnc.runtime.initialize import check_finite, initialize, load_weights, shapes
from dnc.runtime.measurements import class_metrics
from dnc.runtime.outside import Arrays, hand_in, pulled_fields, pushed_values
from dnc.runtime.phases import EVALUATE, RESULT_KINDS, TRAIN
from dnc.runtime.pool import static_pool
from dnc.runtime.predictions import in_file_order, metric_classes, named_classes
from dnc.runtime.rates import RateSchedule
from dnc.runtime.rates import rate_schedule as rate_schedule
from dnc.runtime.run_config import RunConfig as RunConfig
from dnc.runtime.run_config import read_config as read_config
from dnc.runtime.run_config import with_values as with_values
from dnc.runtime.run_folder import (
    CONFIG,
    LAST,
    METRICS,
    RUNS,
    RunFolder,
    new_run,
    newest_checkpoint,
    run_checkpoint,
)
from dnc.runtime.session import Evaluation, Session
from dnc.runtime.trace.timeline import OFF, Timeline
from dnc.runtime.trainer import Event, Trainer, TrainOptions
from dnc.tracing import LAUNCHES as LAUNCHES
from dnc.tracing import Summary as Summary
from dnc.tracing import check_trace_path as check_trace_path
from dnc.tracing import read_summary as read_summary
from dnc.tracing import start_timeline
from dnc.tracing import write_trace as write_trace

Floats = NDArray[np.float32]
Data = str | Path | Dataset | Sequence[Mapping[str, Any]]
Batch = Data | Sequence[int] | NDArray[np.integer[Any]]
LARGEST_FLOAT = float(np.finfo(np.float32).max)


def load(
    build: str | Path,
    device: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    seed: int = 1,
    replicas: int | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
) -> Model:
    """Opens a build on a device: "cpu", "cuda", "vm" (the reference VM); None takes the best there is.

    checkpoint: weights, optimizer state and vocabulary to start from. seed: of the first weights
    otherwise. replicas, workers: how the device is divided, None for what suits it. memory_bytes:
    the most memory to take; a batch that does not fit is run in parts.
    """
    for name, value, least in (("seed", seed, 0), ("replicas", replicas, 1), ("workers", workers, 1)):
        _whole(name, value, least)
    _whole("memory_bytes", memory_bytes, 1)
    opened = read_build(build)
    kind, target = choose(opened, device)
    plan = build_plan(opened, target)
    model = Model(opened, plan, open_backend(kind, plan, opened, target, replicas, workers), seed)
    model.memory_words = None if memory_bytes is None else memory_bytes // 4
    if checkpoint is not None:
        model.restore(checkpoint)
    return model


class Model:
    """A compiled model on a device.

    The first data it sees (or a checkpoint) gives it a vocabulary, and with it the sizes of its
    tables; from then on it has parameters.
    """

    def __init__(self, build: Build, plan: Plan, backend: Backend, seed: int) -> None:
        self.build, self.plan, self.backend, self.seed = build, plan, backend, seed
        self.hyper = DEFAULT
        self.vocabularies: dict[str, Vocabulary] | None = None
        self.position = Position()
        self.memory_words: int | None = None
        self.resumed: Checkpoint | None = None
        self.timeline = OFF
        self._session: Session | None = None
        self._attached: Dataset | None = None
        self._forwarded: tuple[Dataset, NDArray[np.int32]] | None = None
        self._encoders: WeakKeyDictionary[Dataset, Encoder] = WeakKeyDictionary()

    @property
    def program(self) -> Program:
        """The model's program, with its gradients."""
        return self.plan.program

    @property
    def device(self) -> str:
        """What it runs on, for people."""
        return self.backend.name

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self.backend.launches

    def check_trains(self) -> None:
        """DiagnosticError if the build was compiled for inference."""
        if not self.plan.trains:
            found = f"{self.build.path}: was compiled with --mode infer"
            raise fail(f"{found}: it neither trains nor writes checkpoints")

    def trace(self, launches: int = LAUNCHES) -> Timeline:
        """Keeps a timeline of the next launches; afterwards `dnc.tracing.write_trace` writes it.

        Until then they run on a kernel that also keeps times; its results have the same bits.
        """
        _whole("launches", launches, 1)
        self.timeline = start_timeline(self.plan, self.backend, launches)
        if self._session is not None:
            self._session.timeline = self.timeline
        return self.timeline

    # ---- data -----------------------------------------------------------------------------------

    def attach(self, data: Data, *, min_count: int = 1) -> Dataset:
        """Reads training data; sample numbers in later calls mean its samples.

        The first data give the vocabulary: words that occur `min_count` times or more.
        """
        _whole("min_count", min_count, 1)
        dataset = self.read(data, min_count=min_count)
        self._encoder(dataset)
        self._attached = dataset
        return dataset

    def read(self, data: Data, *, labels_required: bool = True, min_count: int = 1) -> Dataset:
        """Data as a `Dataset`, read with the model's vocabulary; without one they give it."""
        if isinstance(data, Dataset):
            if self.vocabularies is not None and data.vocabularies != self.vocabularies:
                raise fail(f"{data.path} was read with another vocabulary; read it with this model")
            dataset = data
        elif isinstance(data, str | Path):
            dataset = read(
                data,
                self.program,
                self.vocabularies,
                labels_required=labels_required,
                min_count=min_count,
            )
        else:
            dataset = read_samples(
                data,
                self.program,
                self.vocabularies,
                labels_required=labels_required,
                min_count=min_count,
            )
        if self.vocabularies is None:
            self._start(dataset.vocabularies)
        return dataset

    def _encoder(self, dataset: Dataset) -> Encoder:
        if dataset not in self._encoders:
            self._encoders[dataset] = self.session.attach(dataset.forest)
        return self._encoders[dataset]

    def _batch(self, batch: Batch | None, labels_required: bool) -> tuple[Dataset, NDArray[np.int32]]:
        """The data that a batch refers to, and its sample numbers."""
        if batch is None or _are_numbers(batch):
            data = self._training_data()
            return data, _numbers(batch, data.samples)
        data = self.read(batch, labels_required=labels_required)  # type: ignore[arg-type]
        return data, _numbers(None, data.samples)

    def _training_data(self) -> Dataset:
        if self._attached is None:
            raise fail("no data are attached: call attach(data) first, or pass samples")
        return self._attached

    # ---- parameters -----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """What runs batches; DiagnosticError as long as the vocabulary is unknown."""
        if self._session is None:
            raise fail("the model has no vocabulary yet: attach training data, or load it with a checkpoint")
        return self._session

    def _start(self, vocabularies: dict[str, Vocabulary], values: Mapping[str, Floats] | None = None) -> None:
        """Makes the session, now that the sizes of the tables are known."""
        rows = table_rows(self.program, vocabularies)
        self._check_memory(rows)
        first = values or initialize(self.program, rows, self.seed)
        classes = metric_classes(self.program, vocabularies)
        for name in class_metrics(self.program):
            if name not in classes:
                raise fail(
                    f"metric '{name}' has to know what its classes are called, but the data hold numbers",
                    "the classes are tags, as B-PER, I-PER and O",
                )
        self._session = Session(
            self.plan, self.backend, rows, first, self.memory_words, classes, self.seed, self.timeline
        )
        if vocabularies != self.vocabularies:
            self._attached = None  # its numbers are of another vocabulary
        self.vocabularies = vocabularies
        self._encoders.clear()

    def _check_memory(self, rows: dict[str, int]) -> None:
        """DiagnosticError if the parameters cannot be there, before they are made."""
        need = static_pool(self.plan, rows, 1).words
        have = max(self.backend.capacity(), 0)
        have = have if self.memory_words is None else min(have, self.memory_words)
        if need > have:
            sizes = shapes(self.program, rows)
            largest = max(sizes, key=lambda name: math.prod(sizes[name]))
            mib = 2**20 / 4
            raise fail(
                f"{self.backend.name}: the parameters with their gradients need {need / mib:,.1f} MiB; "
                f"{have / mib:,.1f} MiB are there",
                f"the largest is {largest} {list(sizes[largest])}: "
                f"{math.prod(sizes[largest]) / mib:,.1f} MiB",
            )

    def parameters(self) -> dict[str, Floats]:
        """Every parameter's values by name, as NumPy arrays (which speak DLPack)."""
        return self.session.read_arrays()

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters by name; arrays of NumPy or anything that speaks DLPack."""
        expected = shapes(self.program, self.session.memory.table_rows)
        arrays: dict[str, Floats] = {}
        for name, value in values.items():
            if name not in expected:
                raise fail(f"no parameter is called {name}; known: {', '.join(expected)}")
            array = _array(name, value)
            if array.shape != expected[name]:
                raise fail(f"{name} is {list(array.shape)}, expected {list(expected[name])}")
            with np.errstate(over="ignore"):
                arrays[name] = np.asarray(array, np.float32)
        check_finite(arrays, "set_parameters")
        self.session.write_arrays(arrays)

    def load_weights(self, path: str | Path) -> tuple[str, ...]:
        """Replaces the parameters that a safetensors file holds; their names."""
        rows = self.session.memory.table_rows
        values, names = load_weights(path, self.program, rows, self.parameters())
        self.session.write_arrays(values)
        return names

    def load_embeddings(self, table: str, path: str | Path) -> Embeddings:
        """Takes the rows of a table from a text file of word vectors (GloVe's format); what was found."""
        parameter, vocabularies = table_of(self.program, table), self.vocabularies or {}
        values = self.parameters()[table]
        vocabulary = vocabularies.get(parameter.dimensions[0].name)
        rows, found = read_embeddings(path, parameter, vocabulary, values)
        self.session.write_arrays({table: rows})
        return found

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(
        self,
        path: str | Path,
        *,
        batch_size: int = 0,
        samples: int = 0,
        best: float | None = None,
        best_epoch: int = 0,
    ) -> None:
        """Writes a checkpoint: weights, optimizer state, vocabulary, place in training."""
        session = self.session
        self.check_trains()
        if session.optimizer != self.hyper.optimizer:  # no step was made with it: its state is zero
            session.start_optimizer(self.hyper.optimizer)
        assert self.vocabularies is not None
        save_checkpoint(
            path,
            Checkpoint(
                self.build.model,
                self.build.digest,
                session.read_arrays(),
                session.read_state(),
                self.vocabularies,
                self.seed,
                batch_size,
                self.position,
                self.hyper,
                session.optimizer_steps,
                best,
                samples,
                best_epoch,
            ),
        )

    def restore(self, path: str | Path) -> Checkpoint:
        """Takes everything from a checkpoint; DiagnosticError if it is of another model."""
        checkpoint = load_checkpoint(path)
        rows = table_rows(self.program, checkpoint.vocabularies)
        check_model(checkpoint, self.program, self.build.digest, rows, path)
        self._start(checkpoint.vocabularies, checkpoint.weights)
        if self.plan.trains:
            self.session.write_state(
                checkpoint.hyper.optimizer, checkpoint.optimizer_steps, checkpoint.optimizer_state
            )
        self.session.steps_done, self.session.seed = checkpoint.position.step, checkpoint.seed
        self.seed, self.hyper, self.position = checkpoint.seed, checkpoint.hyper, checkpoint.position
        self.resumed = checkpoint
        return checkpoint

    # ---- batches --------------------------------------------------------------------------------

    def configure(
        self,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        *,
        momentum: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        epsilon: float | None = None,
        weight_decay: float | None = None,
    ) -> None:
        """Sets how `step` updates; docs/training.md has the optimizers and their settings.

        What is not named stays as it is; another optimizer begins with its own defaults, and with the
        next step its state begins as zero. clip: the largest norm of a gradient.
        """
        self.check_trains()
        if optimizer is not None and optimizer not in OPTIMIZERS:
            raise fail(f"unknown optimizer '{optimizer}'; optimizers: {', '.join(OPTIMIZERS)}")
        if clip is not None and clip != np.inf:
            _number("clip", clip, "a positive number", lambda value: value > 0)
        given = {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
        }
        hyper = self.hyper
        if optimizer is not None and optimizer != hyper.optimizer:
            hyper = default_hyper(optimizer, hyper.clip_norm)
        used = OPTIMIZERS[hyper.optimizer].settings
        chosen = {name: value for name, value in given.items() if value is not None}
        for name, value in chosen.items():
            shown = name.replace("_", " ")
            _number(shown, value, str(SETTINGS[name]), SETTINGS[name].accepts)
            if name not in used:
                able = ", ".join(each.name for each in OPTIMIZERS.values() if name in each.settings)
                raise fail(f"{hyper.optimizer} has no {shown}; these have: {able}")
        settings: dict[str, Any] = {name: float(value) for name, value in chosen.items()}
        self.hyper = attrs.evolve(
            hyper, clip_norm=hyper.clip_norm if clip is None else float(clip), **settings
        )

    def step(self, batch: Batch) -> float | None:
        """Starts a training step and returns the loss of the step before (None for the first).

        batch: numbers of attached samples, or samples. NotFinite (a DiagnosticError) if the step
        before made no update because its gradient was not finite.
        """
        self.check_trains()
        data, numbers = self._batch(batch, labels_required=True)
        result = self.session.step(self._encoder(data), numbers, self.hyper)
        self.position = attrs.evolve(self.position, step=self.session.steps_done)
        return None if result is None else result.loss

    def steps(self, batches: Iterable[Sequence[int] | NDArray[np.integer[Any]]]) -> Iterator[float]:
        """Trains on batches of attached samples, in order; their losses, in order, some batches late.

        Faster than `step` for small batches: they are encoded and copied several at a time.
        """
        self.check_trains()
        data = self._training_data()
        numbers = (_numbers(batch, data.samples) for batch in batches)
        for result in self.session.steps(self._encoder(data), numbers, self.hyper):
            self.position = attrs.evolve(self.position, step=result.step)
            yield result.loss

    def sync(self) -> float | None:
        """Waits for all steps; the loss of the last one, if it was not returned yet."""
        result = self.session.sync()
        return None if result is None else result.loss

    def evaluate(self, data: Batch | None = None) -> Evaluation:
        """Loss and metrics over data (by default those attached)."""
        dataset, numbers = self._batch(data, labels_required=True)
        if not len(numbers):
            raise fail("there are no samples to evaluate")
        if not any(result.kind in RESULT_KINDS[EVALUATE] for result in self.plan.results):
            raise fail("there is nothing to evaluate: the program has neither a loss nor a metric")
        return self.session.evaluate(self._encoder(dataset), numbers)

    def predict(self, batch: Batch | None = None) -> dict[str, list[Any]]:
        """The declared outputs by name, one entry a sample, in order; labels may be missing.

        An output of many vertices is an array in the order of the data: that of the file for flat
        samples, children before parents for nested ones.
        """
        dataset, numbers = self._batch(batch, labels_required=False)
        found = self.session.predict(self._encoder(dataset), numbers)
        return in_file_order(found, self.plan, dataset, numbers)

    # ---- inside another net ------------------------------------------------------------------------

    def forward(self, batch: Batch | None = None, pulled: Arrays | None = None) -> dict[str, list[Any]]:
        """The declared and the pushed outputs, as `predict`, for vectors that come from elsewhere.

        pulled: by "Struct.field" an array [vertices, width] a sample, for every field declared
        `pulled<width>`; vertices in the order of `predict`'s outputs.
        """
        dataset, numbers = self._batch(batch, labels_required=False)
        hand_in(dataset, numbers, pulled_fields(self.program), pulled or {}, "pulled vector")
        found = self.session.predict(self._encoder(dataset), numbers)
        self._forwarded = dataset, numbers
        return in_file_order(found, self.plan, dataset, numbers)

    def backward(self, pushed: Arrays | None = None) -> tuple[float, dict[str, list[Any]]]:
        """Trains on the batch that `forward` was called with: (loss, gradients by pulled vectors).

        pushed: by output an array a sample, the gradient of what is minimised by the pushed vectors,
        shaped as those; the program's own losses, if any, are added as means over the samples. The
        gradients come by "Struct.field", shaped as what was pulled. The own parameters are updated.
        """
        self.check_trains()
        if self._forwarded is None:
            raise fail("backward needs a batch: call forward first")
        dataset, numbers = self._forwarded
        hand_in(dataset, numbers, pushed_values(self.program), pushed or {}, "gradient of")
        result, found = self.session.backward(self._encoder(dataset), numbers, self.hyper)
        self._forwarded = None
        self.position = attrs.evolve(self.position, step=self.session.steps_done)
        return result.loss, in_file_order(found, self.plan, dataset, numbers)

    # ---- training -------------------------------------------------------------------------------

    def train(
        self,
        data: Data,
        *,
        epochs: int = 1,
        batch: int = 32,
        dev: Data | None = None,
        run_dir: str | Path | None = None,
        resumed: str | Path | None = None,
        log_every: int = 10,
        schedule: RateSchedule | None = None,
        patience: int | None = None,
        save_every: int | None = None,
        tensorboard: bool = False,
        config: RunConfig | None = None,
        again: bool = False,
        report: Callable[[Event], None] = lambda event: None,
        tick: Callable[[int, float], None] = lambda samples, loss: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Path:
        """Trains for `epochs` (those before a checkpoint included) and writes a run folder; its path.

        schedule, patience, save_every: see `TrainOptions`. report: gets every event that goes to
        metrics.jsonl. tick: see `Trainer`. stop: asked before every batch; True ends training with a
        checkpoint. resumed: the checkpoint's path. again: the folder may hold a run without a checkpoint.
        config: what the run was asked for; with what training adds to it, it becomes run.toml.
        """
        self.check_trains()
        counts = {"epochs": epochs, "batch": batch, "log_every": log_every}
        counts |= {"patience": patience, "save_every": save_every}  # type: ignore[dict-item]
        for name, value in counts.items():
            _whole(name, value, 1)
        if patience is not None and dev is None:
            raise fail("patience counts epochs without a better score on the dev set, and there is none")
        if not any(result.kind in RESULT_KINDS[TRAIN] for result in self.plan.results):
            raise fail("the program has no loss of its own: train it with forward and backward")
        if self.position.epoch >= epochs:
            raise fail(
                f"nothing to train: {self.position.epoch} of {epochs} epochs are done",
                "epochs count from the first one, those before a checkpoint included",
            )
        known = self.resumed
        if known is not None and self.position.batch and known.batch_size != batch:
            raise fail(f"the checkpoint is inside an epoch with batches of {known.batch_size}, not {batch}")
        dataset = self.attach(data)
        if known is not None and self.position.batch and known.samples not in (0, dataset.samples):
            raise fail(
                f"the checkpoint is inside an epoch over {known.samples:,} samples; "
                f"{dataset.path} has {dataset.samples:,}"
            )
        encoder = self._encoder(dataset)
        measured = None if dev is None else self._encoder(self.read(dev))
        folder = RunFolder(
            run_dir or new_run(self.build.model),
            resumed,
            self.position.step,
            again,
            None if config is None else self._effective(config, batch),
        )
        assert self.vocabularies is not None
        folder.keep_vocabularies(self.vocabularies)
        board = TensorBoard(folder.path) if tensorboard else None

        def record(event: Event) -> None:
            folder.record(event)
            if board is not None:
                board.record(event)
            report(event)

        def save(kind: str) -> None:
            self.position = trainer.position
            self.save(
                folder.checkpoint(kind),
                batch_size=batch,
                samples=dataset.samples,
                best=trainer.best,
                best_epoch=trainer.best_epoch,
            )

        options = TrainOptions(
            epochs,
            batch,
            self.hyper,
            self.seed,
            log_every,
            schedule or RateSchedule(),
            patience,
            save_every,
        )
        best, best_epoch = (None, 0) if known is None else (known.best, known.best_epoch)
        trainer = Trainer(
            self.session,
            encoder,
            options,
            record,
            save,
            measured,
            self.position,
            best,
            best_epoch,
            stop,
            tick,
        )
        record(_start_event(self, dataset, options, folder.path))
        try:
            done = trainer.run()
            record({"event": "end", "finished": done, "step": trainer.position.step})
        finally:
            self.position = trainer.position
            if board is not None:
                board.close()
            folder.close()
        return folder.path

    def _effective(self, config: RunConfig, batch: int) -> RunConfig:
        """A configuration with the defaults that the run has chosen."""
        hyper = self.hyper
        values: dict[str, Any] = {name: getattr(hyper, name) for name in OPTIMIZERS[hyper.optimizer].settings}
        values["lr"] = values.pop("learning_rate")
        clip = hyper.clip_norm if np.isfinite(hyper.clip_norm) else None
        return with_values(
            config, optimizer=hyper.optimizer, batch=batch, seed=self.seed, clip=clip, **values
        )


def _whole(name: str, value: object, least: int) -> None:
    """DiagnosticError unless `value` is None or a whole number from `least` on."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise fail(f"{name} is {value!r}, expected a whole number")
    if not least <= value < 2**63:
        expected = f"{least} or more" if value < least else "less than 2**63"
        raise fail(f"{name} is {value}, expected {expected}")


def _number(name: str, value: object, expected: str, accepts: Callable[[float], bool]) -> None:
    """DiagnosticError unless `value` is a number that is accepted and that a 32-bit float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise fail(f"the {name} is {value!r}, expected a number")
    number = float(value)
    held = abs(number) <= LARGEST_FLOAT and (number == 0 or np.float32(number) != 0)
    if not held or not accepts(number):
        raise fail(f"the {name} is {number:g}, expected {expected} that a 32-bit float holds")


def _are_numbers(batch: object) -> bool:
    """Whether a batch names samples by their numbers; DiagnosticError if it is no batch at all."""
    if isinstance(batch, str | Path | Dataset):
        return False
    if isinstance(batch, Mapping | bytes) or not isinstance(batch, Sequence | np.ndarray):
        found = "one sample" if isinstance(batch, Mapping) else type(batch).__name__
        raise fail(f"found {found}, expected a path, a list of samples, or a list of their numbers")
    try:
        return not len(batch) or bool(np.issubdtype(np.asarray(batch).dtype, np.integer))
    except (TypeError, ValueError):  # no array can be made of it, so these are no numbers
        return False


def _numbers(batch: Any, samples: int) -> NDArray[np.int32]:
    """The numbers of a batch, all below `samples`; None means all."""
    if batch is None:
        return np.arange(samples, dtype=np.int32)
    numbers = np.asarray(batch) if len(batch) else np.zeros(0, np.int32)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise fail(f"a batch of numbers is {list(numbers.shape)} of {numbers.dtype}, expected a list of int")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < samples:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise fail(f"a batch holds sample {wrong}; the data have 0..{samples - 1}")
    return numbers.astype(np.int32)


def _array(name: str, value: Any) -> NDArray[Any]:
    """A parameter's new values, from anything that NumPy or DLPack understands."""
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            array: NDArray[Any] = np.from_dlpack(value)
        else:
            array = np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise fail(f"{name}: no array can be made of {type(value).__name__}: {error}") from None
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise fail(f"{name} holds {array.dtype}, expected real numbers")
    return array


@attrs.frozen
class DataCheck:
    """What `check_data` found: the program is right; summary: of the data, None without any."""

    model: str
    warnings: tuple[Diagnostic, ...]
    description: str
    summary: str | None


def check_data(
    program: str | Path,
    data: str | Path | None = None,
    settings: Mapping[str, int] | None = None,
    *,
    labels_required: bool = True,
) -> DataCheck:
    """Checks a program and data for it; DiagnosticError holds every mistake."""
    _, checked, warnings = read_program(program, settings or {})
    summary = None
    if data is not None:
        summary = summarize(read(data, checked, labels_required=labels_required))
    return DataCheck(checked.name, warnings, describe(checked), summary)


def explain_build(
    build: str | Path,
    target: str | None = None,
    *,
    schedule: bool = False,
    data: str | Path | None = None,
    batch: int = 32,
) -> str:
    """What the compiler made of a build, as text; with `schedule` also a batch's instructions.

    The batch is the first of `data`, else one made-up sample.
    """
    opened = read_build(build)
    names = tuple(opened.targets) if target is None else (target_name(machine_of(target)),)
    if not set(names) <= set(opened.targets):
        raise fail(f"{build}: has no target {names[0]}, only {', '.join(opened.targets)}")
    settings = ", ".join(f"{name} = {size}" for name, size in opened.settings.items()) or "none"
    parts = [f"model {opened.model} of {opened.source_name}, settings: {settings}"]
    for name in names:
        plan = build_plan(opened, name)
        parts.append(explain_plan(plan))
        if schedule:
            example = msgspec.json.decode(examples(plan.program)[1])
            given = read_samples([example], plan.program) if data is None else read(data, plan.program)
            rows = table_rows(plan.program, given.vocabularies)
            parts.append(explain_schedule(plan, given.forest, rows, batch))
    return "\n\n".join(parts)


def find_checkpoint(build: str | Path, run_dir: str | Path | None = None) -> Path:
    """The checkpoint of a run folder, or of the newest run of a build's model: best, else last."""
    digest = read_build(build).digest
    if run_dir is not None:
        found = run_checkpoint(run_dir)
        if found is None:
            raise fail(f"{run_dir}: holds no checkpoint")
        return found
    found = newest_checkpoint(digest)
    if found is None:
        raise fail(f"{build}: no run of this model in {RUNS}/; train it first, or give --checkpoint")
    return found


def run_of(folder: str | Path) -> tuple[RunConfig, Path | None]:
    """The configuration of a run folder and its last checkpoint, None if there is none yet."""
    config = read_config(Path(folder) / CONFIG)
    last = Path(folder) / f"{LAST}.safetensors"
    return config, last if last.exists() else None


def draw_run(folder: str | Path) -> Path:
    """Draws the curves of a run folder; the picture. Missing without matplotlib."""
    path = Path(folder) / CURVES
    try:
        draw_curves(read_events(Path(folder) / METRICS), path)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    return path


def predict_to_file(model: Model, data: str | Path, path: str | Path) -> int:
    """Writes the outputs for every sample of `data` as a line of JSON; how many lines."""
    check_output(path, data)
    check_outside(path)
    if not any(result.kind == "output" for result in model.plan.results):
        raise fail(f"model {model.build.model} declares no output")
    outputs = model.predict(data)
    count = len(next(iter(outputs.values())))
    words = named_classes(model.program, model.vocabularies or {})
    lines = (
        msgspec.json.encode({name: plain(values[at], words.get(name)) for name, values in outputs.items()})
        + b"\n"
        for at in range(count)
    )
    try:
        write_atomically(Path(path), lines)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    return count


def plain(value: Any, words: Sequence[str] | None = None) -> Any:
    """An output as JSON: numbers with the digits that a float32 holds, classes as in the data.

    words: the labels of the classes; None, or a class that the training data lack: its number.
    """
    if value is None:
        return None
    if value.ndim:
        return [plain(each, words) for each in value]
    if np.issubdtype(value.dtype, np.integer):
        return words[value] if words is not None and 0 <= value < len(words) else int(value)
    return float(f"{value:.8g}")


def _start_event(model: Model, dataset: Dataset, options: TrainOptions, folder: Path) -> Event:
    hyper = options.hyper
    return {
        "event": "start",
        "model": model.build.model,
        "device": model.device,
        "run": str(folder),
        "data": dataset.path,
        "samples": dataset.samples,
        "epochs": options.epochs,
        "batch": options.batch,
        "optimizer": hyper.optimizer,
        "learning_rate": hyper.learning_rate,
        "clip": hyper.clip_norm if np.isfinite(hyper.clip_norm) else None,
        "seed": options.seed,
        "first_epoch": model.position.epoch + 1,
    }


def table_rows(program: Program, vocabularies: Mapping[str, Vocabulary]) -> dict[str, int]:
    """Rows of every table: its dimension's size, or that of the vocabulary where it is open."""
    found = {}
    for parameter in program.parameters:
        if parameter.kind == TABLE:
            dimension = parameter.dimensions[0]
            known = vocabularies.get(dimension.name)
            found[parameter.name] = dimension.size or (len(known) if known is not None else 1)
    return found
