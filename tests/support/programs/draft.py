"""A program while it is made up: what is declared so far, and how choices are drawn.

In: a source of numbers (Hypothesis, or a seed). Out: the text of a program, by declarations.
Guaranteed: names are unique, and a declaration is well-typed where its maker keeps to the shapes
that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

T = TypeVar("T")
Shape = tuple[int, ...]

SMALL_WIDTHS = (3, 2, 4, 1, 5, 6, 17)
"""Widths for programs that the reference VM runs: it checks every word."""
WIDTHS = (3, 2, 4, 1, 5, 8, 13, 16, 17, 33, 64, 65, 100)
"""Widths that do and do not fill vectors and panels."""
INITIALIZERS = {
    1: ("zeros", "constant(0.5)", "uniform(0.1)", "normal(.2)", "constant(-1e-2)"),
    2: ("xavier", "orthogonal", "normal(0.3)", "uniform(1)", "zeros", "identity"),
}


@attrs.frozen
class State:
    """A declared state: its components in order."""

    name: str
    components: tuple[tuple[str, Shape], ...]


@attrs.frozen
class Field:
    """A field of a struct. kind: token, class, index, float, vector, pulled, child, optional or list."""

    name: str
    kind: str
    text: str
    size: int | None = None
    target: str | None = None


@attrs.frozen
class Struct:
    """A declared struct: its arms with their fields."""

    name: str
    arms: dict[str, tuple[Field, ...]]

    def text(self) -> str:
        """Its declaration."""
        arms = (
            f"{name}({', '.join(f'{field.name}: {field.text}' for field in fields)})"
            for name, fields in self.arms.items()
        )
        return f"struct {self.name} = {' | '.join(arms)}"


@attrs.frozen
class Callable_:
    """A declared cell or function. result: a shape or a state. arguments: of a cell, (name, type)."""

    name: str
    result: Shape | State
    arguments: tuple[tuple[str, Shape | State | str], ...] = ()
    struct: str = ""


class Draft:
    """The declarations so far; `lines` are the texts of cells, functions and terms in order."""

    def __init__(self, number: Callable[[int, int], int], widths: Sequence[int], depth: int) -> None:
        self.count = number  # a number from the first to the second, both included
        self.depth = depth  # of expressions, at most
        self.widths = [self.pick(widths) for _ in range(self.count(1, 3))]
        self.dimensions: dict[str, int | None] = {f"d{i}": width for i, width in enumerate(self.widths)}
        self.dimensions["classes"] = self.pick((3, 2, 5))
        self.dimensions["vocab"] = self.pick((None, 7))
        self.dimensions["many"] = self.pick((2, 3, 1))
        self.structs: dict[str, Struct] = {}
        self.parameters: dict[str, Shape] = {}
        self.tables: dict[str, Shape] = {}
        self.stacks: dict[str, Shape] = {}
        self.states: list[State] = []
        self.cells: list[Callable_] = []
        self.functions: list[Callable_] = []
        self.parameter_texts: list[str] = []
        self.lines: list[str] = []
        self._numbers: dict[str, int] = {}

    # ---- choices ---------------------------------------------------------------------------------

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.count(0, len(options) - 1)] if len(options) > 1 else options[0]

    def chance(self, percent: int) -> bool:
        """True so often in a hundred; False is the simpler."""
        return self.count(0, 99) >= 100 - percent

    # ---- declarations ----------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        """A name that is not taken."""
        number = self._numbers[stem] = self._numbers.get(stem, 0) + 1
        return f"{stem}{number}"

    def size_text(self, size: int) -> str:
        """A size as a number or as an expression of dimensions."""
        ways = [str(size)]
        for name, known in self.dimensions.items():
            if known is None:
                continue
            if known == size:
                ways += [name, name]
            elif size % known == 0:
                ways.append(f"{size // known} * {name}")
            elif size > known:
                ways.append(f"{name} + {size - known}")
            elif known % size == 0:
                ways.append(f"{name} // {known // size}")
            else:
                ways.append(f"({name} - {known - size})")
        return self.pick(ways)

    def type_text(self, type: Shape | State) -> str:
        """A type as it is written."""
        if isinstance(type, State):
            return type.name
        return f"[{', '.join(self.size_text(size) for size in type)}]"

    def parameter(self, shape: Shape) -> str:
        """A parameter of the shape (of one or two dimensions): one there is, or a new one."""
        known = [name for name, other in self.parameters.items() if other == shape]
        if known and (len(self.parameters) > 12 or not self.chance(40)):
            return self.pick(known)
        name = self.name("P")
        self.parameters[name] = shape
        start = f" = {self.pick(INITIALIZERS[len(shape)])}" if self.chance(30) else ""
        density = (
            f" density {self.pick((0.2, 0.5, 0.8))}"
            if len(shape) == 2 and not start and self.chance(15)
            else ""
        )
        self._declare(f"{name}: {self.type_text(shape)}{start}{density}")
        return name

    def table(self, shape: Shape) -> str:
        """A table over the vocabulary with rows of `shape`; it may be a matrix that products read too."""
        name, rows = self.name("E"), self.dimensions["vocab"]
        self.tables[name] = shape
        sizes = ", ".join(["vocab", *(self.size_text(size) for size in shape)])
        if rows is not None and len(shape) == 1 and self.chance(40):
            self.parameters[name] = (rows, *shape)
            self.widths.append(rows)  # so that something is as wide as its products
            self._declare(f"{name}: [{sizes}]")
        else:
            self._declare(f"{name}: table[{sizes}]")
        return name

    def stack(self, shape: Shape) -> str:
        """A stack of parameters of the shape (of one or two dimensions): one there is, or a new one."""
        known = [name for name, other in self.stacks.items() if other == shape]
        if known and (len(self.stacks) > 4 or not self.chance(30)):
            return self.pick(known)
        name = self.name("K")
        self.stacks[name] = shape
        start = f" = {self.pick(INITIALIZERS[len(shape)])}" if self.chance(30) else ""
        sizes = ", ".join(["many", *(self.size_text(size) for size in shape)])
        self._declare(f"{name}: stack[{sizes}]{start}")
        return name

    def running(self, width: int) -> str:
        """A new running parameter of so many numbers."""
        name = self.name("R")
        self.parameter_texts.append(f"running param {name}: {self.type_text((width,))}")
        return name

    def running_stack(self, width: int) -> str:
        """A new stack of running parameters."""
        name = self.name("R")
        self.parameter_texts.append(f"running param {name}: stack[many, {self.size_text(width)}]")
        return name

    def _declare(self, parameter: str) -> None:
        """Declares a parameter; it may be frozen, or have its own learning rate."""
        way = self.pick((*("param {}",) * 8, "frozen param {}", "param {} lr * 0.5"))
        self.parameter_texts.append(way.format(parameter))

    def state(self) -> State:
        """A state: one there is, or a new one of one to three components."""
        if self.states and (len(self.states) > 1 or not self.chance(40)):
            return self.pick(self.states)
        shapes = [self.shape() for _ in range(self.count(1, 3))]
        state = State(self.name("S"), tuple((f"{'hcm'[i]}", shape) for i, shape in enumerate(shapes)))
        self.states.append(state)
        return state

    def shape(self) -> Shape:
        """The shape of a value that is handed about: mostly a vector."""
        kind = self.pick(("vector",) * 6 + ("scalar", "matrix"))
        if kind == "scalar":
            return ()
        return (self.width(),) if kind == "vector" else (self.narrow(), self.narrow())

    def width(self) -> int:
        """One of the program's widths."""
        return self.pick(self.widths)

    def narrow(self) -> int:
        """A width for one side of a matrix-valued value."""
        return min(self.width(), 8)

    def text(self) -> str:
        """The whole program."""
        dimensions = ", ".join(
            name if size is None else f"{name} = {size}" for name, size in self.dimensions.items()
        )
        states = [
            f"state {state.name} = ({', '.join(f'{n}: {self.type_text(s)}' for n, s in state.components)})"
            for state in self.states
        ]
        parts = [
            [f"model Random({dimensions})"],
            [struct.text() for struct in self.structs.values()],
            self.parameter_texts,
            states,
            self.lines,
        ]
        return "".join(line + "\n" for part in parts for line in part)
