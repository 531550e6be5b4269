"""What a parameter is made of: every way to make an array of others, one class each.

A node knows three things, side by side. `expect`: the shapes of the tensors that an array of a given
shape is made of. `gather`: the array, from the tensors. `spread`: the inverse, the tensors' values from
the array; what it leaves open is NaN. `where` of a problem is added by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Shape = tuple[int, ...]
Read = Callable[[str], Floats]
Give = Callable[[str, Floats], None]


class MapProblem(Exception):
    """A shape that a map cannot make; the message says which."""


class Conflict(Exception):
    """One element of a tensor would have two values."""


class Node(Protocol):
    """See the module."""

    def names(self) -> Iterator[str]:
        """The tensors that are read."""

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """The shapes of the tensors that an array of `shape` is made of; MapProblem if there are none."""

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The array; `shape` is that of the result, None where the tensors decide."""

    def spread(self, array: Floats, give: Give) -> None:
        """Hands every tensor what the array says about it."""


@attrs.frozen
class Source:
    """A tensor as it is."""

    name: str

    def names(self) -> Iterator[str]:
        """Its name."""
        yield self.name

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """The same shape."""
        yield self.name, shape

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The tensor."""
        return read(self.name)

    def spread(self, array: Floats, give: Give) -> None:
        """The array."""
        give(self.name, array)


@attrs.frozen
class Constant:
    """A number everywhere: what the other model lacks."""

    value: float

    def names(self) -> Iterator[str]:
        """None."""
        yield from ()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """Nothing."""
        yield from ()

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The number, `shape` times."""
        if shape is None:
            raise MapProblem("a constant has no size of its own")
        with np.errstate(over="ignore"):  # what is not finite is said in words
            return np.full(shape, self.value, np.float32)

    def spread(self, array: Floats, give: Give) -> None:
        """Nothing can be handed on, so the array has to hold the number still."""
        found = array[~np.isnan(array)]
        if len(found) and not (found == np.float32(self.value)).all():
            far = float(found[np.argmax(np.abs(found - self.value))])
            raise Conflict(f"holds {far:.6g} where the map has the constant {self.value:g}")


@attrs.frozen
class Sum:
    """Terms that are added, as the two biases of PyTorch's recurrent layers."""

    terms: tuple[Node, ...]

    def names(self) -> Iterator[str]:
        """Those of all terms."""
        for term in self.terms:
            yield from term.names()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """The same shape for every term."""
        for term in self.terms:
            yield from term.expect(shape)

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The sum, rounded once."""
        terms = [np.asarray(term.gather(read, shape), np.float64) for term in self.terms]
        if len({term.shape for term in terms}) > 1:
            raise MapProblem(f"a sum of {' and '.join(shown(term.shape) for term in terms)}")
        with np.errstate(over="ignore"):
            total: Floats = np.sum(terms, axis=0).astype(np.float32)
        return total

    def spread(self, array: Floats, give: Give) -> None:
        """All of it to the first term that reads a tensor, less the constants; zeros to the others."""
        rest = array
        for term in self.terms:
            if not any(term.names()):
                rest = rest - term.gather(_nothing, array.shape)
        for term in self.terms:
            if any(term.names()):
                term.spread(rest, give)
                rest = np.where(np.isnan(array), array, np.float32(0.0))


@attrs.frozen
class Concat:
    """Parts one behind the other along `axis`, their sizes in proportion to `sizes`."""

    parts: tuple[Node, ...]
    axis: int
    sizes: tuple[int, ...]

    def names(self) -> Iterator[str]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.names()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """Every part has its share of the axis."""
        for part, share in zip(self.parts, self._shapes(shape), strict=True):
            yield from part.expect(share)

    def _shapes(self, shape: Shape) -> list[Shape]:
        if self.axis >= len(shape):
            raise MapProblem(f"there is no axis {self.axis} in {shown(shape)}")
        size, total = shape[self.axis], sum(self.sizes)
        if size % total:
            found = " : ".join(map(str, self.sizes))
            raise MapProblem(f"the {size} of axis {self.axis} of {shown(shape)} cannot be cut as {found}")
        return [(*shape[: self.axis], size // total * share, *shape[self.axis + 1 :]) for share in self.sizes]

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The parts joined."""
        shapes = [None] * len(self.parts) if shape is None else self._shapes(shape)
        parts = [part.gather(read, share) for part, share in zip(self.parts, shapes, strict=True)]
        try:
            return np.concatenate(parts, self.axis)
        except ValueError:
            found = " and ".join(shown(part.shape) for part in parts)
            raise MapProblem(f"{found} cannot be joined along axis {self.axis}") from None

    def spread(self, array: Floats, give: Give) -> None:
        """Every part its own."""
        ends = np.cumsum([shape[self.axis] for shape in self._shapes(array.shape)])[:-1]
        for part, own in zip(self.parts, np.split(array, ends, self.axis), strict=True):
            part.spread(own, give)


