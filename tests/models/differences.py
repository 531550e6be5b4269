"""Relative differences between what dnc says and what a reference says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tests.models.cells import Choice, Result

TINY = 1e-12
"""The norm below which an expected array counts as zero, so that the difference itself is taken."""


def output_differences(found: Mapping[str, Sequence[Any]], expected: Sequence[Result]) -> list[float]:
    """Of every declared output of every sample."""
    assert set(found) == set(expected[0].outputs), f"outputs: {sorted(found)}"
    return [
        _one(output, result.outputs[key])
        for key, outputs in found.items()
        for output, result in zip(outputs, expected, strict=True)
    ]


def _one(found: Any, expected: Tensor | Choice | Sequence[Tensor | Choice]) -> float:
    if isinstance(expected, Tensor):
        return relative(found, expected)
    if isinstance(expected, Choice):
        logits = expected.logits
        return float((logits.max() - logits[int(found)]) / logits.norm())
    return max(_one(*each) for each in zip(found, expected, strict=True))


def relative(found: Any, expected: Tensor) -> float:
    """The norm of the difference over that of what is expected."""
    wanted = expected.detach().numpy()
    array = np.asarray(found, np.float64)
    assert array.shape == wanted.shape, f"found {array.shape}, expected {wanted.shape}"
    norm = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(array - wanted)) / (norm if norm > TINY else 1.0)
