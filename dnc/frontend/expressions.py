"""Checks expressions: resolves names and gives every value its type.

In: syntax and the names in scope. Out: `typed.Expression`, or None where a mistake was reported;
None is passed on silently, so that one mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from dnc.diagnostics import Span
from dnc.frontend import syntax, typed
from dnc.frontend.axes import element
from dnc.frontend.calls import Calls, Names, Signatures
from dnc.frontend.declarations import Declarations
from dnc.frontend.operations import apply
from dnc.frontend.reductions import Reductions
from dnc.frontend.syntax_walk import walk
from dnc.frontend.typed import Expression, Index, State, VertexUse, describe
from dnc.frontend.vertices import step
from dnc.ir.program import DENSE, STACK, TABLE
from dnc.ir.structure import CLASS, SELECTOR, TOKEN
from dnc.ir.types import TensorType, fits_float

ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul", "==": "equal"}
READ_BY_OTHERS = "a matrix of known size, param {}: [rows, width], is read by classes and indices, too"
LONGEST_NUMBER = 60  # characters of a number that a message shows


class Expressions:
    """Checks expressions in one place of a program; `where` is "cell", "function" or "term"."""

    def __init__(self, declarations: Declarations, signatures: Signatures, where: str) -> None:
        self.declarations, self.signatures, self.where = declarations, signatures, where
        self.report = declarations.report
        self.calls, self.reductions = Calls(self, where), Reductions(self)

    def check(self, expression: syntax.Expression, names: Names) -> Expression | None:
        """The typed expression; None after a mistake."""
        before = self.report.count
        found = self._check(expression, names)
        if found is None:
            self.report.explain(before, self._hidden(expression, names))
        self.declarations.observer.expression(expression, names, found)
        return found

    def _check(self, expression: syntax.Expression, names: Names) -> Expression | None:
        match expression:
            case syntax.Number():
                return self._number(expression)
            case syntax.Name():
                return self._name(expression, names)
            case syntax.Member():
                return self._member(expression, names)
            case syntax.Lookup():
                return self._lookup(expression, names)
            case syntax.Part():
                return self._part(expression, names)
            case syntax.Negation():
                return self._negation(expression, names)
            case syntax.Binary():
                return self._binary(expression, names)
            case syntax.Call():
                return self.calls.call(expression, names)
            case syntax.Comprehension():
                return self.reductions.check(expression, names)
            case syntax.Fallback():
                return self.calls.fallback(expression, names)

    def _hidden(self, expression: syntax.Expression, names: Names) -> Iterator[str]:
        """Notes on names in an expression that could be meant as parameters."""
        used = [each.text for each in walk(expression) if isinstance(each, syntax.Name)]
        for name in dict.fromkeys(used):
            found = names.get(name)
            if found is not None and name in self.declarations.parameters:
                place = f"line {found.span.line}, column {found.span.column}"
                is_field = isinstance(found, typed.FieldUse) or (isinstance(found, VertexUse) and found.path)
                field = ", or leave the field to '...'" if is_field else ""
                yield f"'{name}' of {place} hides the parameter '{name}'; rename one of them{field}"

    def _number(self, number: syntax.Number) -> Expression | None:
        long = len(number.text) > LONGEST_NUMBER
        found = f"a number of {len(number.text)} characters" if long else number.text
        return self._constant(float(number.text), found, number.span)

    def _constant(self, value: float, found: str, span: Span) -> typed.Constant | None:
        """A number, of which a message says that it is `found`."""
        if not fits_float(value):
            self.report.error(f"found {found}, expected a number that fits in 32 bits", span)
            return None
        return typed.Constant(value, span)

    def _name(self, name: syntax.Name, names: Names) -> Expression | None:
        declarations = self.declarations
        if name.text in names:
            found = names[name.text]
            return None if found is None else attrs.evolve(found, span=name.span)
        if name.text in declarations.parameters:
            parameter = declarations.parameters[name.text]
            if parameter is None:
                return None
            if parameter.kind == TABLE:
                self.report.error(
                    f"table '{name.text}' is used as a value, expected a row of it: {name.text}[token]",
                    name.span,
                    f"a matrix {name.text}: [rows, columns] can be used both ways",
                )
                return None
            if parameter.kind == STACK:
                self.report.error(
                    f"stack '{name.text}' is used as a value, expected one of it: {name.text}[index]",
                    name.span,
                )
                return None
            return typed.ParameterUse(name.text, TensorType(parameter.shape), name.span)
        size = declarations.dimensions.value(name.text)
        if size is not None:
            return self._constant(float(size), f"a dimension of {size}", name.span)
        kinds: dict[str, Mapping[str, object]] = {
            "a dimension without a size": declarations.dimensions.sizes,
            "a cell": declarations.cells,
            "a function": declarations.functions,
            "a state": declarations.states,
            "a struct": declarations.structs,
        }
        for kind, known in kinds.items():
            if name.text in known:
                self.report.error(f"'{name.text}' is {kind}, expected a value", name.span)
                return None
        self.report.unknown("name", name.text, [*names, *declarations.parameters], name.span)
        return None

    def _member(self, member: syntax.Member, names: Names) -> Expression | None:
        base = self.check(member.base, names)
        if base is None:
            return None
        if isinstance(base, VertexUse):
            return step(self.declarations, base, member.name, member.span)
        if isinstance(base.type, State):
            component = base.type.component(member.name.text)
            if component is None:
                known = [component.name for component in base.type.components]
                self.report.unknown(
                    "component", member.name.text, known, member.name.span, f"state '{base.type.name}'"
                )
                return None
            return typed.ComponentUse(base, component.name, component.type, member.span)
        self.report.error(
            f"found {describe(base.type)} before '.{member.name}', expected a state or a vertex",
            member.base.span,
            *(("rows and columns change places with transpose(M)",) if member.name.text == "T" else ()),
        )
        return None

    def _lookup(self, lookup: syntax.Lookup, names: Names) -> Expression | None:
        index = self.check(lookup.index, names)
        table = None
        if isinstance(lookup.base, syntax.Name) and lookup.base.text not in names:
            table = self.declarations.parameters.get(lookup.base.text)
            if lookup.base.text in self.declarations.parameters and table is None:
                return None
        if table is None or len(table.dimensions) < 2 or _is_row(table, index):
            base = self.check(lookup.base, names)
            if base is None or index is None:
                return None
            if isinstance(base.type, TensorType):
                return element(self.report, base, index, lookup.span)
            self.report.error(f"found {describe(base.type)} before '[', expected a value", lookup.base.span)
            return None
        if index is None:
            return None
        if table.kind == STACK:
            return self._selected(table, index, lookup)
        is_table = table.kind == TABLE
        what, kinds = ("table", (TOKEN,)) if is_table else ("matrix", (TOKEN, CLASS, SELECTOR))
        if not isinstance(index.type, Index) or index.type.kind not in kinds:
            kind = index.type.kind if isinstance(index.type, Index) else ""
            hint = "; an index selects from a stack[...]" if kind == SELECTOR else ""
            expected = "a token" if is_table else "a token, a class, an index or a number"
            note = READ_BY_OTHERS.format(table.name) if kind in (CLASS, SELECTOR) else ""
            self.report.error(
                f"{what} '{table.name}' is indexed by {describe(index.type)}, expected {expected}{hint}",
                lookup.index.span,
                *([note] if note else []),
            )
            return None
        rows, dimension = table.dimensions[0], index.type.dimension
        if rows.name != dimension.name and (rows.size is None or rows.size != dimension.size):
            self.report.error(
                f"{what} '{table.name}' has a row for every one of '{rows.name}', but is indexed by "
                f"{describe(index.type)}, expected {TABLE if is_table else ''}[{dimension.name}, ...]",
                lookup.index.span,
            )
            return None
        row = TensorType(table.shape[1:])
        if not is_table:
            matrix = typed.ParameterUse(table.name, TensorType(table.shape), lookup.base.span)
            return typed.Apply("row", (matrix, index), (), row, lookup.span)
        assert isinstance(index, typed.FieldUse)  # nothing computed is a token
        return typed.TableRow(table.name, index.field, index.path, row, lookup.span)

    def _part(self, part: syntax.Part, names: Names) -> Expression | None:
        """Elements of a vector, or rows of a matrix, that stand side by side."""
        base = self.check(part.base, names)
        if base is None:
            return None
        if not isinstance(base.type, TensorType) or not base.type.shape:
            self.report.error(
                f"found {describe(base.type)} before '[', expected a vector or a matrix", part.base.span
            )
            return None
        size, dimensions = base.type.shape[0], self.declarations.dimensions
        begin = dimensions.bound(part.begin) if part.begin is not None else 0
        end = dimensions.bound(part.end) if part.end is not None else size
        if begin is None or end is None:
            return None
        if not 0 <= begin < end <= size:
            expected = f"expected two places from 0 to {size}, the first one smaller"
            self.report.error(f"found [{begin}:{end}] of {describe(base.type)}, {expected}", part.span)
            return None
        return apply(self.report, "slice", "[]", [base], part.span, part.span, begin=begin, end=end)

    def _selected(
        self, stack: typed.Parameter, index: Expression, lookup: syntax.Lookup
    ) -> Expression | None:
        """One parameter of a stack, by an index of the vertex itself."""
        if (
            not isinstance(index, typed.FieldUse)
            or not isinstance(index.type, Index)
            or index.type.kind != SELECTOR
        ):
            label = isinstance(index.type, Index) and index.type.kind == CLASS
            hint = "; a label may be missing, an index is always there" if label else ""
            self.report.error(
                f"stack '{stack.name}' is indexed by {describe(index.type)}, expected an index{hint}",
                lookup.index.span,
            )
            return None
        if index.path:
            self.report.error(
                f"stack '{stack.name}' is indexed by another vertex ({'.'.join(index.path)}), expected an "
                "index of the vertex itself",
                lookup.index.span,
                "vertices that select the same are computed together: call a function at the other vertex",
            )
            return None
        size, found = stack.dimensions[0].size, index.type.dimension
        if size != found.size:
            self.report.error(
                f"stack '{stack.name}' has {size} parameters, expected {found.size} to be indexed by "
                f"{describe(index.type)}",
                lookup.index.span,
            )
            return None
        return typed.ParameterUse(stack.name, TensorType(stack.shape[1:]), lookup.span, index.field)

    def _negation(self, negation: syntax.Negation, names: Names) -> Expression | None:
        operand = self.check(negation.operand, names)
        if operand is None:
            return None
        if isinstance(operand, typed.Constant):
            return typed.Constant(-operand.value, negation.span)
        return apply(self.report, "neg", "-", [operand], negation.operand.span, negation.span)

    def _binary(self, binary: syntax.Binary, names: Names) -> Expression | None:
        left, right = self.check(binary.left, names), self.check(binary.right, names)
        operator, at, span = binary.operator.text, binary.operator.span, binary.span
        if operator == "//":
            self.report.error("'//' divides dimensions, expected '/' between values", at)
            return None
        if left is None or right is None:
            return None
        if isinstance(left, typed.Constant) and isinstance(right, typed.Constant):
            return self._folded(left, right, binary)
        if operator == "*" and isinstance(left, typed.Constant):
            return apply(self.report, "scale", "*", [right], at, span, factor=left.value)
        if operator == "*" and isinstance(right, typed.Constant):
            return apply(self.report, "scale", "*", [left], at, span, factor=right.value)
        if operator == "/" and isinstance(right, typed.Constant):
            if right.value == 0:
                self.report.error("division by zero", right.span)
                return None
            factor = self._constant(1.0 / right.value, f"1 / {right.value:g}", right.span)
            if factor is None:
                return None
            return apply(self.report, "scale", "/", [left], at, span, factor=factor.value)
        return apply(self.report, ARITHMETIC[operator], operator, [left, right], at, span)

    def _folded(
        self, left: typed.Constant, right: typed.Constant, binary: syntax.Binary
    ) -> Expression | None:
        """The value of an operation on two numbers."""
        operator, a, b = binary.operator.text, left.value, right.value
        if operator in ("@", "=="):
            self.report.error(f"'{operator}': found two numbers, expected values of the model", binary.span)
            return None
        if operator == "/" and b == 0:
            self.report.error("division by zero", right.span)
            return None
        value = {"+": a + b, "-": a - b, "*": a * b}[operator] if operator != "/" else a / b
        return self._constant(value, f"{a:g} {operator} {b:g}", binary.span)


def _is_row(table: typed.Parameter, index: Expression | None) -> bool:
    """Whether a number stands for a row of a matrix."""
    return isinstance(index, typed.Constant) and table.kind == DENSE
