"""Which names of a program mean the same.

In: an `Analysis`. Out: every occurrence of a name with its `Symbol`. Guaranteed: two occurrences have one
symbol exactly if they mean one thing. A field that a pattern binds is that field, and a name that a block
assigns for a component of its state is that component, so that renaming one renames all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from dnc.diagnostics import Span
from dnc.editing.analysis import Analysis
from dnc.frontend import syntax, typed
from dnc.frontend.declarations import BUILTINS
from dnc.frontend.syntax_walk import walk
from dnc.ir.structure import LINKS


@attrs.frozen
class Symbol:
    """What a name means. owner: the struct of an arm or a field, the state of a component, the place of a
    local name ("line:column"); "" for names of the top level.
    """

    kind: str
    name: str
    owner: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the program declares it, rather than the language."""
        return self.kind not in ("builtin", "reduction", "measure", "initializer", "link", "kind", "domain")


@attrs.frozen
class Occurrence:
    """A name in the text. declares: whether it is introduced there."""

    span: Span
    symbol: Symbol
    declares: bool
    identifier: syntax.Identifier | None = attrs.field(default=None, eq=False, repr=False)


Scope = Mapping[str, Symbol]


def occurrences(analysis: Analysis) -> list[Occurrence]:
    """All names of a program, in the order of the text."""
    resolver = _Resolver(analysis)
    for declaration in analysis.model.declarations:
        resolver.declaration(declaration)
    return sorted(resolver.found, key=lambda each: (each.span.line, each.span.column))


