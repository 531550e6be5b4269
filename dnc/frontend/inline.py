"""Turns typed expressions into the cell of a stage.

In: checked expressions. Out: a `Stage`: its cell with cells inlined, and what its inputs are bound
to. Guaranteed: equal inputs and repeated calls of a function at one vertex become one input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnc.diagnostics import Diagnostic, DiagnosticError, Span
from dnc.frontend import typed
from dnc.frontend.calls import FOLLOW, GUMBEL
from dnc.frontend.sites import Sites
from dnc.frontend.typed import CheckedModel, Expression, ir_type
from dnc.ir import program as ir
from dnc.ir.builder import Builder
from dnc.ir.cell import Value
from dnc.ir.ops import OPS
from dnc.ir.program import Component, Stage
from dnc.ir.structure import Path, unless
from dnc.ir.types import INDEX, SCALAR, ListType, Type

Result = Value | dict[str, Value]
"""A tensor, or the components of a state."""


class StageBuilder:
    """Builds one stage; `value` and `components` may be called several times before `finish`.

    `sites` numbers the uses of random numbers in the whole program.
    """

    def __init__(self, model: CheckedModel, sites: Sites) -> None:
        self.model, self.sites = model, sites
        self.builder = Builder()
        self.bindings: dict[ir.Input, Value] = {}
        self.followed: list[tuple[ir.FollowOutput, Value, Span]] = []
        self.running = {parameter.name for parameter in model.parameters if parameter.running}

    def value(self, expression: Expression, name: str) -> Value:
        """The value of an expression that is no state; `name` is a hint."""
        result = self._emit(expression, {}, name)
        assert isinstance(result, Value)
        return result

    def components(self, body: Expression, components: tuple[Component, ...]) -> list[Value]:
        """The values of a function's body in the order of its components."""
        result = self._emit(body, {}, "value")
        return [result] if isinstance(result, Value) else [result[component.name] for component in components]

    def finish(
        self,
        name: str,
        function: str | None,
        results: Sequence[Value],
        outputs: tuple[ir.Output, ...],
        span: Span,
    ) -> Stage:
        """The stage `name` in the space of the same name."""
        cell = self.builder.finish([*results, *(value for _, value, _ in self.followed)])
        also = tuple(output for output, _, _ in self.followed)
        return Stage(name, name, function, tuple(self.bindings), cell, (*outputs, *also), span=span)

    def _input(self, binding: ir.Input, type: Type, name: str) -> Value:
        if binding not in self.bindings:
            self.bindings[binding] = self.builder.input(type, name)
        return self.bindings[binding]

    def _emit(self, expression: Expression, names: Mapping[str, Result], hint: str | None = None) -> Result:
        match expression:
            case typed.Constant():
                return self.builder.op(
                    "constant", name=hint, span=expression.span, value=expression.value, shape=()
                )
            case typed.Local():
                return names[expression.name]
            case typed.ParameterUse() | typed.TableRow() | typed.FieldUse():
                return self._leaf(expression)
            case typed.Noise(draws):
                return self._input(ir.NoiseInput(draws), INDEX, "draws" if draws else "noise")
            case typed.FunctionCall():
                return self._gather(expression)
            case typed.ComponentUse():
                base = self._emit(expression.base, names)
                assert isinstance(base, dict)
                return base[expression.name]
            case typed.Record():
                assert isinstance(expression.type, typed.State)
                fields = zip(expression.type.components, expression.components, strict=True)
                values = {component.name: self._emit(value, names) for component, value in fields}
                return {name: value for name, value in values.items() if isinstance(value, Value)}
            case typed.Let():
                scope = dict(names)
                for name, value in expression.assignments:
                    scope[name] = self._emit(value, scope, name.split(".")[0])
                return self._emit(expression.result, scope, hint)
            case typed.CellCall():
                cell = self.model.cells[expression.cell]
                values_in = [self._emit(argument, names) for argument in expression.arguments]
                scope = {name: value for (name, _), value in zip(cell.arguments, values_in, strict=True)}
                return self._emit(cell.body, scope, hint)
            case typed.Apply():
                operands = [self._emit(operand, names) for operand in expression.operands]
                values_only = [operand for operand in operands if isinstance(operand, Value)]
                attributes = dict(expression.attributes)
                if "site" in OPS[expression.opcode].attributes:
                    attributes["site"] = self._site(expression.opcode, values_only[0])
                return self.builder.op(
                    expression.opcode, *values_only, name=hint, span=expression.span, **attributes
                )
            case typed.Follow():
                return self._follow(expression, names)
            case typed.VertexUse():
                raise AssertionError("a vertex is no value")

    def _site(self, opcode: str, value: Value) -> int:
        """The number of random numbers that meet a value."""
        if opcode == GUMBEL:
            return self.sites.drawn_from(value, self.builder, self.bindings)
        return self.sites.new()

    def _follow(self, follow: typed.Follow, names: Mapping[str, Result]) -> Value:
        """The running parameter; what a row moves it by becomes a result of the stage."""
        statistic, value = (self._emit(each, names) for each in (follow.statistic, follow.value))
        assert isinstance(statistic, Value) and isinstance(value, Value)
        source = next((bound for bound, known in self.bindings.items() if known == statistic), None)
        if not isinstance(source, ir.ParameterInput) or source.parameter not in self.running:
            known = " or ".join(sorted(self.running)) or "running param m: [size]"
            found = f"'{FOLLOW}' moves {_source_text(source)}, expected a running param"
            raise DiagnosticError(Diagnostic(f"{found}: {known}", follow.statistic.span))
        share = self._input(ir.ShareInput(source.parameter, source.field), SCALAR, "share")
        build, span = self.builder, follow.span
        way = build.op("mul", build.op("sub", value, statistic, span=span), share, span=span)
        moved = build.op("scale", way, name="moved", span=span, factor=follow.rate)
        self.followed.append((ir.FollowOutput(source.parameter, source.field), moved, span))
        return statistic

    def _leaf(self, use: typed.ParameterUse | typed.TableRow | typed.FieldUse) -> Value:
        type = ir_type(use.type)
        assert type is not None
        if isinstance(use, typed.ParameterUse):
            name = f"{use.name}_{use.field}" if use.field else use.name
            return self._input(ir.ParameterInput(use.name, use.field), type, name)
        where = "_".join((*use.path, use.field))
        if isinstance(use, typed.TableRow):
            binding = ir.TableInput(use.parameter, use.field, use.path)
            return self._input(binding, type, f"{use.parameter}_{where}")
        return self._input(ir.FieldInput(use.field, use.path), type, where)

    def _gather(self, call: typed.FunctionCall) -> Result:
        """The components of a function at a vertex, each an input."""
        components = self.model.functions[call.function].components
        if not isinstance(call.type, typed.State):
            return self.state_input(call, components[0])
        return LazyState(self, call)

    def state_input(self, call: typed.FunctionCall, component: Component) -> Value:
        """The component at the call's vertex, or what stands for it where that is absent.

        Only one of them is there for any row, and the others read zeros: their sum is that one.
        """
        found, before = self._read(call, component, ()), call
        absent: Path = ()
        while (instead := before.instead) is not None:
            absent = (*absent, unless(before.path))
            found = self.builder.op("add", found, self._read(instead, component, absent), span=call.span)
            before = instead
        return found

    def _read(self, call: typed.FunctionCall, component: Component, absent: Path) -> Value:
        """The component at the call's path, from rows where nothing is at the paths in `absent`."""
        binding = ir.StateInput(call.function, component.name, (*absent, *call.path), call.is_list)
        type: Type = ListType(component.type) if call.is_list else component.type
        parts = (call.function, *call.path, *(() if component.name == "value" else (component.name,)))
        return self._input(binding, type, "_".join(parts).replace(" ", "_"))


def _source_text(source: ir.Input | None) -> str:
    """What a value is, for a mistake."""
    if isinstance(source, ir.ParameterInput):
        return f"'{source.parameter}', which is trained or frozen"
    return "a computed value" if source is None else "no parameter"


class LazyState(dict[str, Value]):
    """The components of a called function; one that is not used becomes no input."""

    def __init__(self, stage: StageBuilder, call: typed.FunctionCall) -> None:
        super().__init__()
        self.stage, self.call = stage, call

    def __missing__(self, name: str) -> Value:
        assert isinstance(self.call.type, typed.State)
        component = self.call.type.component(name)
        assert component is not None
        self[name] = self.stage.state_input(self.call, component)
        return self[name]
