"""Checks a whole program.

In: the syntax tree and the user's settings of dimensions. Out: a `typed.CheckedModel`. Guaranteed:
all mistakes that do not hide behind one another are reported together, in the order of the text.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, counted
from dnc.frontend import syntax, typed
from dnc.frontend.bodies import Body, excuse
from dnc.frontend.calls import Names, Signatures
from dnc.frontend.declarations import Declarations
from dnc.frontend.expressions import Expressions
from dnc.frontend.matches import match_arms
from dnc.frontend.observer import SILENT, Observer
from dnc.frontend.oddities import warn_of_oddities
from dnc.frontend.recursion import check_recursion
from dnc.frontend.report import Report
from dnc.frontend.terms import check_terms, with_pushes
from dnc.frontend.typed import CheckedModel, Expression, Local, State, Type, Vertex, VertexUse, describe
from dnc.frontend.unused import warn_unused
from dnc.frontend.vertices import pulls, whole
from dnc.ir.types import TensorType


def check(
    model: syntax.Model, settings: Mapping[str, int], earlier: tuple[Diagnostic, ...] = ()
) -> tuple[CheckedModel, tuple[Diagnostic, ...]]:
    """The checked program and its warnings; DiagnosticError with all mistakes.

    `earlier` are mistakes of form found before: where there are any, names whose declaration could
    not be read may be missing, so that only `earlier` is reported.
    """
    if earlier:
        raise DiagnosticError(*earlier)
    report = Report()
    checker = _Checker(model, settings, report)
    checked = checker.run()
    errors = report.of("error")
    if errors or checked is None:
        raise DiagnosticError(*errors)
    return checked, report.of("warning")


@attrs.frozen(eq=False)
class Examined:
    """What is known of a program that may have mistakes: None stands for a cell or function with one."""

    declarations: Declarations
    cells: Mapping[str, typed.Cell | None]
    functions: Mapping[str, typed.Function | None]
    diagnostics: tuple[Diagnostic, ...]


def examine(model: syntax.Model, settings: Mapping[str, int], observer: Observer) -> Examined:
    """Checks as much of a program as there is; `observer` sees every name and expression."""
    report = Report()
    checker = _Checker(model, settings, report, observer)
    checker.run()
    found = (*report.of("error"), *report.of("warning"))
    return Examined(checker.declarations, checker.cells, checker.functions, found)


class _Checker:
    """Checks bodies on demand, so that their order in the text does not matter."""

    def __init__(
        self,
        model: syntax.Model,
        settings: Mapping[str, int],
        report: Report,
        observer: Observer = SILENT,
    ) -> None:
        self.model, self.report = model, report
        self.declarations = Declarations(report, observer)
        self.declarations.enter(model, settings)
        self.signatures = Signatures(self._cell, self._signature)
        self.cells: dict[str, typed.Cell | None] = {}
        self.functions: dict[str, typed.Function | None] = {}
        self.open: list[str] = []

    def run(self) -> CheckedModel | None:
        """The whole program; None where something is wrong."""
        declarations = self.declarations
        for declared in declarations.cells.values():
            self._cell(declared.name)
        for declared in declarations.functions.values():
            self._function(declared)
        terms = check_terms(self.model, declarations, Expressions(declarations, self.signatures, "term"))
        cells = {name: cell for name, cell in self.cells.items() if cell is not None}
        functions = {name: function for name, function in self.functions.items() if function is not None}
        check_recursion(functions, self.report)
        functions |= pulls(declarations)
        if self.report.of("error") or declarations.root is None:
            return None
        parameters = tuple(p for p in declarations.parameters.values() if p is not None)
        checked = CheckedModel(
            declarations.name,
            declarations.dimensions.all(),
            with_pushes(tuple(declarations.structs.values()), terms),
            declarations.root,
            parameters,
            cells,
            functions,
            terms,
        )
        warn_of_oddities(checked, self.report)
        declarations.dimensions.warn_unused()
        return warn_unused(checked, self.report)

    # ---- cells -----------------------------------------------------------------------------------

    def _cell(self, name: syntax.Identifier) -> typed.Cell | None:
        if name.text in self.open:
            self.report.error(
                f"cell '{name}' calls itself; recursion goes over vertices, in functions", name.span
            )
            return None
        if name.text not in self.cells:
            self.open.append(name.text)
            self.cells[name.text] = self._checked_cell(self.declarations.cells[name.text])
            self.open.pop()
        return self.cells[name.text]

    def _checked_cell(self, declared: syntax.CallableDeclaration) -> typed.Cell | None:
        name = declared.name.text
        owner = f"cell '{name}'"
        names: dict[str, Expression | None] = {}
        arguments: list[tuple[str, Type]] = []
        for argument in declared.arguments:
            type = self.declarations.type(argument.type, f"argument '{argument.name}' of {owner}")
            if argument.name.text in names:
                self.report.error(f"{owner} has two arguments called '{argument.name}'", argument.name.span)
                type = None
            elif isinstance(type, Vertex):
                self.report.error(
                    f"argument '{argument.name}' of {owner} is {describe(type)}, expected a shape or a state",
                    argument.type.span,
                    "cells know no vertices; a function (fn) takes one",
                )
                type = None
            names[argument.name.text] = (
                None if type is None else Local(argument.name.text, type, argument.name.span)
            )
            self.declarations.observer.name(argument.name, names[argument.name.text])
            if type is not None:
                arguments.append((argument.name.text, type))
        if len({argument.name.text for argument in declared.arguments}) < len(declared.arguments):
            excuse(names, declared.body, self.declarations)
        result, wrong = self._result(declared, owner)
        if isinstance(declared.body, syntax.Match):
            self.report.error(
                f"found a match in {owner}, expected one in a function (fn)", declared.body.span
            )
            return None
        expressions = Expressions(self.declarations, self.signatures, "cell")
        body = Body(expressions, owner).check(declared.body, names, result, wrong, declared.name.span)
        if len(arguments) != len(declared.arguments) or wrong or (body is None and result is None):
            return None
        if body is None:  # the signature is known: calls can still be checked
            assert result is not None
            body = typed.Record((), result, declared.name.span)
        return typed.Cell(name, tuple(arguments), body.type, body, declared.name.span)

    def _result(self, declared: syntax.CallableDeclaration, owner: str) -> tuple[Type | None, bool]:
        """The declared return type (None where it is omitted), and whether it is wrong."""
        if declared.result is None:
            return None, False
        result = self.declarations.type(declared.result, f"the result of {owner}")
        if isinstance(result, Vertex):
            self.report.error(
                f"{owner} returns {describe(result)}, expected a shape or a state", declared.result.span
            )
            return None, True
        return result, result is None

    # ---- functions -------------------------------------------------------------------------------

    def _signature(self, name: syntax.Identifier) -> tuple[str, Type] | None:
        declared = self.declarations.functions[name.text]
        struct = self._struct(declared)
        if declared.result is not None:
            result, _ = self._result(declared, f"function '{name}'")
            return None if struct is None or result is None else (struct, result)
        if name.text in self.open:
            self.report.error(
                f"the return type of '{name}' cannot be inferred because it calls itself, expected "
                f"fn {name}(...) -> type",
                declared.name.span,
            )
            return None
        function = self._function(declared)
        return None if function is None or struct is None else (struct, function.result)

    def _struct(self, declared: syntax.CallableDeclaration) -> str | None:
        """The struct of a function's argument; None (and an error) where it is wrong."""
        name, arguments = declared.name, declared.arguments
        if len(arguments) != 1:
            self.report.error(
                f"function '{name}' takes {counted(len(arguments), 'argument')}, "
                f"expected one vertex: fn {name}(t: Struct)",
                name.span,
            )
            return None
        type = self.declarations.type(arguments[0].type, f"the argument of function '{name}'")
        if type is None:
            return None
        if not isinstance(type, Vertex):
            self.report.error(
                f"the argument of function '{name}' is {describe(type)}, expected a struct",
                arguments[0].type.span,
            )
            return None
        return type.struct

    def _function(self, declared: syntax.CallableDeclaration) -> typed.Function | None:
        name = declared.name.text
        if name not in self.functions:
            self.open.append(name)
            function = self._checked_function(declared)
            self.open.pop()
            self.functions[name] = function
        return self.functions[name]

    def _checked_function(self, declared: syntax.CallableDeclaration) -> typed.Function | None:
        name = declared.name.text
        struct = self._struct(declared)
        result, wrong = self._result(declared, f"function '{name}'")
        if struct is None:
            return None
        variable = declared.arguments[0].name
        self.declarations.observer.name(
            variable, VertexUse((), whole(self.declarations, struct), variable.span)
        )
        expressions = Expressions(self.declarations, self.signatures, "function")

        def body(value: syntax.Expression | syntax.Block, names: Names) -> Expression | None:
            checker = Body(expressions, f"function '{name}'")
            return checker.check(value, names, result, wrong, declared.name.span)

        if isinstance(declared.body, syntax.Match):
            bodies = []
            first: Type | None = result
            for arm, names, value in match_arms(declared.body, self.declarations, struct, variable):
                found = body(value, names)
                if found is not None and first is not None and found.type != first:
                    self.report.error(
                        f"arm '{arm}' returns {describe(found.type)}, "
                        f"expected {describe(first)} as in the arm before",
                        found.span,
                    )
                elif found is not None:
                    first = first or found.type
                    bodies.append((arm, found))
            complete = len(bodies) == len(self.declarations.structs[struct].arms)
        else:
            vertex = VertexUse((), whole(self.declarations, struct), variable.span)
            found = body(declared.body, {variable.text: vertex})
            bodies = [] if found is None else [(arm, found) for arm in vertex.type.arms]  # type: ignore[union-attr]
            complete = found is not None
        if not complete or not bodies:
            return None
        type = bodies[0][1].type
        assert isinstance(type, TensorType | State)
        matched = isinstance(declared.body, syntax.Match)
        return typed.Function(name, struct, type, matched, tuple(bodies), declared.name.span)
