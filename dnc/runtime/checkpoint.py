"""Checkpoints: everything that training needs to go on, in one safetensors file.

In: arrays and the place in training. Out: a file in which a weight has its parameter's name and
what the optimizer keeps for it the name ``optimizer/<state>/<parameter>``. Guaranteed: written
whole or not at all, never with numbers that are not finite; a checkpoint of another model, or one
that has changed since, is refused in words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.ir.optimizers import OPTIMIZERS, Hyper
from dnc.ir.program import Program
from dnc.runtime.data import Vocabulary, vocabularies_from_json, vocabularies_to_json
from dnc.runtime.initialize import check_finite, check_floats, shapes
from dnc.runtime.tensors import read_metadata, read_tensors, write_tensors

Floats = NDArray[np.float32]
VERSION = 2
_STATE = "optimizer/"


@attrs.frozen
class Position:
    """A place in training. batch: batches done of `epoch` (counted from 0). step: updates made.

    loss, seen: the sum of the losses of the epoch's samples so far, and how many there were.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss: float = 0.0
    seen: int = 0

    def at(self, step: int) -> Position:
        """The same place behind another number of updates."""
        return Position(self.epoch, self.batch, step, self.loss, self.seen)


@attrs.frozen
class Course:
    """What training goes on with beside its place.

    batch_size, samples: of a batch, and of the training data; 0 if unknown. best: the best score on the dev
    set so far, None without one; best_epoch: epochs done when it was reached. dev, data: digests of that set
    and of the training data, score: what was the best, "" if unknown.
    """

    batch_size: int = 0
    samples: int = 0
    best: float | None = None
    best_epoch: int = 0
    dev: str = ""
    data: str = ""
    score: str = ""

    def on(self, dev: str, score: str) -> Course:
        """What training goes on with that is measured on a set, by a score; others have their own best."""
        same = attrs.evolve(self, dev=dev, score=score)
        known = self.dev in ("", dev) and self.score in ("", score)
        return same if known else attrs.evolve(same, best=None, best_epoch=0)


@attrs.frozen(eq=False)
class Checkpoint:
    """Weights by parameter, what the optimizer keeps by state and parameter, and the rest of training.

    optimizer_steps: updates since that state was zero. digest: of the model's program.
    """

    model: str
    digest: str
    weights: dict[str, Floats]
    optimizer_state: dict[str, dict[str, Floats]]
    vocabularies: dict[str, Vocabulary]
    seed: int
    position: Position
    hyper: Hyper
    optimizer_steps: int
    course: Course = Course()


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Optimizer = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(OPTIMIZERS)})$")]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    model: str
    digest: str
    vocabularies: Any
    seed: _Count
    batch_size: _Count
    epoch: _Count
    batch: _Count
    step: _Count
    optimizer: _Optimizer
    learning_rate: _Positive
    epsilon: _Positive
    weight_decay: Annotated[float, msgspec.Meta(ge=0)]
    momentum: _Share
    beta1: _Share
    beta2: _Share
    optimizer_steps: _Count
    clip_norm: _Positive | None = None
    best: float | None = None
    samples: _Count = 0
    loss: float = 0.0
    seen: _Count = 0
    best_epoch: _Count = 0
    dev: str = ""
    data: str = ""
    score: str = ""


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint; DiagnosticError, with the old file in place, if that cannot be done."""
    hint = "a smaller learning rate (--lr) or clipping (--clip) may help"
    check_finite(checkpoint.weights, f"{path}: not written, the weights", hint)
    tensors = {**checkpoint.weights}
    for state, arrays in checkpoint.optimizer_state.items():
        check_finite(arrays, f"{path}: not written, the optimizer's {state}", hint)
        tensors |= {f"{_STATE}{state}/{name}": value for name, value in arrays.items()}
    hyper, place, course = checkpoint.hyper, checkpoint.position, checkpoint.course
    stored = _Stored(
        VERSION,
        checkpoint.model,
        checkpoint.digest,
        vocabularies_to_json(checkpoint.vocabularies),
        checkpoint.seed,
        course.batch_size,
        place.epoch,
        place.batch,
        place.step,
        hyper.optimizer,
        hyper.learning_rate,
        hyper.epsilon,
        hyper.weight_decay,
        hyper.momentum,
        hyper.beta1,
        hyper.beta2,
        checkpoint.optimizer_steps,
        hyper.clip_norm if np.isfinite(hyper.clip_norm) else None,
        course.best,
        course.samples,
        place.loss,
        place.seen,
        course.best_epoch,
        course.dev,
        course.data,
        course.score,
    )
    write_tensors(path, tensors, msgspec.to_builtins(stored))


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint; DiagnosticError if the file is none, or of another version."""
    _check_file(path)
    tensors, metadata = read_tensors(path)
    stored = _stored(path, metadata)
    check_floats(tensors, str(path))
    clip = float("inf") if stored.clip_norm is None else stored.clip_norm
    states: dict[str, dict[str, Floats]] = {state.name: {} for state in OPTIMIZERS[stored.optimizer].states}
    for name, value in tensors.items():
        if name.startswith(_STATE):
            state, _, parameter = name.removeprefix(_STATE).partition("/")
            states.setdefault(state, {})[parameter] = value
    return Checkpoint(
        stored.model,
        stored.digest,
        {name: value for name, value in tensors.items() if not name.startswith(_STATE)},
        states,
        vocabularies_from_json(stored.vocabularies, str(path)),
        stored.seed,
        Position(stored.epoch, stored.batch, stored.step, stored.loss, stored.seen),
        Hyper(
            stored.optimizer,
            stored.learning_rate,
            clip,
            stored.epsilon,
            stored.weight_decay,
            stored.momentum,
            stored.beta1,
            stored.beta2,
        ),
        stored.optimizer_steps,
        Course(
            stored.batch_size,
            stored.samples,
            stored.best,
            stored.best_epoch,
            stored.dev,
            stored.data,
            stored.score,
        ),
    )


