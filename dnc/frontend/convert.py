"""From Lark's parse tree of a declaration to the nodes of `dnc.frontend.syntax`.

In: a tree of `grammar.lark`. Out: a frozen declaration with spans. Guaranteed: nothing of Lark is
left in the result.
"""

from __future__ import annotations

from typing import Any

from dnc.diagnostics import DiagnosticError, Source, Span
from dnc.frontend import syntax
from dnc.frontend.depth import deepest, nested

EXPRESSIONS = (
    "number",
    "name",
    "call",
    "comprehension",
    "member",
    "lookup",
    "part",
    "negation",
    "binary",
    "fallback",
)


def _below(tree: Any) -> list[Any]:
    return [each for each in tree.children if hasattr(each, "children")]


class Converter:
    """Converts trees of one source; a method per rule of the grammar."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def declaration(self, tree: Any) -> syntax.Declaration:
        """The node of a whole declaration; DiagnosticError where it is nested deeper than Python's stack."""
        try:
            node: syntax.Declaration = self._node(tree)
        except RecursionError:
            found, levels = deepest(tree, _below, lambda each: each.data in EXPRESSIONS)
            raise DiagnosticError(nested(self._span(found), levels)) from None
        return node

    def _node(self, tree: Any) -> Any:
        return getattr(self, "_" + tree.data)(tree)

    def _nodes(self, trees: list[Any]) -> tuple[Any, ...]:
        return tuple(self._node(tree) for tree in trees if tree is not None)

    def _span(self, tree: Any) -> Span:
        meta = tree.meta if hasattr(tree, "meta") else tree
        line = self.source.line_text(meta.line)
        end = meta.end_column if meta.end_line == meta.line else len(line.split("#")[0].rstrip()) + 1
        return Span(self.source, meta.line, meta.column, max(1, end - meta.column))

    def _identifier(self, token: Any) -> syntax.Identifier:
        return syntax.Identifier(str(token), self._span(token))

    # ---- declarations ----------------------------------------------------------------------------

    def _model(self, tree: Any) -> syntax.ModelDeclaration:
        name, *dimensions = tree.children
        return syntax.ModelDeclaration(self._identifier(name), self._nodes(dimensions), self._span(tree))

    def _dimension(self, tree: Any) -> syntax.DimensionDeclaration:
        name, default = tree.children
        return syntax.DimensionDeclaration(
            self._identifier(name), None if default is None else self._node(default)
        )

    def _struct(self, tree: Any) -> syntax.StructDeclaration:
        name, *arms = tree.children
        return syntax.StructDeclaration(self._identifier(name), self._nodes(arms), self._span(tree))

    def _arm(self, tree: Any) -> syntax.ArmDeclaration:
        name, *fields = tree.children
        return syntax.ArmDeclaration(self._identifier(name), self._nodes(fields))

    def _field(self, tree: Any) -> syntax.FieldDeclaration:
        name, kind = tree.children
        form = str(kind.data).removesuffix("_kind")
        if form == "list" and kind.children[0].data != "plain_kind":
            form = "values"
        while kind.data == "list_kind":
            (kind,) = kind.children
        dimension = self._node(kind.children[1]) if len(kind.children) > 1 else None
        return syntax.FieldDeclaration(
            self._identifier(name), form, self._identifier(kind.children[0]), dimension
        )

    def _param(self, tree: Any) -> syntax.ParametersDeclaration:
        way, *parameters = tree.children
        nodes = tuple(self._parameter(each, "" if way is None else str(way)) for each in parameters)
        return syntax.ParametersDeclaration(nodes, self._span(tree))

    def _parameter(self, tree: Any, way: str) -> syntax.ParameterDeclaration:
        name, *kind, shape, initializer, density, rate = tree.children
        return syntax.ParameterDeclaration(
            self._identifier(name),
            self._identifier(kind[0]) if kind else None,
            self._shape(shape),
            None if initializer is None else self._initializer(initializer),
            way,
            self._behind_word(density),
            self._behind_word(rate),
        )

    def _initializer(self, tree: Any) -> syntax.InitializerSyntax:
        kind, *values = tree.children
        numbers = tuple(self._signed(value) for value in values if value is not None)
        return syntax.InitializerSyntax(self._identifier(kind), numbers, self._span(tree))

    def _behind_word(self, tree: Any) -> syntax.NumberSyntax | None:
        return (
            None if tree is None else syntax.NumberSyntax(self._signed(tree.children[-1]), self._span(tree))
        )

    def _signed(self, tree: Any) -> float:
        minus, number = tree.children
        return -float(number) if minus is not None else float(number)

    def _state(self, tree: Any) -> syntax.StateDeclaration:
        name, *components = tree.children
        return syntax.StateDeclaration(self._identifier(name), self._nodes(components), self._span(tree))

    def _component(self, tree: Any) -> syntax.Typed:
        name, type = tree.children
        return syntax.Typed(self._identifier(name), self._node(type))

    _argument = _component

    def _named_type(self, tree: Any) -> syntax.NamedType:
        return syntax.NamedType(self._identifier(tree.children[0]), self._span(tree))

    def _shape_type(self, tree: Any) -> syntax.ShapeType:
        return self._shape(tree.children[0])

    def _shape(self, tree: Any) -> syntax.ShapeType:
        return syntax.ShapeType(self._nodes(tree.children), self._span(tree))

    def _callable(self, tree: Any) -> syntax.CallableDeclaration:
        keyword, name, *arguments, result, body = tree.children
        return syntax.CallableDeclaration(
            str(keyword),
            self._identifier(name),
            self._nodes(arguments),
            None if result is None else self._node(result),
            self._node(body),
            self._span(tree),
        )

    def _expression_body(self, tree: Any) -> syntax.Expression:
        node: syntax.Expression = self._node(tree.children[0])
        return node

    def _match_body(self, tree: Any) -> syntax.Match:
        keyword, subject, *arms = tree.children
        return syntax.Match(self._identifier(subject), self._nodes(arms), self._span(keyword))

    def _match_arm(self, tree: Any) -> syntax.MatchArm:
        name, *binders, value = tree.children
        tokens = [binder for binder in binders if binder is not None]
        names = tuple(self._identifier(token) for token in tokens if token.type == "NAME")
        rest = any(token.type == "ELLIPSIS" for token in tokens)
        return syntax.MatchArm(self._identifier(name), names, rest, self._node(value))

    def _block_body(self, tree: Any) -> syntax.Block:
        return syntax.Block(self._nodes(tree.children))

    def _assignment(self, tree: Any) -> syntax.Assignment:
        *names, value = tree.children
        return syntax.Assignment(tuple(self._identifier(name) for name in names), self._node(value))

    def _result(self, tree: Any) -> syntax.Result:
        return syntax.Result(self._node(tree.children[0]))

    def _loss(self, tree: Any) -> syntax.LossDeclaration:
        *weight, reduction, value = tree.children
        factor = self._signed(weight[0]) if weight and weight[0] is not None else 1.0
        return syntax.LossDeclaration(factor, self._reduction(reduction), self._node(value), self._span(tree))

    def _metric(self, tree: Any) -> syntax.MetricDeclaration:
        name, reduction, *values = tree.children
        return syntax.MetricDeclaration(
            self._identifier(name), self._reduction(reduction), self._nodes(values), self._span(tree)
        )

    def _reduction(self, tree: Any) -> syntax.Reduction:
        name, variable, domain = tree.children
        return syntax.Reduction(self._identifier(name), self._identifier(variable), self._domain(domain))

    def _domain(self, tree: Any) -> syntax.Domain:
        name, *rest = tree.children
        struct, arm = (None if token is None else self._identifier(token) for token in (*rest, None)[:2])
        return syntax.Domain(self._identifier(name), struct, arm, self._span(tree))

    def _output(self, tree: Any) -> syntax.OutputDeclaration:
        keyword, *items = tree.children
        return syntax.OutputDeclaration(str(keyword), self._nodes(items), self._span(tree))

    def _output_item(self, tree: Any) -> syntax.OutputItem:
        name, value, *over = tree.children
        if not over:
            return syntax.OutputItem(self._identifier(name), self._node(value))
        variable, domain = over
        return syntax.OutputItem(
            self._identifier(name), self._node(value), self._identifier(variable), self._domain(domain)
        )

    # ---- expressions -----------------------------------------------------------------------------

    def _number(self, tree: Any) -> syntax.Number:
        return syntax.Number(str(tree.children[0]), self._span(tree))

    def _name(self, tree: Any) -> syntax.Name:
        return syntax.Name(str(tree.children[0]), self._span(tree))

    def _call(self, tree: Any) -> syntax.Call:
        function, *arguments = tree.children
        return syntax.Call(self._identifier(function), self._nodes(arguments), self._span(tree))

    def _comprehension(self, tree: Any) -> syntax.Comprehension:
        reduction, *bodies, variable, source = tree.children
        return syntax.Comprehension(
            self._identifier(reduction),
            self._nodes(bodies),
            self._identifier(variable),
            self._node(source),
            self._span(tree),
        )

    def _fallback(self, tree: Any) -> syntax.Fallback:
        value, instead = tree.children
        return syntax.Fallback(self._node(value), self._node(instead), self._span(tree))

    def _member(self, tree: Any) -> syntax.Member:
        base, name = tree.children
        return syntax.Member(self._node(base), self._identifier(name), self._span(tree))

    def _lookup(self, tree: Any) -> syntax.Lookup:
        base, index = tree.children
        return syntax.Lookup(self._node(base), self._node(index), self._span(tree))

    def _part(self, tree: Any) -> syntax.Part:
        base, *bounds = tree.children
        begin, end = (None if bound is None else self._node(bound) for bound in bounds)
        return syntax.Part(self._node(base), begin, end, self._span(tree))

    def _negation(self, tree: Any) -> syntax.Negation:
        return syntax.Negation(self._node(tree.children[1]), self._span(tree))

    def _binary(self, tree: Any) -> syntax.Binary:
        left, operator, right = tree.children
        return syntax.Binary(
            self._identifier(operator), self._node(left), self._node(right), self._span(tree)
        )
