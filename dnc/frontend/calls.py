"""Checks calls: of builtins, cells and functions, and reductions of lists of children.

In: the syntax of a call and the names in scope. Out: a typed expression, or None after a mistake.
Guaranteed: arguments have the declared types, and functions are called on vertices only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from dnc.frontend import syntax, typed
from dnc.frontend.declarations import BUILTINS, Declarations
from dnc.frontend.operations import apply, no_value
from dnc.frontend.report import counted
from dnc.frontend.structs import LINKS
from dnc.frontend.typed import Expression, Index, Vertex, VertexList, VertexUse, describe
from dnc.frontend.vertices import whole
from dnc.ir.program import TABLE
from dnc.ir.types import TensorType

Names = Mapping[str, Expression | None]
CALLS_ELSEWHERE = {
    "return": "a block has the value of the expression on its last line, without 'return'",
    **dict.fromkeys(("matmul", "dot", "mm", "linear", "dense"), "the product is W @ x"),
    **dict.fromkeys(("cat", "concatenate", "stack"), "vectors are joined with concat(a, b)"),
    **dict.fromkeys(
        ("nll", "nll_loss", "crossentropy"), "the loss of a class is cross_entropy(logits, class)"
    ),
    **dict.fromkeys(("mse", "mse_loss", "l2"), "the squared difference is squared_error(a, b)"),
    **dict.fromkeys(("chunk", "unpack"), "equal parts are a, b = split(x, 2)"),
    **dict.fromkeys(("embedding", "embed", "lookup"), "a row of a table is E[token]"),
}
"""What other languages call what this one has."""

REDUCTIONS = {"sum": "list_sum", "mean": "list_mean", "max": "list_max"}


@attrs.frozen
class Signatures:
    """What cells and functions take and return; None for one whose declaration is wrong.

    cell(name): its arguments and result. function(name): its struct and result.
    """

    cell: Callable[[syntax.Identifier], typed.Cell | None]
    function: Callable[[syntax.Identifier], tuple[str, typed.Type] | None]


class Checker(Protocol):
    """What checks the arguments of calls."""

    declarations: Declarations
    signatures: Signatures

    def check(self, expression: syntax.Expression, names: Names) -> Expression | None:
        """The typed expression; None after a mistake."""


class Calls:
    """Checks the calls in one place of a program; `where` is "cell", "function" or "term"."""

    def __init__(self, expressions: Checker, where: str) -> None:
        self.expressions, self.where = expressions, where
        self.declarations, self.signatures = expressions.declarations, expressions.signatures
        self.report = expressions.declarations.report

    def call(self, call: syntax.Call, names: Names) -> Expression | None:
        """The call of a builtin, a cell or a function."""
        name, declarations = call.function.text, self.declarations
        if name in declarations.cells:
            return self._cell_call(call, names)
        if name in declarations.functions:
            return self._function_call(call, names)
        arguments = [self.expressions.check(argument, names) for argument in call.arguments]
        if name == "split":
            self.report.error(
                "'split' gives several values, expected an assignment: a, b = split(x, 2)", call.span
            )
            return None
        if name not in BUILTINS:
            self._unknown(call.function, names)
            return None
        operands = [argument for argument in arguments if argument is not None]
        if len(operands) != len(arguments):
            return None
        return apply(self.report, name, name, operands, call.function.span, call.span)

    def _unknown(self, function: syntax.Identifier, names: Names) -> None:
        """Reports a call of what is no function."""
        name, declarations = function.text, self.declarations
        parameter = declarations.parameters.get(name)
        if name in names or name in declarations.parameters:
            table = name not in names and parameter is not None and parameter.kind == TABLE
            hint = f"; a row of a table is {name}[token]" if table else ""
            self.report.error(f"'{name}' is a value and cannot be called{hint}", function.span)
        elif name.lower() in CALLS_ELSEWHERE:
            self.report.error(f"unknown function '{name}'; {CALLS_ELSEWHERE[name.lower()]}", function.span)
        elif name in LINKS:
            self.report.error(f"'{name}' is a link, expected it behind a vertex: t.{name}", function.span)
        else:
            known = [*declarations.cells, *declarations.functions, *sorted(BUILTINS)]
            note = f"the builtins are: {', '.join(sorted(BUILTINS))}"
            self.report.unknown("function", name, known, function.span, notes=(note,))

    def _cell_call(self, call: syntax.Call, names: Names) -> Expression | None:
        arguments = [self.expressions.check(argument, names) for argument in call.arguments]
        cell = self.signatures.cell(call.function)
        if cell is None:
            return None
        if len(arguments) != len(cell.arguments):
            expected = ", ".join(name for name, _ in cell.arguments)
            self.report.error(
                f"cell '{cell.name}' has {counted(len(arguments), 'argument')}, "
                f"expected {len(cell.arguments)} ({expected})",
                call.function.span,
            )
            return None
        checked: list[Expression] = []
        for argument, (name, expected_type) in zip(arguments, cell.arguments, strict=True):
            if argument is None:
                continue
            if isinstance(expected_type, TensorType) and isinstance(argument.type, Index):
                self.report.error(
                    f"argument '{name}' of '{cell.name}' is {describe(argument.type)}, expected "
                    f"{describe(expected_type)}; look it up in a table: E[...]",
                    argument.span,
                )
            elif argument.type != expected_type:
                self.report.error(
                    f"argument '{name}' of '{cell.name}' is {describe(argument.type)}, expected "
                    f"{describe(expected_type)}",
                    argument.span,
                )
            else:
                checked.append(argument)
        if len(checked) != len(arguments):
            return None
        return typed.CellCall(cell.name, tuple(checked), cell.result, call.span)

    def _function_call(self, call: syntax.Call, names: Names) -> Expression | None:
        name = call.function.text
        if self.where == "cell":
            self.report.error(
                f"a cell cannot call the function '{name}', expected its result as an argument",
                call.function.span,
            )
            return None
        arguments = [self.expressions.check(argument, names) for argument in call.arguments]
        signature = self.signatures.function(call.function)
        if len(arguments) != 1:
            self.report.error(
                f"function '{name}' has {counted(len(arguments), 'argument')}, expected 1", call.function.span
            )
            return None
        argument = arguments[0]
        if argument is None or signature is None:
            return None
        struct, result = signature
        if isinstance(argument.type, VertexList):
            shown = f"{name}(x)" if isinstance(result, TensorType) else f"{name}(x).component"
            self.report.error(
                f"'{name}' is called on {describe(argument.type)}, expected one vertex; "
                f"use sum({shown} for x in ...), mean or max",
                argument.span,
            )
            return None
        found = argument.type.struct if isinstance(argument.type, Vertex) else None
        if not isinstance(argument, VertexUse) or found != struct:
            self.report.error(
                f"'{name}' is called on {describe(argument.type)}, expected a vertex of {struct}",
                argument.span,
            )
            return None
        return typed.FunctionCall(name, argument.path, result, call.span)

    def comprehension(self, over: syntax.Comprehension, names: Names) -> Expression | None:
        """sum, mean or max of a component of a call on every child in a list."""
        source = self.expressions.check(over.source, names)
        if over.reduction.text not in REDUCTIONS:
            self.report.unknown("reduction of a list", over.reduction.text, REDUCTIONS, over.reduction.span)
            return None
        if source is None:
            return None
        if not isinstance(source, VertexUse) or not isinstance(source.type, VertexList):
            self.report.error(f"found {describe(source.type)}, expected a list field", over.source.span)
            return None
        variable = over.variable.text
        child = VertexUse(source.path, whole(self.declarations, source.type.struct), over.variable.span)
        body = self.expressions.check(over.body, {**names, variable: child})
        if body is None:
            return None
        call = body.base if isinstance(body, typed.ComponentUse) else body
        if not isinstance(call, typed.FunctionCall) or call.path != source.path:
            self.report.error(
                f"the body of '{over.reduction}' is more than a call on '{variable}', "
                f"expected f({variable}) or f({variable}).component",
                over.body.span,
                "move the computation into a function of the child",
            )
            return None
        if not isinstance(body.type, TensorType):
            self.report.error(*no_value(over.reduction.text, body))
            return None
        element: Expression = attrs.evolve(call, is_list=True)
        if isinstance(body, typed.ComponentUse):
            element = attrs.evolve(body, base=element)
        return typed.Apply(REDUCTIONS[over.reduction.text], (element,), (), body.type, over.span)