def checkpoint_place(path: str | Path) -> tuple[str, int]:
    """The digest of a checkpoint's model, and the updates made: without its arrays, however damaged they are.

    DiagnosticError as in `load_checkpoint`.
    """
    _check_file(path)
    stored = _stored(path, read_metadata(path))
    return stored.digest, stored.step


def _check_file(path: str | Path) -> None:
    """DiagnosticError where a folder of checkpoints stands for one of them."""
    is_folder = isinstance(path, str | Path) and os.path.isdir(path)
    inside = sorted(each.name for each in Path(path).glob("*.safetensors")) if is_folder else []
    if inside:
        raise fail(f"{path}: is a directory, expected a checkpoint; it holds {', '.join(inside)}")


def _stored(path: str | Path, metadata: Any) -> _Stored:
    """The metadata of a checkpoint; DiagnosticError if they are none, or of another version."""
    if not isinstance(metadata, dict) or "version" not in metadata:
        raise fail(f"{path}: not a checkpoint", "dnc import-weights makes a run folder of weights alone")
    if metadata["version"] != VERSION:
        raise fail(f"{path}: a checkpoint of version {metadata['version']}, expected {VERSION}")
    try:
        return msgspec.convert(metadata, _Stored)
    except msgspec.ValidationError as error:
        raise fail(f"{path}: its metadata is broken: {error}") from None


def stored_vocabularies(metadata: Any, path: str | Path) -> dict[str, Vocabulary] | None:
    """The vocabularies in the metadata of a safetensors file; None if it is no checkpoint."""
    if not isinstance(metadata, dict) or "vocabularies" not in metadata:
        return None
    return vocabularies_from_json(metadata["vocabularies"], str(path))


def check_model(
    checkpoint: Checkpoint, program: Program, digest: str, table_rows: Mapping[str, int], path: str | Path
) -> None:
    """DiagnosticError in words if the checkpoint is of another model than `program`."""
    if checkpoint.model != program.name:
        raise fail(f"{path}: a checkpoint of model {checkpoint.model}; this build is of {program.name}")
    whole = shapes(program, table_rows)
    trained = {p.name: whole[p.name] for p in program.parameters if p.trained}
    states = OPTIMIZERS[checkpoint.hyper.optimizer].states
    problems = _differences(path, "", checkpoint.weights, whole)
    if not problems and checkpoint.digest != digest:
        raise fail(
            f"{path}: a checkpoint of another program called {program.name}, though the shapes agree",
            f"to take its weights by name all the same: --weights {path}",
        )
    for name, arrays in checkpoint.optimizer_state.items():
        if not problems:  # else what the optimizer keeps fits as little, array by array
            problems = _differences(path, f"{_STATE}{name}/", arrays, trained)
    unknown = set(checkpoint.optimizer_state) - {state.name for state in states}
    problems += [f"{path}: {checkpoint.hyper.optimizer} keeps no '{name}'" for name in sorted(unknown)]
    if problems:
        raise DiagnosticError(*map(Diagnostic, problems))
    check_finite(checkpoint.weights, f"{path}: the weights")
    for state in states:
        arrays = checkpoint.optimizer_state[state.name]
        check_finite(arrays, f"{path}: the optimizer's {state.name}")
        if state.squares and any((array < 0).any() for array in arrays.values()):
            raise fail(f"{path}: the optimizer's {state.name} hold negative numbers")


def _differences(
    path: str | Path, prefix: str, arrays: Mapping[str, Floats], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """In words how arrays are not those that are expected, by name."""
    problems = list[str]()
    for name, shape in expected.items():
        found = arrays.get(name)
        if found is None:
            problems.append(f"{path}: {prefix}{name} is missing")
        elif found.shape != shape:
            problems.append(f"{path}: {prefix}{name} is {list(found.shape)}, expected {list(shape)}")
    return problems + [f"{path}: no parameter is called {prefix}{n}" for n in arrays if n not in expected]
