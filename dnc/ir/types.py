"""Types of the values in cell IR.

A tensor has a static shape; `()` is a scalar. A list type stands for one tensor per child of
a list path (any number, known before launch); only the list operations consume it.
"""

from __future__ import annotations

import math

import attrs


@attrs.frozen
class TensorType:
    """A dense tensor; `dtype` is "f32" (any real) or "i32" (tokens and classes)."""

    shape: tuple[int, ...] = ()
    dtype: str = "f32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def tensor(self) -> TensorType:
        """Itself; of a list that of an element."""
        return self

    def __str__(self) -> str:
        dims = "x".join(str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"


@attrs.frozen
class ListType:
    """One `element` per child of a list path."""

    element: TensorType

    @property
    def tensor(self) -> TensorType:
        """The type of an element."""
        return self.element

    def __str__(self) -> str:
        return f"list<{self.element}>"


Type = TensorType | ListType

# Of 32-bit floats: the largest, and what is rounded to zero.
LARGEST_FLOAT, _NOTHING = (2 - 2.0**-23) * 2.0**127, 2.0**-150


def fits_float(value: float) -> bool:
    """Whether a 32-bit float holds a number: it becomes neither infinite nor zero."""
    return math.isfinite(value) and abs(value) <= LARGEST_FLOAT and (value == 0 or abs(value) > _NOTHING)


SCALAR = TensorType(())
INDEX = TensorType((), "i32")
