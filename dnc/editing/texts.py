"""Types and declarations as an editor shows them: in dimensions, and in numbers where they differ.

In: what the checker knows. Out: text in the language's own words, as `[3 * hidden] = [768]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnc.editing.sizes import symbolic
from dnc.frontend.structs import field_text
from dnc.frontend.typed import Index, Parameter, State, Type, Vertex, VertexList
from dnc.ir.program import DENSE
from dnc.ir.structure import OUTSIDE, VECTOR, Arm, Dimension, Field, Struct
from dnc.ir.types import TensorType


def shape(sizes: Sequence[int | Dimension]) -> tuple[str, str]:
    """A shape in dimensions, and in numbers; an open dimension has only its name."""
    names, numbers = [], []
    for size in sizes:
        if isinstance(size, Dimension):
            names.append(size.name)
            numbers.append(size.name if size.size is None else str(size.size))
        else:
            names.append(symbolic(size))
            numbers.append(str(size))
    return f"[{', '.join(names)}]", f"[{', '.join(numbers)}]"


def both(pair: tuple[str, str]) -> str:
    """`[hidden] = [256]`; one side where they are alike."""
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} = {pair[1]}"


def type_text(type: Type) -> str:
    """A type on one line."""
    match type:
        case TensorType():
            return both(shape(type.shape)) if type.shape else "[] (a scalar)"
        case Index():
            return _indexed(type.kind, type.dimension)
        case State():
            return f"{type.name} = ({', '.join(components(type))})"
        case Vertex():
            arms = f" ({' | '.join(type.arms)})" if type.arms != (type.struct,) else ""
            return f"{type.struct}{arms}"
        case VertexList():
            return f"[{type.struct}]"


def short(type: Type) -> str:
    """A type as it is written in a program."""
    match type:
        case TensorType():
            return shape(type.shape)[0]
        case State():
            return type.name
        case Vertex():
            return type.struct
        case _:
            return type_text(type)


def components(state: State) -> list[str]:
    """The components of a state with their shapes."""
    return [f"{component.name}: {both(shape(component.type.shape))}" for component in state.components]


def parameter(found: Parameter) -> tuple[str, str]:
    """A parameter's declaration, and its shape in numbers with the number of its elements."""
    names, numbers = shape(found.dimensions)
    kind = "" if found.kind == DENSE else found.kind
    way = "frozen " if found.frozen else "running " if found.running else ""
    start = found.initializer
    values = ", ".join(f"{value:g}" for value in start.pieces) if start.pieces else f"{start.value:g}"
    plain = start.kind in ("zeros", "xavier", "orthogonal", "identity")
    made = f" = {'pieces' if start.pieces else start.kind}{'' if plain else f'({values})'}"
    behind = f" density {found.density:g}" if found.density != 1.0 else ""
    behind += f" lr * {found.rate:g}" if found.rate != 1.0 else ""
    count = 1
    for dimension in found.dimensions:
        count *= int(dimension.size or 0)
    elements = (
        f"{kind}{numbers}, {count:,} elements" if count else f"{kind}{numbers}, open until the data are seen"
    )
    return f"{way}param {found.name}: {kind}{names}{made}{behind}", elements


def field(found: Field) -> str:
    """A field as it is declared, its dimension also as a number."""
    if found.kind in (VECTOR, OUTSIDE) and found.width:
        word = field_text(found).partition("<")[0]
        number = f" = {found.width}" if symbolic(found.width) != str(found.width) else ""
        return f"{found.name}: {word}<{symbolic(found.width)}>{number}"
    if found.dimension is not None:
        return f"{found.name}: {_indexed(found.kind, found.dimension, '?' * found.may_miss)}"
    return f"{found.name}: {field_text(found)}"


def arm(found: Arm) -> str:
    """An arm with its fields."""
    fields = ", ".join(f"{each.name}: {field_text(each)}" for each in found.fields)
    return f"{found.name}({fields})" if found.fields else found.name


def struct(found: Struct) -> str:
    """A struct with its arms."""
    begin = f"struct {found.name} = "
    return begin + f"\n{' ' * (len(begin) - 2)}| ".join(arm(each) for each in found.arms)


def _indexed(kind: str, dimension: Dimension, mark: str = "") -> str:
    size = "" if dimension.size is None or str(dimension.size) == dimension.name else f" = {dimension.size}"
    name = symbolic(dimension.size) if dimension.name.isdigit() and dimension.size else dimension.name
    if name != dimension.name and dimension.size is not None:
        size = f" = {int(dimension.size)}"
    return f"{kind}<{name}>{mark}{size}"
