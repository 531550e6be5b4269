"""How a dense parameter lies in the pool: the one description for planner, runtime and kernels.

In: the shape of a parameter. Out: its strides, and packing of arrays. Guaranteed: an array can be seen
where it lies, as one strided array; `unpack` is the inverse of `pack`; padding is zero and stays zero,
since updates are element-wise.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

LANES = 16  # floats of a 512-bit register, and of a cache line
BLOCK = 64  # rows that a product works on at a time: four registers
SETS = 64  # of a cache of 4 KiB a way, each for lines that are as many lines apart


def padded(width: int) -> int:
    """`width` rounded up to whole addresses (4 words)."""
    return (width + 3) // 4 * 4


def whole_lanes(rows: int) -> int:
    """`rows` rounded up to whole registers."""
    return -(-rows // LANES) * LANES


def column_stride(rows: int) -> int:
    """Floats from a column of a column-major matrix to the next.

    No more than the rows where that can be: PyTorch makes no copies of a dense array's gradient. A line more
    where all columns would lie in the same sets of a cache (at one vertex a third faster on 1,024 rows).
    """
    lines = whole_lanes(rows) // LANES
    return (lines + (lines % SETS == 0)) * LANES


def row_strides(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Strides of rows that are `width` floats apart."""
    return (*(math.prod(shape[at + 1 : -1]) * width for at in range(len(shape) - 1)), 1)


@attrs.frozen
class WeightFormat:
    """How a dense parameter lies in the pool.

    By rows, every row padded to whole addresses; or, column_major, a matrix by columns, every one padded
    to `column_stride`. Vectors are always plain. Padding stays zero.
    """

    column_major: bool = False

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Floats from an element to the next, by dimension."""
        if len(shape) < 2:
            return (1,) * len(shape)
        if not self.column_major:
            return row_strides(shape, padded(shape[-1]))
        rows, _ = shape
        return (1, column_stride(rows))

    def floats(self, shape: tuple[int, ...]) -> int:
        """Floats that an array of `shape` takes, padding included (a multiple of 16)."""
        if len(shape) < 2:
            return whole_lanes(math.prod(shape))
        if self.column_major:
            return shape[-1] * column_stride(shape[0])
        return whole_lanes(math.prod(shape[:-1]) * padded(shape[-1]))

    def pack(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The flat form of `array`, padded with zeros to `floats`."""
        out = np.zeros(self.floats(array.shape), np.float32)
        self._view(out, array.shape)[...] = array
        return out

    def unpack(self, flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The array of `shape` that `pack` made `flat` of: a copy, by rows."""
        return self._view(flat, shape).copy(order="C")

    def _view(self, flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        strides = tuple(stride * flat.itemsize for stride in self.strides(shape))
        return np.lib.stride_tricks.as_strided(flat, shape, strides)
