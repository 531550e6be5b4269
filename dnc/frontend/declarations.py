"""Checks what is declared: the model line, structs, parameters and states.

In: the syntax tree. Out: `Declarations`, the tables in which expressions look names up. Guaranteed:
names are unique, every struct is finite, and there is one root.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dnc.diagnostics import Span, counted
from dnc.frontend import syntax
from dnc.frontend.dimensions import Dimensions, text
from dnc.frontend.initializers import initializer
from dnc.frontend.observer import SILENT, Observer
from dnc.frontend.report import Report
from dnc.frontend.structs import check_structs
from dnc.frontend.typed import Parameter, State, Type, Vertex
from dnc.ir.opdef import SURFACE
from dnc.ir.ops import OPS
from dnc.ir.program import DENSE, STACK, TABLE, Component
from dnc.ir.structure import TOKEN, Dimension, Struct
from dnc.ir.types import TensorType

LARGEST_RATE = 1e6
METADATA = "__metadata__"  # what safetensors has beside tensors
MANY_MATRICES = "many matrices are a stack[n, rows, columns], read by an index, or a table[...], by a token"
BUILTINS = frozenset(
    {name for name, entry in OPS.items() if entry.has(SURFACE)} | {"split", "dropout", "sample", "follow"}
)


class Declarations:
    """Everything that has a name at the top of a program.

    `parameters` and `states` hold None for a name whose declaration is wrong; what uses it is then
    not reported a second time.
    """

    def __init__(self, report: Report, observer: Observer = SILENT) -> None:
        self.report, self.observer = report, observer
        self.name = ""
        self.dimensions = Dimensions(report, observer)
        self.structs: dict[str, Struct] = {}
        self.root: str | None = None
        self.broken_fields: frozenset[tuple[str, str]] = frozenset()
        self.parameters: dict[str, Parameter | None] = {}
        self.states: dict[str, State | None] = {}
        self.cells: dict[str, syntax.CallableDeclaration] = {}
        self.functions: dict[str, syntax.CallableDeclaration] = {}
        self._taken: dict[str, tuple[str, Span]] = {}
        self.claimed: set[str] = set()  # by two declarations, which was said: their uses are no more mistakes

    def enter(self, model: syntax.Model, settings: Mapping[str, int]) -> None:
        """Checks all declarations but the bodies of cells, functions and terms."""
        declarations = model.declarations
        self._model(
            [d for d in declarations if isinstance(d, syntax.ModelDeclaration)], declarations, settings
        )
        structs = [
            d
            for d in declarations
            if isinstance(d, syntax.StructDeclaration) and self._claim(d.name, "a struct")
        ]
        self.structs, self.root, self.broken_fields = check_structs(structs, self.dimensions, self.report)
        for declared in declarations:
            if isinstance(declared, syntax.StateDeclaration) and self._claim(declared.name, "a state"):
                self.states[declared.name.text] = self._state(declared)
        for declared in declarations:
            if isinstance(declared, syntax.ParametersDeclaration):
                for parameter in declared.parameters:
                    if self._claim(parameter.name, "a parameter"):
                        self.parameters[parameter.name.text] = self._parameter(parameter)
        for declared in declarations:
            if isinstance(declared, syntax.CallableDeclaration):
                self._callable(declared)

    def _claim(self, name: syntax.Identifier, what: str) -> bool:
        """Takes a name of the top level; an error if it is taken."""
        if name.text in self._taken:
            other, span = self._taken[name.text]
            self.report.error(f"'{name}' is already {other}, in line {span.line}", name.span)
            self.claimed.add(name.text)
            return False
        if name.text in BUILTINS and what in ("a cell", "a function"):
            self.report.error(f"'{name}' is a builtin and cannot be {what}", name.span)
            return False
        self._taken[name.text] = (what, name.span)
        return True

    def _model(
        self,
        models: list[syntax.ModelDeclaration],
        all_declarations: tuple[syntax.Declaration, ...],
        settings: Mapping[str, int],
    ) -> None:
        if not models:
            first = attrs.evolve(all_declarations[0].span, length=1) if all_declarations else None
            self.dimensions.undeclared = True
            self.report.error("the model line is missing, expected: model Name(dimensions)", first)
            return
        for other in models[1:]:
            self.report.error("found a second model line, expected one", other.span)
        self.name = models[0].name.text
        self.dimensions.declare(models[0], settings)
        for dimension in models[0].dimensions:
            self._taken.setdefault(dimension.name.text, ("a dimension", dimension.name.span))

    def _state(self, declared: syntax.StateDeclaration) -> State | None:
        components: dict[str, Component] = {}
        complete = True
        if not declared.components:
            self.report.error(
                f"state '{declared.name}' has no components, expected one or more", declared.span
            )
        for component in declared.components:
            name = component.name.text
            if name in components:
                self.report.error(f"component '{name}' is declared twice", component.name.span)
            elif not isinstance(component.type, syntax.ShapeType):
                self.report.error(
                    f"found '{component.type.name}' as a component, expected a shape like [d]",
                    component.type.span,
                )
                complete = False
            else:
                shape = self.shape(component.type, f"component '{name}' of state '{declared.name}'")
                complete = complete and shape is not None
                components[name] = Component(name, TensorType(shape or ()))
        return State(declared.name.text, tuple(components.values())) if complete and components else None

    def shape(self, shape: syntax.ShapeType, user: str) -> tuple[int, ...] | None:
        """The sizes of a shape that is wholly known; None if it is wrong."""
        sizes = [self.dimensions.known(dimension, user) for dimension in shape.dimensions]
        if len(sizes) > 2:
            self.report.error(f"found {len(sizes)} dimensions, expected at most 2", shape.span)
            return None
        known = [size for size in sizes if size is not None]
        return tuple(known) if len(known) == len(sizes) else None

    def _parameter(self, declared: syntax.ParameterDeclaration) -> Parameter | None:
        name, count = declared.name.text, len(declared.shape.dimensions)
        if name == METADATA:
            self.report.error(
                f"'{name}' has a meaning of its own in checkpoints and cannot be a parameter",
                declared.name.span,
            )
            return None
        kinds = (TABLE, STACK)
        if declared.kind is not None and declared.kind.text not in kinds:
            self.report.unknown("kind of parameter", declared.kind.text, kinds, declared.kind.span)
            return None
        kind = DENSE if declared.kind is None else declared.kind.text
        many = {TABLE: "rows, and the shape of one", STACK: "how many, and the shape of one"}
        expected = f"2 or 3 ({many[kind]})" if kind in many else "1 or 2"
        if count not in ((1, 2) if kind == DENSE else (2, 3)):
            self.report.error(
                f"parameter '{name}' has {counted(count, 'dimension')}, expected {expected}",
                declared.shape.span,
                *([MANY_MATRICES] if kind == DENSE and count == 3 else []),
            )
            return None
        dimensions: list[Dimension | None] = []
        for position, expression in enumerate(declared.shape.dimensions):
            if kind == TABLE and position == 0:
                dimensions.append(self.dimensions.open_or_known(expression, f"table '{name}'"))
            else:
                first = position == 0 and kind == DENSE
                rows = first and count == 2 and text(expression) in self._token_dimensions()
                hint = f"; if tokens choose its rows, it is a table[{text(expression)}, ...]" if rows else ""
                size = self.dimensions.known(expression, f"parameter {name}", hint)
                dimensions.append(None if size is None else Dimension(text(expression), size))
        known = tuple(dimension for dimension in dimensions if dimension is not None)
        if len(known) != len(dimensions):
            return None
        running = declared.way == "running"
        if (running and len(known) - (kind == STACK) != 1) or (running and kind == TABLE):
            found = f"running param '{name}' is {'a table' if kind == TABLE else 'a matrix'}"
            self.report.error(f"{found}, expected a vector or a stack of vectors", declared.shape.span)
            return None
        start = initializer(declared, kind, known, self.report)
        rate, density = self._rate(declared), self._density(declared, kind, len(known))
        if start is None or rate is None or density is None:
            return None
        if density < 1 and start.is_zero:
            found = f"'{name}' begins as zeros, and with a density it stays so"
            self.report.error(f"{found}, expected another initializer", declared.name.span)
            return None
        frozen = declared.way == "frozen"
        return Parameter(name, kind, known, start, frozen, running, rate, density, declared.name.span)

    def _rate(self, declared: syntax.ParameterDeclaration) -> float | None:
        """A parameter's factor on the learning rate; None if it is wrong."""
        if declared.rate is None:
            return 1.0
        value, span = declared.rate.value, declared.rate.span
        if declared.way:
            self.report.error(f"'{declared.name}' is {declared.way} and has no learning rate", span)
            return None
        if not 0 < value <= LARGEST_RATE:
            hint = "; a parameter that is never updated is a frozen param" if value == 0 else ""
            found = f"found {value:g} as a factor on the learning rate"
            self.report.error(f"{found}, expected a number above 0, at most {LARGEST_RATE:g}{hint}", span)
            return None
        return value

    def _density(self, declared: syntax.ParameterDeclaration, kind: str, dimensions: int) -> float | None:
        """The share of a matrix's elements that are kept; None if it is wrong."""
        if declared.density is None:
            return 1.0
        value, span = declared.density.value, declared.density.span
        if kind != DENSE or dimensions != 2:
            found = f"a {kind}" if kind != DENSE else "a vector"
            self.report.error(f"'density' is for matrices, but '{declared.name}' is {found}", span)
            return None
        if not 0 < value <= 1:
            found = f"found {value!r} as the share of elements that are kept"
            self.report.error(f"{found}, expected a number above 0, at most 1", span)
            return None
        return value

    def _token_dimensions(self) -> set[str]:
        """The dimensions of tokens."""
        return {
            field.dimension.name
            for struct in self.structs.values()
            for arm in struct.arms
            for field in arm.fields
            if field.kind == TOKEN and field.dimension is not None
        }

    def _callable(self, declared: syntax.CallableDeclaration) -> None:
        if declared.keyword == "cell" and self._claim(declared.name, "a cell"):
            self.cells[declared.name.text] = declared
        elif declared.keyword == "fn" and self._claim(declared.name, "a function"):
            self.functions[declared.name.text] = declared

    def type(self, declared: syntax.TypeSyntax, user: str) -> Type | None:
        """The type an annotation stands for; None if it is wrong."""
        if isinstance(declared, syntax.ShapeType):
            shape = self.shape(declared, user)
            return None if shape is None else TensorType(shape)
        name = declared.name.text
        if name in self.states:
            return self.states[name]
        if name in self.structs:
            return Vertex(name, tuple(arm.name for arm in self.structs[name].arms))
        if name in self.dimensions.sizes:
            self.report.error(
                f"'{name}' is a dimension, expected a type; a vector of that size is [{name}]", declared.span
            )
            return None
        self.report.unknown("state or struct", name, (*self.states, *self.structs), declared.span)
        return None
