"""Checks of what the Python interface is called with: whole numbers, settings, batches, arrays.

In: values as a user has written them. Out: the same as what the runtime takes. Guaranteed: a value
that cannot be meant is a DiagnosticError that says what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import fail
from dnc.ir.noise import drawing_noise
from dnc.ir.optimizers import CLIP, OPTIMIZERS, SETTINGS, Hyper, Setting, default_hyper
from dnc.runtime.data import Dataset
from dnc.runtime.data.problems import given

Data = str | Path | Dataset | Sequence[Mapping[str, Any]]
Batch = Data | Sequence[int] | NDArray[np.integer[Any]]


def check_whole(name: str, value: object, least: int, *, optional: bool = False) -> None:
    """DiagnosticError unless `value` is a whole number from `least` on, or None where that is `optional`."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise fail(f"{name} is {value!r}, expected a whole number")
    if not least <= value < 2**63:
        expected = f"{least} or more" if value < least else "less than 2**63"
        raise fail(f"{name} is {value}, expected {expected}")


def noise_of(seed: int | None) -> int:
    """The noise of a call that draws classes by a seed; None for one that draws none."""
    check_whole("seed", seed, 0, optional=True)
    return drawing_noise(None if seed is None else int(seed))


def check_number(name: str, value: object, setting: Setting) -> None:
    """DiagnosticError unless `value` is a number that a setting can have."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise fail(f"the {name} is {value!r}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        raise fail(f"the {name} is too large, expected {setting}") from None
    if not setting.accepts(number):
        raise fail(f"the {name} is {number:g}, expected {setting}")


def are_numbers(batch: object) -> bool:
    """Whether a batch names samples by their numbers; DiagnosticError if it is no batch at all."""
    if isinstance(batch, str | Path | Dataset):
        return False
    if isinstance(batch, Mapping | bytes) or not isinstance(batch, Sequence | np.ndarray):
        raise fail(f"found {given(batch)}, expected a path, a list of samples, or a list of their numbers")
    if _is_number(batch):
        raise fail("found one number, expected a list of samples, or of their numbers")
    try:
        return not len(batch) or np.asarray(batch).dtype.kind in "iu"
    except (TypeError, ValueError):  # no array can be made of it, so these are no numbers
        return False


def batches_of(given: Any) -> Iterable[Any]:
    """Batches of a stream, whatever each is; DiagnosticError if they cannot be gone through."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping) or _is_number(given):
        raise fail(f"found {type(given).__name__}, expected batches: lists of sample numbers, one by one")
    return given


def sample_numbers(batch: Any, samples: int) -> NDArray[np.int32]:
    """The numbers of a batch, all below `samples`; None means all."""
    if batch is None:
        return np.arange(samples, dtype=np.int32)
    if _is_single(batch):  # a stream of them
        number = int(batch[0])
        if 0 <= number < samples:
            return np.array([number], np.int32)
    if not hasattr(batch, "__len__") or _is_number(batch):
        raise fail(f"a batch is {batch!r}, expected a list of sample numbers")
    numbers = np.asarray(batch) if len(batch) else np.zeros(0, np.int32)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise fail(f"a batch of numbers is {list(numbers.shape)} of {numbers.dtype}, expected a list of int")
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
    if least < 0 or most >= samples:
        wrong = least if least < 0 else most
        raise fail(f"a batch holds sample {wrong}; the data have 0..{samples - 1}")
    return numbers.astype(np.int32)


def _is_number(given: Any) -> bool:
    """Whether an array has no dimension, and so no length."""
    return isinstance(given, np.ndarray) and not given.ndim


def _is_single(batch: Any) -> bool:
    """Whether a batch is one number, in an array or in a list."""
    if type(batch) is list:
        return len(batch) == 1 and type(batch[0]) is int
    return type(batch) is np.ndarray and batch.shape == (1,) and batch.dtype.kind == "i"


def by_name(values: Any) -> Mapping[str, Any]:
    """Arrays by the names of parameters; DiagnosticError for anything else."""
    if not isinstance(values, Mapping):
        raise fail(f"found {type(values).__name__}, expected arrays by the names of parameters")
    return values


def as_array(name: str, value: Any) -> NDArray[Any]:
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


def with_settings(
    hyper: Hyper, optimizer: str | None, clip: float | None, chosen: Mapping[str, float]
) -> Hyper:
    """`hyper` with what was chosen; another optimizer begins with its own defaults.

    optimizer, clip: None leaves them as they are. chosen: settings of the optimizer by name.
    """
    if optimizer is not None and not (isinstance(optimizer, str) and optimizer in OPTIMIZERS):
        raise fail(f"unknown optimizer '{optimizer}'; optimizers: {', '.join(OPTIMIZERS)}")
    if clip is not None:
        check_number("clip", clip, CLIP)
    if optimizer is not None and optimizer != hyper.optimizer:
        hyper = default_hyper(optimizer, hyper.clip_norm)
    used = OPTIMIZERS[hyper.optimizer].settings
    for name, value in chosen.items():
        shown = name.replace("_", " ")
        check_number(shown, value, SETTINGS[name])
        if name not in used:
            able = ", ".join(each.name for each in OPTIMIZERS.values() if name in each.settings)
            raise fail(f"{hyper.optimizer} has no {shown}; these have: {able}")
    settings: dict[str, Any] = {name: float(value) for name, value in chosen.items()}
    return attrs.evolve(hyper, clip_norm=hyper.clip_norm if clip is None else float(clip), **settings)
