"""Counter-based random numbers of dropout and draws: the same bits on every target and in every executor.

In: the seed of a run, the number of a step, vertices. Out: a key per vertex, and from a key and a
counter a number in [0, 1). Guaranteed: nothing depends on the batch, its order, or who computes it.
The mixing function is the finalizer of MurmurHash3; `codegen/math.py` has it in TIRx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
SITES = 0x01000193  # distance of the counters of two dropouts of one vertex
NONE = 0
"""The noise, and the key, that stand for none: evaluation, prediction."""
DROPS = 1
"""The bit of a noise with which things are dropped, as in training; without it classes are drawn alone."""


def mix(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Every bit of the result depends on every bit of a value."""
    with np.errstate(over="ignore"):
        x = np.asarray(values).astype(np.uint32)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(FIRST)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(SECOND)
        return np.asarray(x ^ (x >> np.uint32(16)), np.uint32)


def step_noises(seed: int, first: int, count: int) -> NDArray[np.uint32]:
    """The noise of `count` training steps from `first` on, none of it `NONE`."""
    steps = np.arange(first, first + count, dtype=np.uint64)
    found = np.full(count, seed & 0xFFFFFFFF)
    for word in (np.uint64(seed >> 32 & 0xFFFFFFFF), steps & 0xFFFFFFFF, steps >> 32):
        found = mix(mix(found) ^ np.asarray(word).astype(np.uint32))
    return found | np.uint32(DROPS)


def step_noise(seed: int, step: int) -> int:
    """The noise of one training step."""
    return int(step_noises(seed, step, 1)[0])


def drawing_noise(seed: int | None, call: int = 0) -> int:
    """The noise of one call that draws classes outside training; `NONE` without a seed."""
    return NONE if seed is None else step_noise(seed, call) & ~DROPS | 2


def vertex_keys(noise: NDArray[Any], vertices: NDArray[Any], draws: bool = False) -> NDArray[np.int32]:
    """A key per vertex: `noise` of its step (one for all, or one each), and its number in the data.

    draws: a key of what is drawn, not of what is dropped. A training step draws as a call whose noise is
    its own but for the bit `DROPS`.
    """
    noise = np.asarray(noise).astype(np.uint32)
    alone = noise & np.uint32(~DROPS & 0xFFFFFFFF)
    silent = noise == NONE if draws else noise == alone
    number = np.asarray(vertices).astype(np.uint32) + np.uint32(1)
    keys = mix(mix(alone if draws else noise) ^ number) | np.uint32(1)
    return np.where(silent, np.uint32(NONE), keys).view(np.int32)


def uniform(key: NDArray[Any], counter: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2**-24."""
    with np.errstate(over="ignore"):
        scattered = np.asarray(counter).astype(np.uint32) * np.uint32(GOLDEN)
    found = mix(np.asarray(key).astype(np.uint32) ^ scattered) >> np.uint32(8)
    return found.astype(np.float64) * 2.0**-24
