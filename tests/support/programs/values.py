"""Random expressions of a wanted shape: one entry of `PRODUCTIONS` per operation.

In: a scope and a shape. Out: the text of a well-typed expression. Operations with a pole or a steep
slope get arguments that keep them away from it, so that float32 and float64 can be compared. A new
operation is one entry: its name, the ranks of its results, and how its text is made.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tests.support.programs.draft import Callable_, Draft, Shape, State
from tests.support.programs.scope import Scope

NUMBERS = ("0.5", "2", "-1", "0.25", ".75", "1e-1", "3")


class Expressions:
    """Writes expressions in one scope."""

    def __init__(self, draft: Draft, scope: Scope) -> None:
        self.draft, self.scope = draft, scope
        self.pick, self.chance = draft.pick, draft.chance

    def value(self, shape: Shape, depth: int | None = None) -> str:
        """An expression of the shape."""
        depth = self.draft.depth if depth is None else depth
        if depth <= 0 or self.chance(15):
            return self.atom(shape)
        ranked = [entry for entry in PRODUCTIONS if len(shape) in entry.ranks]
        fitting = [entry for entry in ranked if entry.possible(self, shape)]
        return self.pick(fitting).text(self, shape, depth - 1)

    def atom(self, shape: Shape) -> str:
        """Something of the shape that needs no computation."""
        known = self.scope.values.get(shape, [])
        if known and self.chance(80):
            return self.pick(known)
        if not shape:
            return self.pick(NUMBERS) if not known else self.pick(known)
        return self.draft.parameter(shape)

    def other(self, shape: Shape, depth: int) -> str:
        """An operand beside one of the shape: the same shape, of a matrix also a row, or a scalar."""
        shapes = (shape[1:], ()) if len(shape) == 2 else ((),)
        return self.value(shape if self.chance(75) else self.pick(shapes), depth)


@attrs.frozen
class Production:
    """An operation. ranks: of its results. text(expressions, shape, depth) writes one."""

    name: str
    ranks: tuple[int, ...]
    text: Callable[[Expressions, Shape, int], str]
    possible: Callable[[Expressions, Shape], bool] = lambda expressions, shape: True


def _around(template: str) -> Callable[[Expressions, Shape, int], str]:
    """A text around one operand of the same shape."""
    return lambda e, shape, depth: template.format(e.value(shape, depth))


def _between(template: str) -> Callable[[Expressions, Shape, int], str]:
    """A text around two operands, one of which may be a scalar, or a vector beside a matrix."""

    def text(e: Expressions, shape: Shape, depth: int) -> str:
        pair = [e.value(shape, depth), e.other(shape, depth)]
        return template.format(*(reversed(pair) if e.chance(30) else pair))

    return text


def _reduced(template: str) -> Callable[[Expressions, Shape, int], str]:
    """A text around operands of one shape, of which a scalar becomes."""

    def text(e: Expressions, shape: Shape, depth: int) -> str:
        operand = e.draft.shape()
        return template.format(*(e.value(operand, depth) for _ in range(template.count("{}"))))

    return text


def _product(e: Expressions, shape: Shape, depth: int) -> str:
    inner = e.draft.width() if len(shape) == 1 else e.draft.narrow()
    left = (shape[0], inner)
    matrix = e.value(left, depth - 1) if e.chance(20) else e.draft.parameter(left)
    return f"({matrix} @ {e.value((inner, *shape[1:]), depth)})"


def _selected(e: Expressions, shape: Shape, depth: int) -> str:
    """A vector of a stack, or a product with one of its matrices."""
    index = e.pick(e.scope.indices)
    if len(shape) == 1 and e.chance(40):
        return f"{e.draft.stack(shape)}[{index}]"
    inner = e.draft.width() if len(shape) == 1 else e.draft.narrow()
    return f"({e.draft.stack((shape[0], inner))}[{index}] @ {e.value((inner, *shape[1:]), depth)})"


def _follow(e: Expressions, shape: Shape, depth: int) -> str:
    """A running parameter, moved by a value."""
    indices = e.scope.indices
    if indices and e.chance(50):
        running = f"{e.draft.running_stack(shape[0])}[{e.pick(indices)}]"
    else:
        running = e.draft.running(shape[0])
    return f"follow({running}, {e.value(shape, depth)}, {e.pick(('0.25', '1', '0.5'))})"


def _concat(e: Expressions, shape: Shape, depth: int) -> str:
    cut = e.draft.count(1, shape[0] - 1)
    return f"concat({e.value((cut,), depth)}, {e.value((shape[0] - cut,), depth)})"


def _rows(e: Expressions, shape: Shape, depth: int) -> str:
    cut = e.draft.count(1, shape[0] - 1)
    parts = [(cut, shape[1]), (shape[0] - cut, shape[1])]
    return f"concat({', '.join(e.value(part, depth) for part in parts)})"


def _along(template: str) -> Callable[[Expressions, Shape, int], str]:
    """A text around a matrix, of which a vector is left: of every row, or of every column."""

    def text(e: Expressions, shape: Shape, depth: int) -> str:
        width, axis = e.draft.narrow(), e.pick((1, 0))
        return template.format(e.value((shape[0], width) if axis else (width, shape[0]), depth), axis)

    return text


def _normalised(template: str) -> Callable[[Expressions, Shape, int], str]:
    """A text around a matrix, of which rows or columns are normalised."""
    return lambda e, shape, depth: template.format(e.value(shape, depth), e.pick((1, 0)))


def _outer(e: Expressions, shape: Shape, depth: int) -> str:
    return f"outer({e.value(shape[:1], depth)}, {e.value(shape[1:], depth)})"


def _transpose(e: Expressions, shape: Shape, depth: int) -> str:
    return f"transpose({e.value(shape[::-1], depth)})"


def _turned_product(e: Expressions, shape: Shape, depth: int) -> str:
    inner = e.draft.width() if len(shape) == 1 else e.draft.narrow()
    matrix = e.draft.parameter((inner, shape[0]))
    return f"(transpose({matrix}) @ {e.value((inner, *shape[1:]), depth)})"


def _element(e: Expressions, shape: Shape, depth: int) -> str:
    width = e.draft.width() if not shape else e.draft.narrow()
    return f"{e.value((width, *shape), depth)}[{e.draft.count(0, width - 1)}]"


def _part(e: Expressions, shape: Shape, depth: int) -> str:
    """Some of the elements of a vector, or of the rows of a matrix."""
    before, behind = e.draft.count(0, 2), e.draft.count(0, 2)
    begin, end = before or e.pick(("", 0)), before + shape[0] if behind else ""
    return f"{e.value((before + shape[0] + behind, *shape[1:]), depth)}[{begin}:{end}]"


def _of_class(e: Expressions, shape: Shape, depth: int) -> str:
    size = e.pick(list(e.scope.classes))
    return f"{e.value((size, *shape), depth)}[{class_text(e, size, depth)}]"


def _logsumexp(e: Expressions, shape: Shape, depth: int) -> str:
    return f"logsumexp({e.value((e.draft.width(),), depth)})"


def _kl_divergence(e: Expressions, shape: Shape, depth: int) -> str:
    width = (e.draft.width(),)
    return f"kl_divergence(softmax({e.value(width, depth)}), {e.value(width, depth)})"


def _attended(e: Expressions, shape: Shape) -> list[tuple[str, str]]:
    """(list, value) of what attention could give a vector of the shape."""
    return [(text, value) for text, found in e.scope.elements.items() for one, value in found if one == shape]


def _attend(e: Expressions, shape: Shape, depth: int) -> str:
    text, value = e.pick(_attended(e, shape))
    width, key = e.pick([each for each in e.scope.elements[text] if len(each[0]) == 1])
    return f"attend({e.value(width, depth)}, {key}, {value} for k in {text})"


OF_EACH = ("tanh({})", "sigmoid({})", "relu({})", "(-{})", "abs({})", "exp(tanh({}))", "sqrt(1.5 + tanh({}))")
OF_TWO = ("({} + {})", "({} * {})", "({} - {})", "maximum({}, {})", "({} / (1.5 + tanh({})))")


def _listed(e: Expressions, shape: Shape) -> list[str]:
    """The lists of whose children something of the shape can be computed."""
    return [
        text
        for text, found in e.scope.elements.items()
        if any(one == shape or (not shape and len(one) == 1) for one, _ in found)
    ]


def _of_every(e: Expressions, text: str, shape: Shape, depth: int) -> str:
    """What is computed of every child in a list, here `k`, and of the vertex at hand."""
    found = e.scope.elements[text]
    own = [value for one, value in found if one == shape]
    vectors = [one for one, _ in found if len(one) == 1]
    if not shape and vectors and (not own or e.chance(50)):
        return f"{e.pick(('sum', 'mean'))}({_of_every(e, text, e.pick(vectors), depth)})"
    if depth <= 0 or e.chance(20):
        return e.pick(own)
    first = _of_every(e, text, shape, depth - 1)
    if e.chance(40):
        return e.pick(OF_EACH).format(first)
    other = _of_every(e, text, shape, depth - 1) if e.chance(30) else e.other(shape, depth - 1)
    return e.pick(OF_TWO).format(*((first, other) if e.chance(60) else (other, first)))


def _reduction(e: Expressions, shape: Shape, depth: int) -> str:
    text = e.pick(_listed(e, shape))
    return f"{e.pick(('sum', 'mean', 'max'))}({_of_every(e, text, shape, depth)} for k in {text})"


def _attend_by_scores(e: Expressions, shape: Shape, depth: int) -> str:
    text = e.pick([text for text in _listed(e, shape) if text in _listed(e, ())])
    score, value = _of_every(e, text, (), depth), _of_every(e, text, shape, depth - 1)
    return f"attend({score}, {value} for k in {text})"


def _scaled(e: Expressions, shape: Shape, depth: int) -> str:
    template = e.pick(("{1} * {0}", "{0} * {1}", "{0} / {1}", "{1} + {0}", "{0} - {1}"))
    return f"({template.format(e.value(shape, depth), e.pick(NUMBERS))})"


def _cross_entropy(e: Expressions, shape: Shape, depth: int) -> str:
    size = e.pick(list(e.scope.classes))
    return f"cross_entropy({e.value((size,), depth)}, {class_text(e, size, depth)})"


def _equal(e: Expressions, shape: Shape, depth: int) -> str:
    size = e.pick(list(e.scope.classes))
    return f"({class_text(e, size, depth)} == {class_text(e, size, depth)})"


def class_text(e: Expressions, size: int, depth: int) -> str:
    """A class among `size`: a field, the largest of a vector, or one that is drawn."""
    known = e.scope.classes.get(size, [])
    if known and e.chance(50):
        return e.pick(known)
    return f"{'sample' if e.chance(25) else 'argmax'}({e.value((size,), depth)})"


def _cell_call(e: Expressions, shape: Shape, depth: int) -> str:
    from tests.support.programs.callables import add_cell

    cells = [cell for cell in e.draft.cells if _component(e, cell, shape) is not None]
    if not cells or (len(e.draft.cells) < 4 and e.chance(50)):
        cells = [add_cell(e.draft, shape)]
    cell = e.pick(cells)
    return call_text(e, cell, depth) + str(_component(e, cell, shape))


def _component(e: Expressions, cell: Callable_, shape: Shape) -> str | None:
    """How to get a value of the shape out of a cell's result; None if it has none."""
    if not isinstance(cell.result, State):
        return "" if cell.result == shape else None
    return next((f".{name}" for name, other in cell.result.components if other == shape), None)


