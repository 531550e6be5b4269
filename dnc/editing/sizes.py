"""Sizes that remember how they were computed from the dimensions of a program.

In: named dimensions, as `Size.named("hidden", 256)`. Out: integers that know the polynomial they are, so
that a shape shows as `[3 * hidden]` and as `[768]`. Guaranteed: a `Size` equals, hashes and prints like its
integer, so that the checker treats it as one and its messages stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Terms = Mapping[tuple[str, ...], int]
"""A coefficient for each product of dimensions; () is the constant."""


class Size(int):
    """A whole number and the sum of products of dimensions that it is."""

    terms: Terms

    @classmethod
    def named(cls, name: str, value: int) -> Size:
        """The dimension `name`."""
        return cls._of(value, {(name,): 1})

    @classmethod
    def _of(cls, value: int, terms: Terms) -> Size:
        size = cls(value)
        kept = sorted((key, factor) for key, factor in terms.items() if factor)
        size.terms = MappingProxyType(dict(kept))
        return size

    def __add__(self, other: Any) -> Any:
        return self._linear(other, 1) if isinstance(other, int) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._linear(other, -1) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return (-self)._linear(other, 1) if isinstance(other, int) else NotImplemented

    def __neg__(self) -> Size:
        return Size._of(-int(self), {key: -factor for key, factor in self.terms.items()})

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        terms: dict[tuple[str, ...], int] = {}
        for key, factor in self.terms.items():
            for right, by in terms_of(other).items():
                both = tuple(sorted((*key, *right)))
                terms[both] = terms.get(both, 0) + factor * by
        return Size._of(int(self) * int(other), terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        divided = _divided(self.terms, terms_of(other)) if int(other) else None
        value = int(self) // int(other)
        if divided is None:  # not a polynomial: a term of its own
            divided = {(f"{_factor(self)} // {_factor(other)}",): 1}
        return Size._of(value, divided)

    def __rfloordiv__(self, other: Any) -> Any:
        return Size._of(int(other), terms_of(other)) // self if isinstance(other, int) else NotImplemented

    def _linear(self, other: int, sign: int) -> Size:
        terms = dict(self.terms)
        for key, factor in terms_of(other).items():
            terms[key] = terms.get(key, 0) + sign * factor
        return Size._of(int(self) + sign * int(other), terms)

    @property
    def symbolic(self) -> str:
        """The size in dimensions, as `2 * hidden + 1`; a plain number where it depends on none."""
        names = sorted(self.terms, key=lambda key: (not key, -len(key), key))
        text = ""
        for key in names:
            factor = self.terms[key]
            product = " * ".join([*([str(abs(factor))] if abs(factor) != 1 or not key else []), *key])
            sign = " - " if factor < 0 else " + "
            text += f"{sign if text else '-' if factor < 0 else ''}{product}"
        return text or "0"


def terms_of(size: int) -> Terms:
    """The polynomial of a size; of a plain integer its value."""
    return size.terms if isinstance(size, Size) else {(): int(size)}


def symbolic(size: int) -> str:
    """A size in dimensions."""
    return size.symbolic if isinstance(size, Size) else str(size)


def _divided(terms: Terms, by: Terms) -> dict[tuple[str, ...], int] | None:
    """The quotient by a single product, if every term has it as a factor."""
    if len(by) != 1:
        return None
    (names, divisor), found = next(iter(by.items())), dict[tuple[str, ...], int]()
    for key, factor in terms.items():
        rest = list(key)
        for name in names:
            if name not in rest:
                return None
            rest.remove(name)
        if factor % divisor:
            return None
        found[tuple(rest)] = factor // divisor
    return found


def _factor(size: int) -> str:
    text = symbolic(size)
    return f"({text})" if " " in text else text