@attrs.frozen
class Gates:
    """Equal parts along axis 0 in another order; `wanted` may leave out parts, or repeat them."""

    of: Node
    stored: tuple[str, ...]
    wanted: tuple[str, ...]

    def names(self) -> Iterator[str]:
        """Those below."""
        return self.of.names()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """As many parts as are stored."""
        if not shape or shape[0] % len(self.wanted):
            raise MapProblem(f"{shown(shape)} has no {len(self.wanted)} equal parts along axis 0")
        return self.of.expect((shape[0] // len(self.wanted) * len(self.stored), *shape[1:]))

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The wanted parts."""
        below = None
        if shape is not None:
            below = (shape[0] // len(self.wanted) * len(self.stored), *shape[1:])
        found = self.of.gather(read, below)
        if not found.ndim or found.shape[0] % len(self.stored):
            raise MapProblem(f"{shown(found.shape)} has no {len(self.stored)} equal parts along axis 0")
        parts = dict(zip(self.stored, np.split(found, len(self.stored)), strict=True))
        return np.concatenate([parts[name] for name in self.wanted])

    def spread(self, array: Floats, give: Give) -> None:
        """The parts where they are stored; what is not wanted stays open."""
        parts = np.split(array, len(self.wanted))
        stored = {name: np.full(parts[0].shape, np.nan, np.float32) for name in self.stored}
        for name, part in zip(self.wanted, parts, strict=True):
            stored[name] = merged(stored[name], part)
        self.of.spread(np.concatenate([stored[name] for name in self.stored]), give)


@attrs.frozen
class Transpose:
    """All axes turned round."""

    of: Node

    def names(self) -> Iterator[str]:
        """Those below."""
        return self.of.names()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """The shape turned round."""
        return self.of.expect(shape[::-1])

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """The array turned round."""
        return self.of.gather(read, None if shape is None else shape[::-1]).T

    def spread(self, array: Floats, give: Give) -> None:
        """The array turned round."""
        self.of.spread(array.T, give)


@attrs.frozen
class Squeeze:
    """An axis of size 1 left out, as of a bias that is stored as [1, n]."""

    of: Node
    axis: int

    def names(self) -> Iterator[str]:
        """Those below."""
        return self.of.names()

    def _below(self, shape: Shape) -> Shape:
        if self.axis > len(shape):
            raise MapProblem(f"no axis {self.axis} can have been left out of {shown(shape)}")
        return (*shape[: self.axis], 1, *shape[self.axis :])

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """A 1 more."""
        return self.of.expect(self._below(shape))

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """Without the axis."""
        found = self.of.gather(read, None if shape is None else self._below(shape))
        if self.axis >= found.ndim or found.shape[self.axis] != 1:
            raise MapProblem(f"{shown(found.shape)} has no axis {self.axis} of size 1")
        return found.reshape(found.shape[: self.axis] + found.shape[self.axis + 1 :])

    def spread(self, array: Floats, give: Give) -> None:
        """With the axis."""
        self.of.spread(array.reshape(self._below(array.shape)), give)


@attrs.frozen
class Expand:
    """An axis of size 1 more, as of a layer that is one of a stack."""

    of: Node
    axis: int

    def names(self) -> Iterator[str]:
        """Those below."""
        return self.of.names()

    def expect(self, shape: Shape) -> Iterator[tuple[str, Shape]]:
        """A 1 less."""
        if self.axis >= len(shape) or shape[self.axis] != 1:
            raise MapProblem(f"axis {self.axis} of {shown(shape)} is not 1")
        return self.of.expect(shape[: self.axis] + shape[self.axis + 1 :])

    def gather(self, read: Read, shape: Shape | None) -> Floats:
        """With the axis."""
        below = None if shape is None else shape[: self.axis] + shape[self.axis + 1 :]
        found = self.of.gather(read, below)
        if self.axis > found.ndim:
            raise MapProblem(f"{shown(found.shape)} can have no axis {self.axis} more")
        return np.expand_dims(found, self.axis)

    def spread(self, array: Floats, give: Give) -> None:
        """Without the axis."""
        self.of.spread(np.squeeze(array, self.axis), give)


def gates_of(node: Node) -> Iterator[Gates]:
    """The gates of a node that cut all of its rows."""
    if isinstance(node, Gates):
        yield node
    below: tuple[Node, ...] = ()
    if isinstance(node, Sum):
        below = node.terms
    elif isinstance(node, Concat) and node.axis:
        below = node.parts
    elif isinstance(node, Squeeze | Expand) and node.axis:
        below = (node.of,)
    for each in below:
        yield from gates_of(each)


def merged(old: Floats, new: Floats) -> Floats:
    """Both of them where one is open (NaN); Conflict where they differ."""
    different = ~np.isnan(old) & ~np.isnan(new) & (old != new)
    if different.any():
        at = tuple(int(each) for each in np.argwhere(different)[0])
        raise Conflict(f"is {old[at]:.6g} and {new[at]:.6g} at {list(at)}")
    return np.where(np.isnan(new), old, new)


def shown(shape: Shape) -> str:
    """A shape as the messages have it."""
    return f"[{', '.join(map(str, shape))}]"


def _nothing(name: str) -> Floats:
    raise KeyError(name)
