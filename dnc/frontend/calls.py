"""Checks calls: of builtins, cells and functions.

In: the syntax of a call and the names in scope. Out: a typed expression, or None after a mistake.
Guaranteed: arguments have the declared types, and functions are called on vertices only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from dnc.diagnostics import counted
from dnc.frontend import syntax, typed
from dnc.frontend.axes import AXES, along
from dnc.frontend.declarations import BUILTINS, Declarations
from dnc.frontend.operations import apply
from dnc.frontend.typed import Expression, Index, Vertex, VertexList, VertexUse, describe
from dnc.ir.program import TABLE
from dnc.ir.structure import LINKS
from dnc.ir.types import TensorType

Names = Mapping[str, Expression | None]
STATEMENTS_ELSEWHERE = {
    "return": "a block has the value of the expression on its last line, without 'return'",
    "if": "match chooses by the arm of a vertex, f(w.prev) else g(w) where one is absent; what depends on a "
    "value is multiplied by a == b, or by a float of the data",
    **dict.fromkeys(("for", "while"), "a list is gone through by sum(f(k) for k in t.kids), mean or max"),
}
"""Words that begin statements in other languages, and what stands here instead."""

JOINED_ELSEWHERE = ("cat", "concatenate", "stack")
CALLS_ELSEWHERE = {
    **STATEMENTS_ELSEWHERE,
    **dict.fromkeys(("matmul", "dot", "mm", "linear", "dense"), "the product is W @ x"),
    **dict.fromkeys(JOINED_ELSEWHERE, "vectors are joined with concat(a, b)"),
    **dict.fromkeys(
        ("nll", "nll_loss", "crossentropy"), "the loss of a class is cross_entropy(logits, class)"
    ),
    **dict.fromkeys(("mse", "mse_loss", "l2"), "the squared difference is squared_error(a, b)"),
    **dict.fromkeys(("chunk", "unpack"), "equal parts are a, b = split(x, 2)"),
    **dict.fromkeys(("embedding", "embed", "lookup"), "a row of a table is E[token]"),
    "len": "nothing has the length of a list; mean(f(x) for x in list) divides by it, a sum of ones counts",
    **dict.fromkeys(("multinomial", "categorical", "choice"), "a class drawn from softmax(x) is sample(x)"),
    **dict.fromkeys(("fmax", "amax"), "the larger of two is maximum(a, b), the largest element max(x)"),
    **dict.fromkeys(
        ("min", "fmin", "amin"), "the smaller of two values is minimum(a, b), the smallest element -max(-x)"
    ),
    **dict.fromkeys(("pow", "square"), "write x * x"),
    **dict.fromkeys(("silu", "swish"), "write x * sigmoid(x)"),
    "gelu": "write x * sigmoid(1.702 * x), which is close to it",
    "softplus": "write relu(x) + log(1 + exp(-abs(x)))",
    "norm": "write sqrt(sum(x * x))",
    **dict.fromkeys(
        ("layer_norm", "layernorm"), "a cell has it: d = x - mean(x), d / sqrt(mean(d * d) + 1e-5)"
    ),
    **dict.fromkeys(
        ("bce", "binary_cross_entropy"),
        "of a logit x and a number y from 0 to 1 it is relu(x) + log(1 + exp(-abs(x))) - y * x",
    ),
    **dict.fromkeys(
        ("zeros", "ones", "full"), "a number is used for every element; an absent vertex gives zeros"
    ),
    **dict.fromkeys(("reshape", "view", "flatten"), "nothing is reshaped; split and concat cut and join"),
    **dict.fromkeys(("t", "permute", "swapaxes"), "rows and columns change places with transpose(M)"),
    **dict.fromkeys(("gather", "pick", "select"), "the element of a class is x[class], the second one x[1]"),
    **dict.fromkeys(
        ("where", "cond"), "a number of the data, or a == b, is a factor of 0 or 1: c * x + (1 - c) * y"
    ),
    "attend": "attention is over a list: attend(query, key(k), value(k) for k in t.list)",
}
"""What other languages call what this one has."""

DROPOUT = "dropout"
SAMPLE, GUMBEL = "sample", "gumbel"
FOLLOW = "follow"


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
        if name == DROPOUT:
            return self._dropout(call, operands)
        if name == SAMPLE:
            return self._sample(call, operands)
        if name == FOLLOW:
            return self._follow(call, operands)
        if name in AXES and len(operands) == 2:
            return along(self.report, name, operands[0], operands[1], call.span)
        return apply(self.report, name, name, operands, call.function.span, call.span)

    def _dropout(self, call: syntax.Call, operands: list[Expression]) -> Expression | None:
        """`dropout(x, rate)`; the rate is a number in the text."""
        if len(operands) != 2:
            self.report.error(
                f"'{DROPOUT}' has {counted(len(operands), 'argument')}, expected 2 (a value and a rate)",
                call.function.span,
            )
            return None
        value, rate = operands
        if not isinstance(rate, typed.Constant) or not 0 <= rate.value < 1:
            found = f"{rate.value:g}" if isinstance(rate, typed.Constant) else describe(rate.type)
            self.report.error(
                f"the rate of '{DROPOUT}' is {found}, expected a number from 0 to below 1", rate.span
            )
            return None
        noise = typed.Noise(False, call.span)
        return apply(
            self.report, DROPOUT, DROPOUT, [value, noise], value.span, call.span, rate=rate.value, site=0
        )

    def _sample(self, call: syntax.Call, operands: list[Expression]) -> Expression | None:
        """`sample(x)`: the largest element behind Gumbel noise is a class drawn from softmax(x)."""
        where = call.function.span
        if not operands:  # without one there is nothing that noise could be added to
            return apply(self.report, "argmax", SAMPLE, operands, where, call.span)
        value, *others = operands
        noise = typed.Noise(True, call.span)
        noisy = apply(self.report, GUMBEL, SAMPLE, [value, noise], value.span, call.span, site=0)
        if noisy is None:
            return None
        return apply(self.report, "argmax", SAMPLE, [noisy, *others], where, call.span)

    def _follow(self, call: syntax.Call, operands: list[Expression]) -> Expression | None:
        """`follow(m, x, rate)`; the rate is a number in the text."""
        if len(operands) != 3:
            self.report.error(
                f"'{FOLLOW}' has {counted(len(operands), 'argument')}, expected 3 (a running param, a value "
                "and a rate)",
                call.function.span,
            )
            return None
        statistic, value, rate = operands
        if not isinstance(rate, typed.Constant) or not 0 < rate.value <= 1:
            found = f"{rate.value:g}" if isinstance(rate, typed.Constant) else describe(rate.type)
            self.report.error(
                f"the rate of '{FOLLOW}' is {found}, expected a number above 0, at most 1", rate.span
            )
            return None
        if not isinstance(statistic.type, TensorType) or len(statistic.type.shape) != 1:
            found = describe(statistic.type)
            self.report.error(f"'{FOLLOW}' moves {found}, expected a vector: a running param", statistic.span)
            return None
        if value.type != statistic.type:
            self.report.error(
                f"'{FOLLOW}': the running param is {describe(statistic.type)} and the value "
                f"{describe(value.type)}, expected equal shapes",
                value.span,
            )
            return None
        return typed.Follow(statistic, value, rate.value, statistic.type, call.span)

    def _unknown(self, function: syntax.Identifier, names: Names) -> None:
        """Reports a call of what is no function."""
        name, declarations = function.text, self.declarations
        if name in declarations.claimed:
            return
        parameter = declarations.parameters.get(name)
        if name in names or name in declarations.parameters:
            table = name not in names and parameter is not None and parameter.kind == TABLE
            hint = f"; a row of a table is {name}[token]" if table else ""
            self.report.error(f"'{name}' is a value and cannot be called{hint}", function.span)
        elif name in declarations.states:
            found = f"'{name}' is a state, which no call makes"
            self.report.error(f"{found}; a block assigns its components: h = ..., one a line", function.span)
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

    def fallback(self, fallback: syntax.Fallback, names: Names) -> Expression | None:
        """A call on a vertex that may be absent, and the call that stands for it there."""
        value = self.expressions.check(fallback.value, names)
        instead = self.expressions.check(fallback.instead, names)
        if value is None or instead is None:
            return None
        first, second = _call_of(value), _call_of(instead)
        if first is None or second is None:
            side, found = ("left", value) if first is None else ("right", instead)
            zero = isinstance(found, typed.Constant) and not found.value
            hint = "; an absent vertex gives zeros, without 'else'" if zero else ""
            self.report.error(
                f"the {side} side of 'else' is {describe(found.type)}, expected the call of a function{hint}",
                found.span,
            )
            return None
        if not first.path:
            self.report.error(
                f"'{first.function}' is called at the vertex itself, which is never absent", value.span
            )
            return None
        if value.type != instead.type or _component_of(value) != _component_of(instead):
            self.report.error(
                f"'else': found {describe(value.type)} and {describe(instead.type)}, expected one type",
                instead.span,
            )
            return None
        call = attrs.evolve(first, instead=second, span=fallback.span)
        return attrs.evolve(value, base=call) if isinstance(value, typed.ComponentUse) else call


def _call_of(expression: Expression) -> typed.FunctionCall | None:
    """The call that an expression is, or is a component of."""
    base = expression.base if isinstance(expression, typed.ComponentUse) else expression
    return base if isinstance(base, typed.FunctionCall) else None


def _component_of(expression: Expression) -> str:
    return expression.name if isinstance(expression, typed.ComponentUse) else ""
