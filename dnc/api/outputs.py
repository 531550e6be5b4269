"""The declared outputs of a model as JSON: objects, lines, a file.

In: a model and data, or outputs. Out: an object or a line a sample, in order. Guaranteed: the file is written
whole or not at all, and never over the data, into a build, or over what a run goes on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np

from dnc.api.bench import read_lines
from dnc.api.generation import SampleError, output_of
from dnc.api.model import Model
from dnc.diagnostics import DiagnosticError, counted, fail
from dnc.ir.plan import NoiseList
from dnc.runtime.atomic import write_atomically
from dnc.runtime.data.columns import Id
from dnc.runtime.data.layout import ID
from dnc.runtime.data.problems import DataDiagnostic
from dnc.runtime.data.reader import SAMPLES
from dnc.runtime.predictions import named_classes
from dnc.runtime.run_folder import check_result


def predict_to_file(
    model: Model,
    data: str | Path,
    path: str | Path,
    *,
    seed: int | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> int:
    """Writes the outputs for every sample of `data` as a line of JSON; how many lines. seed: as `predict`.

    told: as `predict_lines` has it.
    """
    check_result(path, data)
    return write_lines(path, predict_lines(model, data, seed=seed, told=told))


def write_lines(path: str | Path, lines: Sequence[bytes]) -> int:
    """Writes lines to a file; how many."""
    try:
        write_atomically(Path(path), lines)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    return len(lines)


def generate_lines(
    model: Model,
    data: str | Path,
    end: str,
    output: str | None = None,
    *,
    most: int = 200,
    chunk: int | None = None,
    field: str | None = None,
    seed: int | None = None,
) -> list[bytes]:
    """What `Model.generate` makes for every sample of `data`, as a line of JSON by the name of the output.

    end: the word that ends a list, or its number if no word is called so. The others: as there.
    """
    _check_draws(model, seed)
    numbered = read_lines(data)
    name = output_of(model, field, output)
    words = named_classes(model.program, model.vocabularies or {}).get(name)
    last = int(end) if end not in (words or ()) and end.isascii() and end.isdecimal() else end
    with lines_of(str(data), [line for line, _ in numbered]):
        samples = [sample for _, sample in numbered]
        found = model.generate(samples, last, name, most=most, chunk=chunk, field=field, seed=seed)
    has_ids = model.reader.layout(labels_required=False).has_ids
    return _lines(model, {name: found}, [sample.get(ID) for sample in samples] if has_ids else ())


@contextmanager
def lines_of(path: str, lines: Sequence[int]) -> Iterator[None]:
    """What is found wrong with samples that were read from a file, at their lines there."""
    try:
        yield
    except SampleError as error:
        at = lines[error.number - 1]
        raise DiagnosticError(DataDiagnostic(error.message, path=path, line=at)) from None
    except DiagnosticError as error:
        found = [
            attrs.evolve(each, path=path, line=lines[each.line - 1])
            if isinstance(each, DataDiagnostic) and each.path == SAMPLES and each.line is not None
            else each
            for each in error.diagnostics
        ]
        raise DiagnosticError(*found) from None


def predict_lines(
    model: Model,
    data: str | Path,
    *,
    seed: int | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> list[bytes]:
    """The outputs for every sample of `data` as a line of JSON, behind its id if it has one.

    seed: as `Model.predict` has it. told: gets a sentence where numbers are not finite, for which JSON has
    null alone.
    """
    _check_draws(model, seed)
    if not any(result.kind == "output" for result in model.plan.results):
        raise fail(f"model {model.build.model} declares no output")
    samples, _ = model.batch_of(data, labels_required=False)
    outputs = model.predict(samples, seed=seed)
    broken = _not_finite(outputs)
    if len(broken):
        count = len(next(iter(outputs.values())))
        first = "" if len(broken) == 1 else "the first "
        told(
            f"numbers of {len(broken):,} of {counted(count, 'sample')} are not finite, null in the output: "
            f"{first}in line {broken[0] + 1:,}"
        )
    return _lines(model, outputs, samples.ids)


def _not_finite(outputs: Mapping[str, Sequence[Any]]) -> list[int]:
    """The samples that have numbers which are not finite."""
    found = {
        at
        for values in outputs.values()
        for at, each in enumerate(values)
        if each is not None and each.dtype.kind == "f" and not np.isfinite(each).all()
    }
    return sorted(found)


def _check_draws(model: Model, seed: int | None) -> None:
    """DiagnosticError if a seed is given to a program that draws nothing by it."""
    if seed is not None and not any(isinstance(item, NoiseList) and item.draws for item in model.plan.lists):
        raise fail(f"a seed is what 'sample' draws by, and model {model.build.model} draws nothing")


def _lines(model: Model, outputs: Mapping[str, Sequence[Any]], ids: Sequence[Id]) -> list[bytes]:
    """ids: what samples are called, empty if none has an id."""
    found = as_json(model, outputs)
    if ID in outputs and any(each is not None for each in ids):
        raise fail(f"samples have an '{ID}', and an output is called so: call it otherwise, or leave ids out")
    called = [{} if each is None else {ID: each} for each in ids] or [{}] * len(found)
    return [msgspec.json.encode(own | each) + b"\n" for own, each in zip(called, found, strict=True)]


def as_json(model: Model, outputs: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """What `model.predict` returned as JSON has it: an object a sample, with classes as in the data.

    Numbers have the digits that a float32 holds. A class that is absent and a number that is not finite are
    None.
    """
    words = named_classes(model.program, model.vocabularies or {})
    columns = {name: [plain(each, words.get(name)) for each in values] for name, values in outputs.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plain(value: Any, words: Sequence[str] | None = None) -> Any:
    """An output as JSON: numbers with the digits that a float32 holds, classes as in the data.

    words: the labels of the classes; None, or a class that the training data lack: its number. A class that
    is absent is null, and so is a number that is not finite.
    """
    if value is None:
        return None
    if value.ndim:
        return [plain(each, words) for each in value]
    if np.issubdtype(value.dtype, np.integer):
        if value < 0:
            return None
        return words[value] if words is not None and value < len(words) else int(value)
    return float(f"{value:.8g}") if np.isfinite(value) else None
