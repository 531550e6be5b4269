"""How a dense parameter lies in the pool: the one description for planner, runtime and kernels.

In: the shape of a parameter. Out: positions of its elements, and packing of arrays. Guaranteed:
`unpack` is the inverse of `pack`; padding is zero and stays zero, since updates are element-wise.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

LANES = 16  # floats of a 512-bit register; panels are padded to whole ones
PANEL = 64  # rows of a panel: four registers
PANEL_GAP = 256  # floats between panels: 1 KiB, or equal columns of all panels share cache sets


def padded(width: int) -> int:
    """`width` rounded up to whole addresses (4 words)."""
    return (width + 3) // 4 * 4


@attrs.frozen
class Block:
    """Rows [first_row, first_row + width) stored as [columns, width] from `offset` on (floats)."""

    first_row: int
    width: int
    offset: int


@attrs.frozen
class PackedLayout:
    """Where W[rows, columns] lies in panels: blocks of `panel` rows, each stored as [columns, panel].

    The last block is narrower: rows rounded up to LANES.
    """

    rows: int = attrs.field(validator=attrs.validators.ge(1))
    columns: int = attrs.field(validator=attrs.validators.ge(1))
    panel: int = PANEL

    @property
    def padded_rows(self) -> int:
        """Rows rounded up to a register; also the least stride of a row of pre-activations."""
        return -(-self.rows // LANES) * LANES

    @property
    def size(self) -> int:
        """Floats of the packed weight, padding included."""
        last = self.blocks[-1]
        return last.offset + last.width * self.columns

    @property
    def block_stride(self) -> int:
        """Floats from one block to the next."""
        return self.panel * self.columns + PANEL_GAP

    @property
    def full_blocks(self) -> int:
        """Blocks of `panel` rows."""
        return self.padded_rows // self.panel

    @property
    def tail_width(self) -> int:
        """Rows of the narrower last block; 0 if there is none."""
        return self.padded_rows % self.panel

    @property
    def num_blocks(self) -> int:
        """Full blocks and the narrower last one."""
        return self.full_blocks + (self.tail_width > 0)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in order."""
        return tuple(
            Block(row, min(self.panel, self.padded_rows - row), i * self.block_stride)
            for i, row in enumerate(range(0, self.padded_rows, self.panel))
        )

    def position(self, row: Any, column: Any, select: Any) -> Any:
        """Position of W[row, column]; `select(condition, a, b)` chooses between expressions."""
        block, within = row // self.panel, row % self.panel
        width: Any = self.panel
        if self.tail_width:
            width = self.tail_width
            if self.full_blocks:
                width = select(block < self.full_blocks, self.panel, self.tail_width)
        return block * self.block_stride + column * width + within

    def pack(self, weight: NDArray[Any]) -> NDArray[np.float32]:
        """W[rows, columns] -> packed float32 vector of `size`, padding zero."""
        rows = np.zeros((self.padded_rows, self.columns), np.float32)
        rows[: self.rows] = weight
        packed = np.zeros(self.size, np.float32)
        for b in self.blocks:
            block = rows[b.first_row : b.first_row + b.width]
            packed[b.offset : b.offset + block.size] = block.T.ravel()
        return packed

    def unpack(self, packed: NDArray[Any]) -> NDArray[Any]:
        """The inverse of `pack`."""
        parts = [
            packed[b.offset : b.offset + b.width * self.columns].reshape(self.columns, b.width).T
            for b in self.blocks
        ]
        return np.concatenate(parts)[: self.rows].copy()


@attrs.frozen
class Piece:
    """Rows from `first_row` on, seen as an array of `shape`: floats `offset` + index times `strides`."""

    first_row: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def row_strides(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Strides of rows that are `width` floats apart."""
    return (*(math.prod(shape[at + 1 : -1]) * width for at in range(len(shape) - 1)), 1)


@attrs.frozen
class WeightFormat:
    """How a dense parameter lies in the pool.

    panel = 0: row by row, every row padded to whole addresses. panel = p: a matrix lies in panels
    of p rows (`PackedLayout`). Vectors are always plain. Padding stays zero.
    """

    panel: int = 0

    def layout(self, shape: tuple[int, ...]) -> PackedLayout:
        """The panels of a matrix."""
        rows, columns = shape
        return PackedLayout(rows, columns, self.panel)

    def floats(self, shape: tuple[int, ...]) -> int:
        """Floats that an array of `shape` takes (a multiple of 16)."""
        if len(shape) < 2:
            size = math.prod(shape)
        elif self.panel:
            size = self.layout(shape).size
        else:
            size = math.prod(shape[:-1]) * padded(shape[-1])
        return -(-size // 16) * 16

    def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        """The flat form as strided arrays: one where the whole can be seen at its place."""
        if len(shape) < 2:
            return (Piece(0, shape, (1,) * len(shape), 0),)
        if not self.panel:
            return (Piece(0, shape, row_strides(shape, padded(shape[-1])), 0),)
        layout, (rows, columns) = self.layout(shape), shape
        full = rows // self.panel
        found = []
        if full > 1:
            strides = (layout.block_stride, 1, self.panel)
            found.append(Piece(0, (full, self.panel, columns), strides, 0))
        for block in layout.blocks[full if full > 1 else 0 :]:
            here = min(block.width, rows - block.first_row)
            found.append(Piece(block.first_row, (here, columns), (1, block.width), block.offset))
        return tuple(found)

    def pack(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The flat form of `array`, padded with zeros to `floats`."""
        out = np.zeros(self.floats(array.shape), np.float32)
        if array.ndim < 2:
            flat = array.ravel()
        elif self.panel:
            flat = self.layout(array.shape).pack(array)
        else:
            filled = np.zeros((math.prod(array.shape[:-1]), padded(array.shape[-1])), np.float32)
            filled[:, : array.shape[-1]] = array.reshape(-1, array.shape[-1])
            flat = filled.ravel()
        out[: flat.size] = flat
        return out

    def unpack(self, flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The array of `shape` that `pack` made `flat` of."""
        if len(shape) < 2:
            return flat[: math.prod(shape)].reshape(shape).copy()
        if self.panel:
            return self.layout(shape).unpack(flat)
        stride = padded(shape[-1])
        rows = math.prod(shape[:-1])
        return flat[: rows * stride].reshape(rows, stride)[:, : shape[-1]].reshape(shape).copy()