def call_text(e: Expressions, cell: Callable_, depth: int) -> str:
    """A call of a cell with random arguments."""
    arguments = []
    for _, type in cell.arguments:
        arguments.append(state_text(e, type, depth) if isinstance(type, State) else e.value(type, depth))
    return f"{cell.name}({', '.join(arguments)})"


def state_text(e: Expressions, state: State, depth: int) -> str:
    """An expression of the state: one in scope, or what a cell returns."""
    from tests.support.programs.callables import add_cell

    known = e.scope.states.get(state.name, [])
    if known and not e.chance(10):
        return e.pick(known)
    makers = [
        cell
        for cell in e.draft.cells
        if cell.result == state and not any(isinstance(type, State) for _, type in cell.arguments)
    ]
    return call_text(e, e.pick(makers) if makers else add_cell(e.draft, state, states=False), depth - 1)


ANY = (0, 1, 2)
PRODUCTIONS = (
    Production("add", ANY, _between("({} + {})")),
    Production("product", (1, 2), _product),
    Production("product again", (1,), _product),
    Production("follow", (1,), _follow, lambda e, shape: e.scope.follows),
    Production("selected", (1, 2), _selected, lambda e, shape: bool(e.scope.indices)),
    Production("selected again", (1,), _selected, lambda e, shape: bool(e.scope.indices)),
    Production("tanh", ANY, _around("tanh({})")),
    Production("mul", ANY, _between("({} * {})")),
    Production("sigmoid", ANY, _around("sigmoid({})")),
    Production("sub", ANY, _between("({} - {})")),
    Production("negation", ANY, _around("(-{})")),
    Production("scaled", ANY, _scaled),
    Production("relu", ANY, _around("relu({})")),
    Production("abs", ANY, _around("abs({})")),
    Production("exp", ANY, _around("exp(tanh({}))")),
    Production("decay", ANY, _around("exp(-abs({}))")),
    Production("log", ANY, _around("log(1.5 + tanh({}))")),
    Production("log of a sum", ANY, _around("log(1 + exp({}))")),
    Production("quotient", ANY, _between("({} / (1.5 + tanh({})))")),
    Production("quotient of a sum", ANY, _between("({} / (1 + abs({})))")),
    Production("softmax", (1,), _around("softmax({})")),
    Production("log_softmax", (1,), _around("log_softmax({})")),
    Production("concat", (1,), _concat, lambda e, shape: shape[0] > 1),
    Production("sum", (0,), _reduced("sum({})")),
    Production("mean", (0,), _reduced("mean({})")),
    Production("logsumexp", (0,), _logsumexp),
    Production("max", (0,), lambda e, shape, depth: f"max({e.value((e.draft.width(),), depth)})"),
    Production("maximum", ANY, _between("maximum({}, {})")),
    Production("minimum", ANY, _between("minimum({}, {})")),
    Production("outer", (2,), _outer),
    Production("transpose", (2,), _transpose),
    Production("product with a transpose", (1, 2), _turned_product),
    Production("element", (0, 1), _element),
    Production("element of a class", (0, 1), _of_class, lambda e, shape: bool(e.scope.classes)),
    Production("part", (1, 2), _part),
    Production("sum along an axis", (1,), _along("sum({}, {})")),
    Production("mean along an axis", (1,), _along("mean({}, {})")),
    Production("max along an axis", (1,), _along("max({}, {})")),
    Production("logsumexp along an axis", (1,), _along("logsumexp({}, {})")),
    Production("softmax along an axis", (2,), _normalised("softmax({}, {})")),
    Production("log_softmax along an axis", (2,), _normalised("log_softmax({}, {})")),
    Production("squared_error", (0,), _reduced("squared_error({}, {})")),
    Production("cross_entropy", (0,), _cross_entropy, lambda e, shape: bool(e.scope.classes)),
    Production("equal", (0,), _equal, lambda e, shape: bool(e.scope.classes)),
    Production("sqrt", ANY, _around("sqrt(1.5 + tanh({}))")),
    Production("rows", (2,), _rows, lambda e, shape: shape[0] > 1),
    Production("kl_divergence", (0,), _kl_divergence),
    Production("dropout", ANY, _around("dropout({}, 0.25)")),
    Production("attend", (1,), _attend, lambda e, shape: bool(_attended(e, shape))),
    Production("attend by scores", (1,), _attend_by_scores, lambda e, shape: bool(_listed(e, shape))),
    *(
        Production(name, (0, 1), _reduction, lambda e, shape: bool(_listed(e, shape)))
        for name in ("reduction of a body", "reduction of a body again")
    ),
    Production("cell", ANY, _cell_call, lambda e, shape: e.scope.cells),
    Production("cell again", ANY, _cell_call, lambda e, shape: e.scope.cells),
)
