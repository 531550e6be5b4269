"""Types of operations, from the op table, with messages in the words of the language.

In: an opcode and typed operands. Out: `typed.Apply`. Guaranteed: shape rules are those of
`dnc.ir.ops`; what is no value (states, vertices, lists) never reaches them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dnc.diagnostics import Span, counted
from dnc.frontend.axes import AXES, beside
from dnc.frontend.report import Report
from dnc.frontend.typed import Apply, Expression, Index, State, Type, Vertex, VertexList, describe, ir_type
from dnc.ir.builder import infer_type
from dnc.ir.cell import Attribute
from dnc.ir.opdef import ELEMENTWISE
from dnc.ir.ops import OPS
from dnc.ir.structure import SELECTOR, TOKEN, Dimension
from dnc.ir.types import TensorType

OF_ONE_CLASS = "; 1 for one class is v[class] with frozen param v: [classes] = pieces(1, 0, ...)"
HINTS = {
    TOKEN: "; look it up in a table: E[...]",
    SELECTOR: "; it selects from a stack of parameters: W[...]",
}
_OPERAND = re.compile(r"^(?:(first|left|logits|second|right|class)(?: operand)?|operand(?: (\d+))?): ")
_POSITIONS = {"first": 0, "left": 0, "logits": 0, "second": 1, "right": 1, "class": 1}


def apply(
    report: Report,
    opcode: str,
    symbol: str,
    operands: Sequence[Expression],
    at: Span,
    span: Span,
    **attributes: Attribute,
) -> Apply | None:
    """`opcode` on `operands`; a mistake is shown at the operand to blame or at `at`."""
    if OPS[opcode].has(ELEMENTWISE) and len(operands) == 2:
        first, second = operands
        operands = beside(first, second), beside(second, first)
    types = []
    for operand in operands:
        type = ir_type(operand.type)
        if type is None:
            report.error(*no_value(symbol, operand))
            return None
        types.append(type)
    arity = OPS[opcode].arity
    if len(operands) != arity and (arity is not None or not operands):
        expected = "one or more" if arity is None else str(arity)
        report.error(f"'{symbol}' has {counted(len(operands), 'argument')}, expected {expected}", at)
        return None
    try:
        result = infer_type(opcode, tuple(types), attributes)
    except ValueError as error:
        _mismatch(report, str(error).removeprefix(f"{opcode}: "), symbol, operands, at)
        return None
    assert isinstance(result, TensorType)
    if not _indices_fit(report, opcode, symbol, operands, at):
        return None
    surface: Type = result
    if result.dtype == "i32":  # only argmax: a class among as many as the vector has elements
        width = types[0].shape[0]
        surface = Index("class", Dimension(str(width), width))
    return Apply(opcode, tuple(operands), tuple(attributes.items()), surface, span)


def no_value(symbol: str, operand: Expression) -> tuple[str, Span]:
    """Why `operand` cannot be computed with, and where it stands."""
    type = operand.type
    hint = ""
    if isinstance(type, State):
        names = " or ".join(f".{component.name}" for component in type.components)
        hint = f"; take a component: {names}"
    elif isinstance(type, VertexList):
        hint = "; use sum(f(x) for x in ...), mean or max"
    elif isinstance(type, Vertex):
        hint = "; call a function on it, or read a field"
    return f"'{symbol}': found {describe(type)}, expected a value{hint}", operand.span


def _mismatch(report: Report, text: str, symbol: str, operands: Sequence[Expression], at: Span) -> None:
    """The op table's message, with its types written as in the language."""
    blamed = _OPERAND.match(text)
    if blamed:
        position = _POSITIONS[blamed[1]] if blamed[1] else int(blamed[2] or 1) - 1
        operand = operands[position]
        at, text = operand.span, text[blamed.end() :]
        if isinstance(operand.type, Index):
            hint = HINTS.get(operand.type.kind, "")
            text = text.replace("found i32[]", f"found {describe(operand.type)}") + hint
        elif symbol in AXES and isinstance(operand.type, TensorType) and len(operand.type.shape) == 2:
            text += f"; along an axis it is {symbol}(M, 1) of every row, {symbol}(M, 0) of every column"
        elif symbol == "==" and isinstance(operand.type, TensorType):
            text += "; argmax(x) gives a class" if operand.type.shape else OF_ONE_CLASS
        elif symbol == "@" and all(_is_vector(each.type) for each in operands):
            text += "; of two vectors it is sum(a * b)"
        elif symbol == "@" and position == 0 and _is_vector(operand.type):
            text += "; a matrix stands in front, as in transpose(M) @ x"
    elif text.endswith("or a scalar"):
        ranks = [len(each.type.shape) for each in operands if isinstance(each.type, TensorType)]
        if sorted(ranks) == [1, 2]:
            text += "; a vector goes with every row of a matrix with as many columns"
    report.error(f"'{symbol}': {_surface(text)}", at)


def _is_vector(type: Type) -> bool:
    return isinstance(type, TensorType) and len(type.shape) == 1


def _surface(text: str) -> str:
    """f32[3x4] becomes [3, 4]; f32[] a scalar; i32[] a token or a class."""
    text = text.replace("a scalar f32[]", "a scalar").replace("f32[]", "a scalar")
    text = text.replace("i32[]", "a token or a class")
    text = re.sub(r"f32\[([^\]]+)\]", lambda found: f"[{', '.join(re.split(r' ?x ?', found[1]))}]", text)
    return re.sub(r"\bf32\b", "a number or a vector", text)


def same_classes(left: Index, right: Index) -> bool:
    """Whether two classes can be compared: they are of one dimension, or of dimensions of one known size.

    Two open dimensions have vocabularies of their own, whatever their sizes come to.
    """
    one, other = left.dimension, right.dimension
    return one.name == other.name or (one.size is not None and one.size == other.size)


def _indices_fit(report: Report, opcode: str, symbol: str, operands: Sequence[Expression], at: Span) -> bool:
    """Classes must range over as many values as there are logits, or as the other side has."""
    found = [operand.type for operand in operands]
    left, right = (*found, None)[:2]
    comparable = not (isinstance(left, Index) and isinstance(right, Index)) or same_classes(left, right)
    if opcode == "equal" and not comparable:
        report.error(f"'==': found {left} and {right}, expected classes of one dimension", at)
        return False
    if opcode == "cross_entropy" and isinstance(found[1], Index) and isinstance(found[0], TensorType):
        dimension, width = found[1].dimension, found[0].shape[0]
        if dimension.size is None:
            report.error(
                f"'{symbol}': dimension '{dimension.name}' is open but must equal the {width} logits: set it "
                f"in the model line or with --set {dimension.name}=N",
                operands[1].span,
            )
            return False
        if dimension.size != width:
            report.error(
                f"'{symbol}': found {width} logits and {found[1]}, expected {dimension.size} logits",
                operands[0].span,
            )
            return False
    return True
