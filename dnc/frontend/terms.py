"""Checks losses, metrics and outputs.

In: their syntax. Out: `typed.Term`s. Guaranteed: there is a loss, losses and metrics are scalars,
and names of metrics and of outputs are unique.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import counted
from dnc.frontend import syntax
from dnc.frontend.declarations import Declarations
from dnc.frontend.expressions import Expressions
from dnc.frontend.operations import apply, same_classes
from dnc.frontend.typed import Expression, Index, Term, Vertex, VertexUse, describe
from dnc.frontend.vertices import whole
from dnc.ir import measures
from dnc.ir.program import ALL, ROOT
from dnc.ir.structure import CLASS, LIST, OUTSIDE, Field, Struct
from dnc.ir.types import TensorType, fits_float

_FORMS = {
    (measures.SCALAR,): "expression",
    (measures.SCALAR, measures.SCALAR): "prediction, target",
    (measures.CLASS, measures.CLASS): "argmax(scores(t)), t.tag",
}


def check_terms(
    model: syntax.Model, declarations: Declarations, expressions: Expressions
) -> tuple[Term, ...]:
    """The terms in the order of the text."""
    checker = _Terms(declarations, expressions)
    found: list[Term | None] = []
    losses = 0
    for declared in model.declarations:
        match declared:
            case syntax.LossDeclaration():
                losses += 1
                found.append(checker.loss(declared))
            case syntax.MetricDeclaration():
                found += checker.metric(declared)
            case syntax.OutputDeclaration():
                losses += declared.keyword == PUSH
                found += [checker.output(item, declared.keyword) for item in declared.items]
            case _:
                pass
    if not losses:
        last = attrs.evolve(model.declarations[-1].span, length=1) if model.declarations else None
        declarations.report.error(
            "the program has no loss, expected: loss sum(t in all(Struct)) expression", last
        )
    return tuple(term for term in found if term is not None)


OUTPUT, PUSH = "output", "push"
MEASURED = ("loss", "samples")  # what an evaluation has beside its metrics


class _Terms:
    def __init__(self, declarations: Declarations, expressions: Expressions) -> None:
        self.declarations, self.expressions = declarations, expressions
        self.report = declarations.report
        self.taken: dict[tuple[str, str], int] = {}

    def loss(self, declared: syntax.LossDeclaration) -> Term | None:
        self._only(declared.reduction, "sum", "a loss adds up its terms; divide by weights if needed")
        value = self._scalar("loss", declared.reduction, declared.value)
        if not fits_float(declared.weight):
            found = f"the weight of a loss is {declared.weight:g}"
            self.report.error(f"{found}, expected a number that fits in 32 bits", declared.span)
            return None
        if value is not None and declared.weight != 1.0:
            at = value[1].span
            scaled = apply(self.report, "scale", "*", [value[1]], at, at, factor=declared.weight)
            value = None if scaled is None else (value[0], scaled)
        return self._term("loss", "", value, declared.reduction.domain.name.text)

    def metric(self, declared: syntax.MetricDeclaration) -> list[Term | None]:
        self._claim("metric", declared.name)
        if declared.name.text in MEASURED:
            self.report.error(
                f"no metric can be called '{declared.name}': every evaluation has '{declared.name}' already",
                declared.name.span,
            )
        name, domain = declared.reduction.name, declared.reduction.domain
        measure = measures.MEASURES.get(name.text)
        if measure is None:
            hint = "; a metric is the mean over its vertices" if name.text == "sum" else ""
            self.report.error(
                f"found '{name}', expected one of {', '.join(measures.MEASURES)}{hint}", name.span
            )
        elif len(declared.values) != len(measure.operands):
            self.report.error(
                f"'{name}' measures {counted(len(measure.operands), 'value')}, found {len(declared.values)}",
                declared.values[min(len(measure.operands), len(declared.values) - 1)].span,
                f"as in: metric name = {name}(t in ...) {_FORMS[measure.operands]}",
            )
            measure = None
        elif measure.in_lists:
            self._check_in_lists(name, domain)
        kinds = measure.operands if measure else (None,) * len(declared.values)
        values = [
            self._class(name.text, declared.reduction, value)
            if kind == measures.CLASS
            else self._scalar("metric", declared.reduction, value)
            if kind == measures.SCALAR
            else None
            for value, kind in zip(declared.values, kinds, strict=True)
        ]
        classes = [v[1].type for v in values if v is not None and isinstance(v[1].type, Index)]
        if len(classes) == 2 and not same_classes(*classes):
            self.report.error(
                f"'{name}': found {classes[0]} and {classes[1]}, expected classes of one dimension",
                declared.values[0].span,
            )
        return [
            self._term("metric", declared.name.text, value, domain.name.text, name.text) for value in values
        ]

    def _check_in_lists(self, measure: syntax.Identifier, domain: syntax.Domain) -> None:
        """The vertices of a domain are elements of lists."""
        vertex = self._domain(domain)
        if vertex is None or not isinstance(vertex.type, Vertex):
            return
        struct = vertex.type.struct
        fields = (f for each in self.declarations.structs.values() for arm in each.arms for f in arm.fields)
        listed = any(field.kind == LIST and field.target == struct for field in fields)
        if not listed or domain.name.text != ALL:
            found = "found the roots of samples" if listed else f"'{struct}' is in no list"
            self.report.error(
                f"'{measure}' goes along lists: {found}, expected all(Struct) of a struct that is in a list",
                domain.span,
                "it counts entities, as names; of classes one by one F1 is macro_f1",
            )

    def output(self, item: syntax.OutputItem, keyword: str) -> Term | None:
        """A value for the user; one that is pushed gets a gradient back, as a loss does."""
        self._claim("output", item.name)
        if item.variable is not None and item.domain is not None:
            vertex = self._domain(item.domain)
            self.declarations.observer.name(item.variable, vertex)
            names: dict[str, Expression | None] = {item.variable.text: vertex}
            selection = item.domain.name.text
        else:
            vertex = None
            if self.declarations.root is not None:
                vertex = VertexUse((), whole(self.declarations, self.declarations.root), item.name.span)
            names, selection = {"root": vertex}, ROOT
        value = self.expressions.check(item.value, names)
        if value is None or vertex is None:
            return None
        if not isinstance(value.type, TensorType | Index):
            self.report.error(f"output '{item.name}' is {describe(value.type)}, expected a value", value.span)
            return None
        if keyword == PUSH and not (isinstance(value.type, TensorType) and len(value.type.shape) == 1):
            self.report.error(
                f"'{item.name}' is {describe(value.type)}, expected a vector: only vectors are pushed",
                value.span,
            )
            return None
        return self._term(keyword, item.name.text, (vertex, value), selection)

    def _claim(self, kind: str, name: syntax.Identifier) -> None:
        key = (kind, name.text)
        if key in self.taken:
            self.report.error(
                f"{kind} '{name}' is declared twice, first in line {self.taken[key]}", name.span
            )
        self.taken[key] = name.span.line

    def _only(self, reduction: syntax.Reduction, allowed: str, why: str) -> None:
        if reduction.name.text != allowed:
            self.report.error(f"found '{reduction.name}', expected '{allowed}': {why}", reduction.name.span)

    def _value(
        self, reduction: syntax.Reduction, expression: syntax.Expression
    ) -> tuple[VertexUse, Expression] | None:
        vertex = self._domain(reduction.domain)
        self.declarations.observer.name(reduction.variable, vertex)
        value = self.expressions.check(expression, {reduction.variable.text: vertex})
        return None if vertex is None or value is None else (vertex, value)

    def _scalar(
        self, kind: str, reduction: syntax.Reduction, expression: syntax.Expression
    ) -> tuple[VertexUse, Expression] | None:
        found = self._value(reduction, expression)
        if found is None or found[1].type == TensorType(()):
            return found
        hint = "; compare it with ==" if kind == "metric" and isinstance(found[1].type, Index) else ""
        self.report.error(f"the {kind} is {describe(found[1].type)}, expected a scalar{hint}", found[1].span)
        return None

    def _class(
        self, measure: str, reduction: syntax.Reduction, expression: syntax.Expression
    ) -> tuple[VertexUse, Expression] | None:
        found = self._value(reduction, expression)
        if found is None or (isinstance(found[1].type, Index) and found[1].type.kind == CLASS):
            return found
        hint = "; argmax(x) gives one" if isinstance(found[1].type, TensorType) else ""
        self.report.error(
            f"'{measure}': found {describe(found[1].type)}, expected a class{hint}", found[1].span
        )
        return None

    def _domain(self, domain: syntax.Domain) -> VertexUse | None:
        """A vertex of the domain."""
        declarations = self.declarations
        if domain.name.text not in (ALL, ROOT):
            self.report.unknown("domain", domain.name.text, ("root", "all"), domain.name.span)
            return None
        if domain.name.text == ROOT:
            if domain.struct is not None:
                self.report.error(
                    f"found root({domain.struct}), expected root or all({domain.struct})", domain.span
                )
                return None
            if declarations.root is None:
                return None
            return VertexUse((), whole(declarations, declarations.root), domain.span)
        if domain.struct is None:
            self.report.error("found 'all' without a struct, expected all(Struct)", domain.span)
            return None
        if domain.struct.text not in declarations.structs:
            name = domain.struct.text
            for struct in declarations.structs.values():
                if name in [arm.name for arm in struct.arms]:
                    self.report.error(
                        f"'{name}' is an arm of '{struct.name}', expected all({struct.name}.{name})",
                        domain.struct.span,
                    )
                    return None
            self.report.unknown("struct", name, declarations.structs, domain.struct.span)
            return None
        vertex = whole(declarations, domain.struct.text)
        if domain.arm is not None:
            if domain.arm.text not in vertex.arms:
                self.report.unknown(
                    "arm", domain.arm.text, vertex.arms, domain.arm.span, f"'{vertex.struct}'"
                )
                return None
            vertex = Vertex(vertex.struct, (domain.arm.text,))
        return VertexUse((), vertex, domain.span)

    def _term(
        self,
        kind: str,
        name: str,
        value: tuple[VertexUse, Expression] | None,
        selection: str,
        measure: str = "",
    ) -> Term | None:
        if value is None:
            return None
        vertex = value[0].type
        assert isinstance(vertex, Vertex)
        return Term(kind, name, vertex.struct, vertex.arms, selection, value[1], value[1].span, measure)


def push_field(term: Term) -> str:
    """The field in which the gradient by a pushed value comes back; no name of the language."""
    return f"push {term.name}"


def with_pushes(structs: tuple[Struct, ...], terms: tuple[Term, ...]) -> tuple[Struct, ...]:
    """The structs with a field for the gradient of every pushed value."""
    found = []
    for struct in structs:
        arms = []
        for arm in struct.arms:
            own = [t for t in terms if t.kind == PUSH and t.struct == struct.name and arm.name in t.arms]
            fields = tuple(Field(push_field(t), OUTSIDE, width=t.value.type.shape[0]) for t in own)  # type: ignore[union-attr]
            arms.append(attrs.evolve(arm, fields=(*arm.fields, *fields)))
        found.append(attrs.evolve(struct, arms=tuple(arms)))
    return tuple(found)
