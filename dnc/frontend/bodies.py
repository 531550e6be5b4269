"""Checks the bodies of cells and functions: blocks, splits and what is returned.

In: a block or an expression and the names in scope. Out: a typed expression of the declared type.
Guaranteed: every name is assigned once, and every component of a returned state is assigned.
"""

from __future__ import annotations

from typing import Any

from dnc.diagnostics import Span, counted
from dnc.frontend import syntax, typed
from dnc.frontend.calls import Names
from dnc.frontend.declarations import Declarations
from dnc.frontend.expressions import Expressions
from dnc.frontend.operations import apply
from dnc.frontend.syntax_walk import walk
from dnc.frontend.typed import Apply, Constant, Expression, Let, Local, Record, State, Type, describe
from dnc.ir.types import TensorType


def excuse(names: dict[str, Expression | None], node: Any, declarations: Declarations) -> None:
    """Takes what nothing declares below `node` for a name whose declaration is wrong."""
    for each in walk(node):
        if isinstance(each, syntax.Name) and each.text not in declarations.parameters:
            names.setdefault(each.text, None)


class Body:
    """Checks one body of `owner`, which is called "cell 'x'" in messages."""

    def __init__(self, expressions: Expressions, owner: str) -> None:
        self.expressions, self.owner = expressions, owner
        self.report = expressions.report
        self.assignments: list[tuple[str, Expression]] = []
        self.in_doubt = False  # whether a mistake may have left out names

    def check(
        self,
        body: syntax.Expression | syntax.Block,
        names: Names,
        declared: Type | None,
        declared_wrong: bool,
        at: Span,
    ) -> Expression | None:
        """The typed body. `declared` is the return type, None where it is omitted or wrong."""
        if not isinstance(body, syntax.Block):
            value = self.expressions.check(body, names)
            return self._returned(value, declared, declared_wrong)
        return self._block(body, names, declared, declared_wrong, at)

    def _returned(self, value: Expression | None, declared: Type | None, wrong: bool) -> Expression | None:
        if value is None or wrong:
            return None
        value = self._filled(value, declared)
        expected = "a value or a state" if declared is None else describe(declared)
        misfit = declared is not None and value.type != declared
        if misfit or not isinstance(value.type, TensorType | State):
            self.report.error(f"{self.owner} returns {describe(value.type)}, expected {expected}", value.span)
            return None
        return value

    def _filled(self, value: Expression, expected: Type | None) -> Expression:
        """A number, or a name for one, where a vector or a matrix is expected: that in every element."""
        known = dict(self.assignments).get(value.name) if isinstance(value, Local) else value
        if not isinstance(known, Constant) or not isinstance(expected, TensorType) or not expected.shape:
            return value
        return Apply("fill", (value,), (("shape", expected.shape),), expected, value.span)

    def _block(
        self, block: syntax.Block, outer: Names, declared: Type | None, wrong: bool, at: Span
    ) -> Expression | None:
        names = dict(outer)
        assigned: dict[str, syntax.Identifier] = {}
        complete = True
        result: Expression | None = None
        for position, line in enumerate(block.lines):
            if self.in_doubt:
                excuse(names, line, self.expressions.declarations)
            if isinstance(line, syntax.Assignment):
                complete = self._assign(line, names, assigned) and complete
                continue
            result = self.expressions.check(line.value, names)
            if position != len(block.lines) - 1:
                self.report.error("this value is not used, expected an assignment", line.value.span)
                return None
            returned = self._returned(result, declared, wrong)
            return self._let(returned) if complete and returned is not None else None
        if wrong:
            return None
        if isinstance(declared, State):
            record = self._record(declared, names, assigned, at)
            return self._let(record) if complete and record is not None else None
        expected = "a value" if declared is None else describe(declared)
        self.report.error(
            f"{self.owner} returns nothing, expected {expected} on the last line of its block", at
        )
        return None

    def _let(self, result: Expression) -> Expression:
        return Let(tuple(self.assignments), result, result.type, result.span) if self.assignments else result

    def _record(
        self, state: State, names: Names, assigned: dict[str, syntax.Identifier], at: Span
    ) -> Expression | None:
        """The state made of the names that are called as its components."""
        missing = [component.name for component in state.components if component.name not in assigned]
        if missing:
            plural = "components" if len(missing) > 1 else "component"
            listed = " and ".join(f"'{name}'" for name in missing)
            self.report.error(
                f"{self.owner} returns {state.name} but does not assign the {plural} {listed}",
                at,
            )
            return None
        values: list[Expression] = []
        for component in state.components:
            value = names[component.name]
            if value is None:
                continue
            value = self._filled(value, component.type)
            if value.type != component.type:
                self.report.error(
                    f"component '{component.name}' of {state.name} is {describe(value.type)}, expected "
                    f"{describe(component.type)}",
                    assigned[component.name].span,
                )
            else:
                values.append(value)
        return Record(tuple(values), state, at) if len(values) == len(state.components) else None

    def _assign(
        self,
        line: syntax.Assignment,
        names: dict[str, Expression | None],
        assigned: dict[str, syntax.Identifier],
    ) -> bool:
        """Enters the names of an assignment; False after a mistake."""
        values = self._values(line, names)
        complete = True
        for name, value in zip(line.names, values, strict=True):
            self.expressions.declarations.observer.name(name, value)
            if name.text == "_":
                continue
            if name.text in assigned:
                before = assigned[name.text].span.line
                self.report.error(f"'{name}' is assigned twice, first in line {before}", name.span)
                complete = False
                continue
            if name.text in self.expressions.declarations.parameters:
                self.report.error(f"'{name}' is a parameter and cannot be assigned", name.span)
                complete = False
            assigned[name.text] = name
            if value is None:
                names[name.text] = None
                complete = False
                continue
            if isinstance(value, typed.VertexUse) or _is_number(value):
                names[name.text] = value
                continue
            self.assignments.append((name.text, value))
            names[name.text] = Local(name.text, value.type, name.span)
        return complete

    def _values(self, line: syntax.Assignment, names: Names) -> list[Expression | None]:
        """The values for the names on the left: one, or the pieces of a split."""
        count = len(line.names)
        value = line.value
        if not (isinstance(value, syntax.Call) and value.function.text == "split"):
            found = self.expressions.check(value, names)
            if count > 1:
                if found is not None:
                    self.report.error(
                        f"found one value for {count} names, expected split(x, {count})", value.span
                    )
                return [None] * count
            return [found]
        return self._split(value, names, count)

    def _split(self, call: syntax.Call, names: Names, count: int) -> list[Expression | None]:
        failed: list[Expression | None] = [None] * count
        if len(call.arguments) != 2:
            self.report.error(
                f"'split' has {counted(len(call.arguments), 'argument')}, expected 2: split(x, {count})",
                call.function.span,
            )
            return failed
        whole = self.expressions.check(call.arguments[0], names)
        pieces = self.expressions.declarations.dimensions.known(call.arguments[1], "'split'")
        if whole is None or pieces is None:
            return failed
        if pieces != count:
            self.report.error(
                f"'split' into {pieces} pieces, expected {count} for {count} names", call.arguments[1].span
            )
            self.in_doubt = True
            return failed
        if not isinstance(whole.type, TensorType) or len(whole.type.shape) != 1:
            self.report.error(f"'split': found {describe(whole.type)}, expected a vector [n]", whole.span)
            return failed
        size = whole.type.shape[0]
        if size % pieces:
            self.report.error(f"'split': {size} elements do not divide into {pieces} equal pieces", call.span)
            return failed
        width = size // pieces
        if not isinstance(whole, Local):
            hidden = f"split.{len(self.assignments)}"
            self.assignments.append((hidden, whole))
            whole = Local(hidden, whole.type, whole.span)
        return [
            apply(
                self.report,
                "slice",
                "split",
                [whole],
                call.span,
                call.span,
                begin=i * width,
                end=(i + 1) * width,
            )
            for i in range(pieces)
        ]


def _is_number(value: Expression) -> bool:
    """Whether it is a token, a class or an index of the data, which rows and stacks are read by."""
    return isinstance(value, typed.FieldUse) and isinstance(value.type, typed.Index)