class _Resolver:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.found = analysis, list[Occurrence]()
        self.top = dict(_top_level(analysis.model))

    def _add(self, symbol: Symbol, at: syntax.Identifier | syntax.Name, declares: bool = False) -> None:
        identifier = at if isinstance(at, syntax.Identifier) else None
        self.found.append(Occurrence(at.span, symbol, declares, identifier))

    def _local(self, name: syntax.Identifier) -> Symbol:
        symbol = Symbol("local", name.text, f"{name.span.line}:{name.span.column}")
        self._add(symbol, name, declares=True)
        return symbol

    def _use(self, name: syntax.Identifier | syntax.Name, *kinds: str) -> None:
        """A name of the top level."""
        symbol = self.top.get(name.text)
        if symbol is not None and (not kinds or symbol.kind in kinds):
            self._add(symbol, name)

    # ---- declarations ----------------------------------------------------------------------------

    def declaration(self, declared: syntax.Declaration) -> None:
        match declared:
            case syntax.ModelDeclaration():
                self._add(Symbol("model", declared.name.text), declared.name, declares=True)
                for dimension in declared.dimensions:
                    self._add(Symbol("dimension", dimension.name.text), dimension.name, declares=True)
                    self._dimensions(dimension.default)
            case syntax.StructDeclaration():
                self._struct(declared)
            case syntax.ParametersDeclaration():
                for parameter in declared.parameters:
                    self._add(Symbol("parameter", parameter.name.text), parameter.name, declares=True)
                    if parameter.kind is not None:
                        self._add(Symbol("kind", parameter.kind.text), parameter.kind)
                    self._dimensions(parameter.shape)
                    if parameter.initializer is not None:
                        kind = parameter.initializer.kind
                        self._add(Symbol("initializer", kind.text), kind)
            case syntax.StateDeclaration():
                self._add(Symbol("state", declared.name.text), declared.name, declares=True)
                for component in declared.components:
                    symbol = Symbol("component", component.name.text, declared.name.text)
                    self._add(symbol, component.name, declares=True)
                    self._type(component.type)
            case syntax.CallableDeclaration():
                self._callable(declared)
            case syntax.LossDeclaration():
                self._expression(declared.value, self._reduction(declared.reduction))
            case syntax.MetricDeclaration():
                self._add(Symbol("metric", declared.name.text), declared.name, declares=True)
                scope = self._reduction(declared.reduction)
                for value in declared.values:
                    self._expression(value, scope)
            case syntax.OutputDeclaration():
                for item in declared.items:
                    self._output(item)

    def _struct(self, declared: syntax.StructDeclaration) -> None:
        struct = declared.name.text
        self._add(Symbol("struct", struct), declared.name, declares=True)
        for arm in declared.arms:
            self._add(Symbol("arm", arm.name.text, struct), arm.name, declares=True)
            for field in arm.fields:
                self._add(Symbol("field", field.name.text, struct), field.name, declares=True)
                if self.top.get(field.kind.text, Symbol("", "")).kind == "struct":
                    self._use(field.kind)
                else:
                    self._add(Symbol("kind", field.kind.text), field.kind)
                self._dimensions(field.dimension)

    def _callable(self, declared: syntax.CallableDeclaration) -> None:
        kind = "cell" if declared.keyword == "cell" else "function"
        self._add(Symbol(kind, declared.name.text), declared.name, declares=True)
        scope: dict[str, Symbol] = {}
        struct = ""
        for argument in declared.arguments:
            scope[argument.name.text] = self._local(argument.name)
            self._type(argument.type)
            if isinstance(argument.type, syntax.NamedType):
                struct = argument.type.name.text
        if declared.result is not None:
            self._type(declared.result)
        match declared.body:
            case syntax.Block():
                self._block(declared, declared.body, scope)
            case syntax.Match():
                if declared.body.subject.text in scope:
                    self._add(scope[declared.body.subject.text], declared.body.subject)
                for arm in declared.body.arms:
                    self._arm(arm, struct, scope)
            case _:
                self._expression(declared.body, scope)

    def _block(self, declared: syntax.CallableDeclaration, block: syntax.Block, outer: Scope) -> None:
        scope = dict(outer)
        components = self._returned_components(declared, block)
        for line in block.lines:
            self._expression(line.value, scope)
            if isinstance(line, syntax.Result):
                continue
            for name in line.names:
                if name.text == "_":
                    continue
                if name.text in components:
                    scope[name.text] = components[name.text]
                    self._add(scope[name.text], name)
                else:
                    scope[name.text] = self._local(name)

    def _returned_components(
        self, declared: syntax.CallableDeclaration, block: syntax.Block
    ) -> dict[str, Symbol]:
        """The components that a block assigns because it returns their state."""
        if not isinstance(declared.result, syntax.NamedType) or any(
            isinstance(line, syntax.Result) for line in block.lines
        ):
            return {}
        state = declared.result.name.text
        return {
            component.name.text: Symbol("component", component.name.text, state)
            for each in self.analysis.model.declarations
            if isinstance(each, syntax.StateDeclaration) and each.name.text == state
            for component in each.components
        }

    def _arm(self, arm: syntax.MatchArm, struct: str, outer: Scope) -> None:
        self._add(Symbol("arm", arm.name.text, struct), arm.name)
        scope = dict(outer)
        for binder in arm.binders:
            if binder.text != "_":
                scope[binder.text] = Symbol("field", binder.text, struct)
                self._add(scope[binder.text], binder)
        self._expression(arm.value, scope)

    def _reduction(self, reduction: syntax.Reduction) -> Scope:
        self._add(Symbol("measure", reduction.name.text), reduction.name)
        variable = self._local(reduction.variable)
        self._domain(reduction.domain)
        return {reduction.variable.text: variable}

    def _domain(self, domain: syntax.Domain) -> None:
        self._add(Symbol("domain", domain.name.text), domain.name)
        if domain.struct is not None:
            self._use(domain.struct, "struct")
            if domain.arm is not None:
                self._add(Symbol("arm", domain.arm.text, domain.struct.text), domain.arm)

    def _output(self, item: syntax.OutputItem) -> None:
        self._add(Symbol("output", item.name.text), item.name, declares=True)
        scope: dict[str, Symbol] = {"root": Symbol("domain", "root")}
        if item.variable is not None and item.domain is not None:
            scope = {}
            self._domain(item.domain)
            scope[item.variable.text] = self._local(item.variable)
        self._expression(item.value, scope)

    # ---- types and expressions -------------------------------------------------------------------

    def _type(self, type: syntax.TypeSyntax) -> None:
        if isinstance(type, syntax.NamedType):
            self._use(type.name, "state", "struct")
        else:
            self._dimensions(type)

    def _dimensions(self, node: syntax.ShapeType | syntax.Expression | None) -> None:
        for name in () if node is None else walk(node):
            if isinstance(name, syntax.Name):
                self._use(name, "dimension")

    def _expression(self, expression: syntax.Expression, scope: Scope) -> None:
        """Resolves the names in an expression; deep ones need no deep stack."""
        todo: list[tuple[syntax.Expression, Scope]] = [(expression, scope)]
        while todo:
            node, names = todo.pop()
            match node:
                case syntax.Name():
                    if node.text in names:
                        self._add(names[node.text], node)
                    else:
                        self._use(node)
                case syntax.Call():
                    self._called(node.function)
                    todo += [(argument, names) for argument in node.arguments]
                case syntax.Comprehension():
                    self._add(Symbol("reduction", node.reduction.text), node.reduction)
                    inner = {**names, node.variable.text: self._local(node.variable)}
                    todo += [(node.source, names), *((body, inner) for body in node.bodies)]
                case syntax.Member():
                    symbol = self._member(node)
                    if symbol is not None:
                        self._add(symbol, node.name)
                    todo.append((node.base, names))
                case syntax.Lookup():
                    todo += [(node.base, names), (node.index, names)]
                case syntax.Part():
                    todo.append((node.base, names))
                    self._dimensions(node.begin)
                    self._dimensions(node.end)
                case syntax.Negation():
                    todo.append((node.operand, names))
                case syntax.Binary():
                    todo += [(node.left, names), (node.right, names)]
                case syntax.Fallback():
                    todo += [(node.value, names), (node.instead, names)]
                case syntax.Number():
                    pass

    def _called(self, function: syntax.Identifier) -> None:
        if function.text in BUILTINS and function.text not in self.top:
            self._add(Symbol("builtin", function.text), function)
        else:
            self._use(function)

    def _member(self, member: syntax.Member) -> Symbol | None:
        name = member.name.text
        match self.analysis.type_of(member.base):
            case typed.State(name=state):
                return Symbol("component", name, state)
            case typed.Vertex(struct=struct):
                return Symbol("link", name) if name in LINKS else Symbol("field", name, struct)
            case typed.VertexList():
                return Symbol("link", name)
        return None


def _top_level(model: syntax.Model) -> Iterator[tuple[str, Symbol]]:
    """The names of the top level; of two declarations of one name the first counts."""
    found: dict[str, Symbol] = {}
    enter: Callable[[str, syntax.Identifier], object] = lambda kind, name: found.setdefault(  # noqa: E731
        name.text, Symbol(kind, name.text)
    )
    for declared in model.declarations:
        match declared:
            case syntax.ModelDeclaration():
                for dimension in declared.dimensions:
                    enter("dimension", dimension.name)
            case syntax.StructDeclaration():
                enter("struct", declared.name)
            case syntax.ParametersDeclaration():
                for parameter in declared.parameters:
                    enter("parameter", parameter.name)
            case syntax.StateDeclaration():
                enter("state", declared.name)
            case syntax.CallableDeclaration():
                enter("cell" if declared.keyword == "cell" else "function", declared.name)
            case _:
                pass
    yield from found.items()
