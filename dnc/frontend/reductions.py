"""Checks reductions of lists of children: `sum(f(k) for k in t.kids)`, mean, max, and attention.

In: the syntax of a reduction and the names in scope. Out: a typed expression, or None after a mistake.
Guaranteed: what is computed for every child are calls on it, and element-wise operations on these and on
values of the vertex at hand, which every child sees alike (`dnc.ir.ops.each`).
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Span, counted
from dnc.frontend import syntax, typed
from dnc.frontend.calls import Checker, Names
from dnc.frontend.operations import no_value
from dnc.frontend.typed import Apply, Expression, VertexList, VertexUse, describe
from dnc.frontend.vertices import whole
from dnc.frontend.walk import walk
from dnc.ir.ops.each import EACH, LIFTED, REPEAT
from dnc.ir.structure import Path
from dnc.ir.types import SCALAR, TensorType

REDUCTIONS = {"sum": "list_sum", "mean": "list_mean", "max": "list_max"}
ATTEND = "attend"
ARGUMENTS = {2: "score, value", 3: "query, key, value"}
"""Of attention, by how many there are."""
EVERY = "every child"
"""The step from a list to the child at hand, while its body is checked."""

IMPOSSIBLE = {"matmul": "a product with a matrix", "row": "an element", "slice": "a part"}
"""Of operations that no child can be read by, what they are called."""

OPERATORS = {"add": "'+'", "sub": "'-'", "mul": "'*'", "div": "'/'", "scale": "'*'", "neg": "'-'"}
"""Of operations that are written as signs, the signs."""

ELSEWHERE = {
    **dict.fromkeys(
        ("softmax", "log_softmax"), "attend(query, key(k), value(k) for k in list) weighs values by softmax"
    ),
    "logsumexp": "log(sum(exp(score(k)) for k in list))",
    "min": "a minimum is -max(-f(k) for k in list)",
    **dict.fromkeys(
        ("concat", "stack", "list"),
        "nothing holds the values of all elements; sum, mean and max join them",
    ),
    **dict.fromkeys(("count", "len"), "its length is sum(one(k) for k in list) with fn one(k: Struct) = 1"),
}
"""What other languages reduce lists by."""


class _Impossible(Exception):
    """What cannot be done for every child. found: what that is; of: what it could be done with, in words."""

    def __init__(self, found: str, span: Span, of: str = "") -> None:
        super().__init__(found)
        self.found, self.span, self.of = found, span, of


class Reductions:
    """Checks the reductions in one place of a program."""

    def __init__(self, expressions: Checker) -> None:
        self.expressions, self.declarations = expressions, expressions.declarations
        self.report = expressions.declarations.report

    def check(self, over: syntax.Comprehension, names: Names) -> Expression | None:
        """A reduction of what a body gives for every child in a list."""
        source, reduction = self.expressions.check(over.source, names), over.reduction.text
        if not self._is_known(over) or source is None:
            return None
        if not isinstance(source, VertexUse) or not isinstance(source.type, VertexList):
            self.report.error(f"found {describe(source.type)}, expected a list field", over.source.span)
            return None
        bodies = over.bodies
        if len(bodies) not in (ARGUMENTS if reduction == ATTEND else (1,)):
            expected = " or ".join(f"{count} ({what})" for count, what in ARGUMENTS.items())
            self.report.error(
                f"'{reduction}' of a list has {counted(len(bodies), 'argument')}, expected "
                f"{expected if reduction == ATTEND else '1'}",
                over.reduction.span,
            )
            return None
        struct = whole(self.declarations, source.type.struct)
        child = VertexUse((*source.path, EVERY), struct, over.variable.span)
        inside = {**names, over.variable.text: child}
        self.declarations.observer.name(over.variable, child)
        query = [self.expressions.check(body, names) for body in bodies[:1] if len(bodies) == 3]
        lists = [self._of_children(over, body, source.path, inside) for body in bodies[len(query) :]]
        values = [value for value in (*query, *lists) if value is not None]
        if len(values) != len(bodies):
            return None
        if reduction == ATTEND:
            return self._attend(over, values)
        return Apply(REDUCTIONS[reduction], (values[0],), (), values[0].type, over.span)

    def _is_known(self, over: syntax.Comprehension) -> bool:
        reduction, known = over.reduction.text, (*REDUCTIONS, ATTEND)
        if reduction in ELSEWHERE:
            self.report.error(f"a list has no '{reduction}'; {ELSEWHERE[reduction]}", over.reduction.span)
        elif reduction not in known:
            self.report.unknown("reduction of a list", reduction, known, over.reduction.span)
        return reduction in known

    def _of_children(
        self, over: syntax.Comprehension, body: syntax.Expression, source: Path, names: Names
    ) -> Expression | None:
        """What a body is for every child: a list."""
        found, variable = self.expressions.check(body, names), over.variable.text
        if found is None:
            return None
        whose = f"the body of '{over.reduction}'"
        if not isinstance(found.type, TensorType):
            self.report.error(*no_value(over.reduction.text, found))
            return None
        body_of = _Body(source, variable)
        if not body_of.reads_child(found):
            hint = ""
            if over.reduction.text == ATTEND and len(over.bodies) == 2:
                hint = f"; with a query it is {ATTEND}(query, key({variable}), value({variable}) for ...)"
            self.report.error(
                f"{whose} does not depend on '{variable}', expected f({variable}){hint}", body.span
            )
            return None
        try:
            return body_of.listed(found)
        except _Impossible as impossible:
            self.report.error(
                f"{whose} has {impossible.found}, expected calls on '{variable}' "
                f"and element-wise operations{impossible.of}",
                impossible.span,
                "move the computation into a function of the child",
            )
            return None

    def _attend(self, over: syntax.Comprehension, values: list[Expression]) -> Expression | None:
        """softmax of scores, as weights of the sum of the values; of a query and keys their products."""
        names = ARGUMENTS[len(values)].split(", ")
        for what, found in zip(names, values, strict=True):
            rank = 0 if what == "score" else 1
            if not isinstance(found.type, TensorType) or len(found.type.shape) != rank:
                expected = "a vector" if rank else "a scalar"
                self.report.error(
                    f"the {what} of '{ATTEND}' is {describe(found.type)}, expected {expected}", found.span
                )
                return None
        scores = values[0]
        if len(values) == 3:
            query, keys = values[:2]
            if query.type != keys.type:
                self.report.error(
                    f"'{ATTEND}': the query is {describe(query.type)} and the key {describe(keys.type)}, "
                    "expected equal shapes",
                    keys.span,
                )
                return None
            scores = Apply("list_dot", (query, keys), (), SCALAR, over.span)
        weights = Apply("list_softmax", (scores,), (), SCALAR, over.span)
        return Apply("list_weighted", (weights, values[-1]), (), values[-1].type, over.span)


@attrs.frozen
class _Body:
    """The body of a reduction. source: the path of the list; variable: what its children are called."""

    source: Path
    variable: str

    def reads_child(self, expression: Expression) -> bool:
        """Whether an expression depends on the child."""
        child = (*self.source, EVERY)
        paths = (getattr(each, "path", ()) for each in walk(expression))
        return any(path[: len(child)] == child for path in paths)

    def listed(self, found: Expression) -> Expression:
        """An expression that depends on the child, for every child; _Impossible where there is none."""
        match found:
            case typed.FunctionCall():
                if found.instead is not None:
                    raise _Impossible("'else'", found.span)
                if found.path != (*self.source, EVERY):
                    raise _Impossible(f"a call on what '{self.variable}' refers to", found.span)
                return attrs.evolve(found, path=self.source, is_list=True)
            case typed.ComponentUse():
                return attrs.evolve(found, base=self.listed(found.base))
            case Apply():
                return self._applied(found)
            case typed.CellCall():
                raise _Impossible(f"the cell '{found.cell}'", found.span)
            case typed.FieldUse() | typed.TableRow():
                raise _Impossible(f"a field of '{self.variable}'", found.span)
        raise _Impossible("more", found.span)

    def _applied(self, found: Apply) -> Expression:
        """An operation on every child; what does not depend on the child is the same for all."""
        if found.opcode in ("sum", "mean"):
            return self._summed(found)
        if EACH + found.opcode not in LIFTED:
            other = "another reduction" if found.opcode.startswith("list_") else f"'{found.opcode}'"
            raise _Impossible(IMPOSSIBLE.get(found.opcode, other), found.span)
        if any(isinstance(each.type, TensorType) and len(each.type.shape) > 1 for each in found.operands):
            called = OPERATORS.get(found.opcode, f"'{found.opcode}'")
            raise _Impossible(f"{called} of matrices", found.span, " of vectors and scalars")
        lists = [self.listed(each) if self.reads_child(each) else None for each in found.operands]
        some = next(each for each in lists if each is not None)
        pairs = zip(lists, found.operands, strict=True)
        operands = tuple(_repeated(value, some) if each is None else each for each, value in pairs)
        return attrs.evolve(found, opcode=EACH + found.opcode, operands=operands)

    def _summed(self, found: Apply) -> Expression:
        """The sum or the mean of the elements of every child: its product with a vector."""
        of = self.listed(found.operands[0])
        assert isinstance(of.type, TensorType)
        if len(of.type.shape) != 1:
            raise _Impossible(f"'{found.opcode}' of {describe(of.type)}", found.span)
        if found.opcode == "sum" and isinstance(of, Apply) and of.opcode == EACH + "mul":
            for one, other in (of.operands, of.operands[::-1]):
                if isinstance(one, Apply) and one.opcode == REPEAT and one.type == other.type == of.type:
                    return Apply("list_dot", (one.operands[0], other), (), SCALAR, found.span)
        factor = 1.0 if found.opcode == "sum" else 1.0 / of.type.size
        attributes = (("value", factor), ("shape", of.type.shape))
        factors = Apply("constant", (), attributes, of.type, found.span)
        return Apply("list_dot", (factors, of), (), SCALAR, found.span)


def _repeated(value: Expression, children: Expression) -> Expression:
    return Apply(REPEAT, (value, children), (), value.type, value.span)
