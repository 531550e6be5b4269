"""A compiled model on a device: its data, parameters, checkpoints, steps and predictions.

In: data as paths, samples or sample numbers. Out: losses, metrics, outputs, arrays. Guaranteed: every
mistake of the user is a `DiagnosticError`; nothing but `Model.train` writes a run folder; several threads
may call, one at a time has its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dnc.api import generation, saving, training
from dnc.api.arguments import (
    Batch,
    Data,
    are_numbers,
    as_array,
    by_name,
    check_whole,
    noise_of,
    sample_numbers,
    with_settings,
)
from dnc.api.first_values import check_class_metrics, check_memory
from dnc.api.origin import ELSEWHERE, Origin
from dnc.api.reading import Reader, Words
from dnc.api.streaming import ModelStream
from dnc.api.tracing import LAUNCHES, start_timeline
from dnc.api.turns import Turn, in_turn, moves, stream_in_turn
from dnc.diagnostics import fail
from dnc.ir.noise import NONE
from dnc.ir.optimizers import DEFAULT
from dnc.ir.plan import Plan
from dnc.ir.program import Program
from dnc.runtime.backend import Backend
from dnc.runtime.batches import distinct, filled
from dnc.runtime.build import Build
from dnc.runtime.carried import carried
from dnc.runtime.checkpoint import Checkpoint, Course, Position, check_model, load_checkpoint
from dnc.runtime.data import Dataset, Vocabulary, has_vocabulary, table_rows
from dnc.runtime.embeddings import Embeddings, read_embeddings, table_of
from dnc.runtime.encoder import Encoder
from dnc.runtime.initialize import check_finite, initialize, load_weights, shapes
from dnc.runtime.outside import Arrays, check_unaided, hand_back, hand_in, pulled_fields, pushed_values
from dnc.runtime.phases import EVALUATE, RESULT_KINDS
from dnc.runtime.predictions import has_file_order, in_file_order, metric_classes
from dnc.runtime.predictor import MOST_SAMPLES, Predictor
from dnc.runtime.results import Evaluation
from dnc.runtime.session import Session
from dnc.runtime.trace.timeline import OFF, Timeline

Floats = NDArray[np.float32]

NO_VOCABULARY = "the model has no vocabulary yet: attach training data, or load it with a checkpoint"


class Model:
    """A compiled model on a device.

    The first data it reads (or a checkpoint) gives it a vocabulary, and with it the sizes of its
    tables; from then on it has parameters.
    """

    def __init__(self, build: Build, plan: Plan, backend: Backend, seed: int) -> None:
        self.build, self.plan, self.backend, self.seed = build, plan, backend, seed
        self.turn = Turn()
        self.hyper = DEFAULT
        self.vocabularies: dict[str, Vocabulary] | None = None
        self.position, self.course = Position(), Course()
        self.origin = Origin()
        self.keep_place: Callable[[], None] = lambda: None  # in training: writes both as they are by now
        self.memory_words: int | None = None
        self.grid: tuple[int | None, int | None] = None, None  # replicas, workers that were asked for
        self.encoders: int | None = None
        self.timeline = OFF
        self._session: Session | None = None
        self._attached: Dataset | None = None
        self._forwarded: tuple[Dataset, NDArray[np.int32], bool, object] | None = None
        self._predictor: Predictor | None = None
        self._encoded = 0
        # By list those of `generate`, which keep the schedules of the shapes that they have seen.
        self.generating: dict[str | None, ModelStream] = {}
        self.reader = Reader(self.program)
        self._encoders: WeakKeyDictionary[Dataset, Encoder] = WeakKeyDictionary()

    def __reduce__(self) -> NoReturn:
        raise fail(
            "a model holds memory of its device, and can be neither copied nor pickled",
            "save(path) writes what it has learned; dnc.load(build, checkpoint=path) makes another one of it",
        )

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

    @property
    def encoded(self) -> int:
        """Predictions so far for which schedules were encoded: of a new shape, or of many samples."""
        return self._encoded + (0 if self._predictor is None else self._predictor.encoded)

    def check_trains(self) -> None:
        """DiagnosticError if the build was compiled for inference."""
        if not self.plan.trains:
            found = f"{self.build.path}: was compiled with --mode infer"
            raise fail(f"{found}: it neither trains nor writes checkpoints")

    def trace(self, launches: int = LAUNCHES) -> Timeline:
        """Keeps a timeline of the next launches; afterwards `dnc.api.write_trace` writes it.

        They run on a kernel that also keeps times; its results have the same bits.
        """
        check_whole("launches", launches, 1)
        self.timeline = start_timeline(self.plan, self.backend, launches)
        if self._session is not None:
            self._session.timeline = self.timeline
        return self.timeline

    # ---- data -----------------------------------------------------------------------------------

    @in_turn
    def attach(self, data: Data, *, min_count: int = 1, vocabulary: Words | None = None) -> Dataset:
        """Reads training data; sample numbers in later calls mean its samples.

        The first data give the vocabulary: words met `min_count` times or more. vocabulary: by dimension a
        file (one a line) or a list of words or labels known beside them. Inference needs no labels.
        """
        needed = self.plan.trains
        dataset = self.read(data, labels_required=needed, min_count=min_count, vocabulary=vocabulary)
        self.encoder(dataset)
        self._attached = dataset
        return dataset

    @in_turn
    def read(
        self,
        data: Data,
        *,
        labels_required: bool = True,
        min_count: int = 1,
        vocabulary: Words | None = None,
    ) -> Dataset:
        """Data as a `Dataset`, read with the model's vocabulary; without one they give it, as in `attach`."""
        check_whole("min_count", min_count, 1)
        dataset = self.reader.read(data, self.vocabularies, labels_required, min_count, vocabulary)
        if self.vocabularies is None:
            self.start(dataset.vocabularies, origin=Origin.of_data(dataset, vocabulary))
        return dataset

    def encoder(self, dataset: Dataset) -> Encoder:
        """What turns batches of `dataset` into schedules."""
        if dataset not in self._encoders:
            self._encoders[dataset] = self.session.attach(dataset.forest)
        return self._encoders[dataset]

    def batch_of(self, batch: Batch | None, labels_required: bool) -> tuple[Dataset, NDArray[np.int32]]:
        """The data that a batch refers to, and its sample numbers."""
        if batch is None or are_numbers(batch):
            if batch is not None and not len(batch) and self._attached is None:  # type: ignore[arg-type]
                raise fail("a batch holds no samples")
            data = self._training_data(labels_required)
            return data, sample_numbers(batch, data.samples)
        data = self.reader.read(batch, self.vocabularies, labels_required)  # type: ignore[arg-type]
        data.check_labels(labels_required)
        if self.vocabularies is None:
            if data.vocabularies and data is not batch:
                raise fail(NO_VOCABULARY)  # a batch is too little to make one of
            self.start(data.vocabularies, origin=Origin.of_data(data))
        return data, sample_numbers(None, data.samples)

    @property
    def attached(self) -> Dataset | None:
        """What sample numbers mean samples of."""
        return self._attached

    def _training_data(self, labels_required: bool = True) -> Dataset:
        if self._attached is None:
            raise fail("no data are attached: call attach(data) first, or pass samples to a single call")
        self._attached.check_labels(labels_required)
        return self._attached

    # ---- parameters -----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """What runs batches; DiagnosticError as long as the vocabulary is unknown."""
        if self._session is None and has_vocabulary(self.program):
            raise fail(NO_VOCABULARY)
        return self.start({}) if self._session is None else self._session

    def start(
        self,
        vocabularies: dict[str, Vocabulary],
        values: Mapping[str, Floats] | None = None,
        origin: Origin | None = None,
    ) -> Session:
        """Makes the session, now that the sizes of the tables are known. origin: of words and values."""
        rows = table_rows(self.program, vocabularies)
        check_memory(self, rows)
        first = values or initialize(self.program, rows, self.seed)
        classes = metric_classes(self.program, vocabularies)
        check_class_metrics(self.program, classes)
        if vocabularies != self.vocabularies:
            self._attached = self._forwarded = None  # their numbers are of another vocabulary
        self._encoders.clear()
        if self._session is not None:
            self._session.launches.retire()  # streams that are open have their places in its memory
            self._session = self.vocabularies = None  # where there is no memory after all, it begins anew
            self.position, self.course = Position(), Course()
        self._session = Session(
            self.plan,
            self.backend,
            rows,
            first,
            self.memory_words,
            classes,
            self.seed,
            self.timeline,
            self.encoders,
        )
        self.vocabularies = vocabularies
        self.origin = origin or Origin(words=ELSEWHERE if vocabularies else None)
        return self._session

    @in_turn
    def parameters(self) -> dict[str, Floats]:
        """Every parameter's values by name, as NumPy arrays (which speak DLPack)."""
        return self.session.read_arrays()

    @moves
    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters by name; arrays of NumPy or anything that speaks DLPack."""
        expected = shapes(self.program, self.session.memory.table_rows)
        arrays: dict[str, Floats] = {}
        for name, value in by_name(values).items():
            if name not in expected:
                raise fail(f"no parameter is called {name}; known: {', '.join(expected)}")
            array = as_array(name, value)
            if array.shape != expected[name]:
                raise fail(f"{name} is {list(array.shape)}, expected {list(expected[name])}")
            arrays[name] = array
        check_finite(arrays, "set_parameters")
        self.session.write_arrays(arrays)
        self.origin = self._origin().but("began with parameters that were set in Python")

    def _origin(self) -> Origin:
        """Where the model is now."""
        return self.origin.at(self.session.steps_done)

    @moves
    def load_weights(self, path: str | Path) -> tuple[str, ...]:
        """Replaces the parameters that a safetensors file holds; their names."""
        rows = self.session.memory.table_rows
        values, names = load_weights(path, self.program, rows, self.parameters())
        self.session.write_arrays(values)
        self.origin = self._origin().with_weights(path, names, self.program, self.vocabularies or {})
        return names

    @moves
    def load_embeddings(self, table: str, path: str | Path) -> Embeddings:
        """Takes the rows of a table from a text file of word vectors (GloVe's format); what was found."""
        parameter, vocabularies = table_of(self.program, table), self.vocabularies or {}
        values = self.parameters()[table]
        vocabulary = vocabularies.get(parameter.dimensions[0].name)
        rows, found = read_embeddings(path, parameter, vocabulary, values)
        self.session.write_arrays({table: rows})
        self.origin = self._origin().with_embeddings(table, path)
        return found

    # ---- checkpoints ----------------------------------------------------------------------------

    save = in_turn(saving.save)

    @moves
    def restore(self, path: str | Path) -> Checkpoint:
        """Takes everything from a checkpoint; DiagnosticError if it is of another model."""
        checkpoint = load_checkpoint(path)
        rows = table_rows(self.program, checkpoint.vocabularies)
        check_model(checkpoint, self.program, self.build.digest, rows, path)
        check_memory(self, rows, len(checkpoint.optimizer_state))
        origin = Origin.of_checkpoint(path, checkpoint.position.step)
        self.start(checkpoint.vocabularies, checkpoint.weights, origin)
        if self.plan.trains:
            self.session.write_state(
                checkpoint.hyper.optimizer, checkpoint.optimizer_steps, checkpoint.optimizer_state
            )
        self.session.steps_done, self.session.seed = checkpoint.position.step, checkpoint.seed
        self.seed, self.hyper, self.position = checkpoint.seed, checkpoint.hyper, checkpoint.position
        self.course = checkpoint.course
        return checkpoint

    # ---- batches --------------------------------------------------------------------------------

    @moves
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
        given = {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        self.hyper = with_settings(self.hyper, optimizer, clip, chosen)

    @moves
    def step(self, batch: Batch) -> float | None:
        """Starts a training step and returns the loss of the step before (None for the first).

        batch: numbers of attached samples, or samples. NotFinite (a DiagnosticError) if the step
        before made no update because its gradient was not finite.
        """
        self.check_trains()
        check_unaided(self.program, "step")
        data, numbers = self.batch_of(batch, labels_required=True)
        try:
            result = self.session.step(self.encoder(data), numbers, self.hyper)
        finally:  # this step has been started, whatever the one before has come to
            self.position = self.position.at(self.session.steps_done)
        return None if result is None else result.loss

    @stream_in_turn
    def steps(self, batches: Iterable[Sequence[int] | NDArray[np.integer[Any]]]) -> Iterator[float]:
        """Trains on batches of attached samples, in order; their losses, in order, some batches late.

        Faster than `step` for small batches: they are encoded and copied several at a time. What
        `batches` raises comes behind the steps of those before.
        """
        self.check_trains()
        self.turn.check_still("steps")
        check_unaided(self.program, "steps")
        data = self._training_data()
        numbers = (sample_numbers(batch, data.samples) for batch in batches)
        try:
            for result in self.session.steps(self.encoder(data), numbers, self.hyper):
                self.position = self.position.at(self.session.steps_done)
                yield result.loss
                self.turn.check_still("steps")
        finally:  # steps behind the last result have been started, too
            self.position = self.position.at(self.session.steps_done)

    @in_turn
    def sync(self) -> float | None:
        """Waits for all steps; the loss of the last one, if it was not returned yet."""
        result = self.session.sync()
        return None if result is None else result.loss

    @in_turn
    def evaluate(self, data: Batch | None = None) -> Evaluation:
        """Loss and metrics over data (by default those attached)."""
        dataset, numbers = self.batch_of(data, labels_required=True)
        if not len(numbers):
            raise fail("there are no samples to evaluate")
        if not any(result.kind in RESULT_KINDS[EVALUATE] for result in self.plan.results):
            raise fail("there is nothing to evaluate: the program has neither a loss nor a metric")
        check_unaided(self.program, "evaluate")
        return self.session.evaluate(self.encoder(dataset), numbers)

    @in_turn
    def predict(self, batch: Batch | None = None, *, seed: int | None = None) -> dict[str, list[Any]]:
        """The declared outputs by name, one entry a sample, in order; labels may be missing.

        An output of many vertices is an array in the order of the data: that of the file for flat samples,
        children before parents for nested ones. seed: `sample` draws by it; None chooses the largest.
        """
        check_unaided(self.program, "predict")
        return self._predict(*self.batch_of(batch, labels_required=False), noise_of(seed))

    @stream_in_turn
    def predictions(
        self, batches: Iterable[Sequence[int] | NDArray[np.integer[Any]]]
    ) -> Iterator[dict[str, list[Any]]]:
        """What `predict` gives, for one batch of attached samples after another; some batches late.

        On a GPU small batches run side by side, and the last bits may be others than those of a call.
        Faster than a call for every batch: batches are encoded while those before them run, small ones
        several at a time, on a GPU in other processes. For samples without labels, in a build that trains,
        attach what `read(..., labels_required=False)` returns.
        """
        check_unaided(self.program, "predictions")
        data = self._training_data(False)
        ordered = has_file_order(self.plan, data)
        for numbers, found in self._numbered(data, batches):
            yield in_file_order(found, self.plan, data, numbers) if ordered else found

    def _numbered(
        self, data: Dataset, batches: Iterable[Any]
    ) -> Iterator[tuple[NDArray[np.int32], dict[str, list[Any]]]]:
        """Every batch as numbers, with its outputs."""
        waiting = deque[NDArray[np.int32]]()

        def noted() -> Iterator[NDArray[np.int32]]:
            for batch in batches:
                waiting.append(sample_numbers(batch, data.samples))
                self._encoded += 1
                yield waiting[-1]

        for found in self.session.predictions(self.encoder(data), noted()):
            yield waiting.popleft(), found

    def _predict(self, dataset: Dataset, numbers: NDArray[np.int32], noise: int) -> dict[str, list[Any]]:
        known = dataset.samples <= MOST_SAMPLES and len(numbers) == dataset.samples
        if known and not self.timeline.is_recording:
            if self._predictor is None or self._predictor.session is not self.session:
                self._predictor = Predictor(self.session)
            found = self._predictor.predict(dataset.forest, noise)
            found = {name: [values[at] for at in numbers] for name, values in found.items()}
        else:
            self._encoded += 1
            found = self.session.predict(self.encoder(dataset), numbers, noise=noise)
        return in_file_order(found, self.plan, dataset, numbers)

    def stream(self, field: str | None = None) -> ModelStream:
        """Streams along a list of the root, which comes in chunks; field: None for its only list.

        DiagnosticError where outputs read elements that are yet to come, or have gone.
        """
        return ModelStream(self, carried(self.plan, field))

    # ---- inside another net ------------------------------------------------------------------------

    @in_turn
    def forward(
        self, batch: Batch | None = None, pulled: Arrays | None = None, *, training: bool = False
    ) -> dict[str, list[Any]]:
        """The declared and the pushed outputs, as `predict`, for vectors that come from elsewhere.

        pulled: by "Struct.field" an array [vertices, width] a sample, for every field declared
        `pulled<width>`; vertices in the order of `predict`'s outputs. training: `dropout` drops what the
        next step drops. `backward` drops what `forward` has dropped.
        """
        dataset, numbers = distinct(*self.batch_of(batch, labels_required=False))
        handed = hand_in(dataset, filled(numbers), pulled_fields(self.program), pulled, "pulled vector")
        if training:
            self.check_trains()
        found = self._predict(dataset, numbers, self.session.next_noise() if training else NONE)
        self._forwarded = dataset, numbers, training, handed
        return found

    @moves
    def backward(self, pushed: Arrays | None = None) -> tuple[float, dict[str, list[Any]]]:
        """Trains on the batch that `forward` was called with: (loss, gradients by pulled vectors).

        pushed: by output an array a sample, the gradient of what is minimised by the pushed vectors,
        shaped as those; the program's own losses, if any, are added as means over the samples. The
        gradients come by "Struct.field", shaped as what was pulled. The own parameters are updated.
        """
        self.check_trains()
        if self._forwarded is None:
            raise fail("backward needs a batch: call forward first")
        dataset, numbers, noisy, handed = self._forwarded
        dataset.check_handed(handed)
        dataset.check_labels(any(result.kind == "loss" for result in self.plan.results))
        hand_in(dataset, numbers, pushed_values(self.program), pushed, "gradient of")
        try:
            result, found = self.session.backward(self.encoder(dataset), numbers, self.hyper, noisy)
        finally:
            self.position = self.position.at(self.session.steps_done)
        self._forwarded = None
        return result.loss, hand_back(dataset, numbers, pulled_fields(self.program), found)

    # ---- training -------------------------------------------------------------------------------

    train = moves(training.train)
    generate = in_turn(generation.generate)
