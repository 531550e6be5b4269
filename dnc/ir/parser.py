"""Reads textual IR, as `dnc.ir.printer` writes it.

In: a text. Out: a `Cell` or a `Program`, every operation and stage with its place in the text.
Guaranteed: equal to what was printed; a mistake is a diagnostic at its line and column. Shapes are
checked by the verifier, not here.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Source
from dnc.ir.cell import Attribute, Cell, Op, Value
from dnc.ir.lexer import Cursor
from dnc.ir.measures import MEASURES
from dnc.ir.ops import OPS
from dnc.ir.program import (
    ALL,
    BACKWARD,
    DENSE,
    EARLY,
    FORWARD,
    LATE,
    LEVEL,
    ROOT,
    STACK,
    TABLE,
    Component,
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    Function,
    GradientInput,
    Initializer,
    Input,
    LossOutput,
    MetricOutput,
    NoiseInput,
    Output,
    Parameter,
    ParameterInput,
    Program,
    PulledGradientOutput,
    SavedInput,
    SavedOutput,
    SeedInput,
    ShareInput,
    SlotOutput,
    Space,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
    TableSlotOutput,
    WeightGradient,
)
from dnc.ir.structure import (
    CHILD,
    CLASS,
    LIST,
    NUMBERED_KINDS,
    OPTIONAL,
    OUTSIDE,
    TOKEN,
    VECTOR,
    Arm,
    Dimension,
    Field,
    Path,
    Struct,
)

INPUTS = (
    *("parameter", "selected", "table", "field", "state", "states"),
    *("saved", "gradient", "seed", "noise", "draws", "share"),
)
DECLARATIONS = (
    *("dimension", "struct", "root", "frozen", "running", "parameter"),
    *("function", "space", "stage", "weight_gradient"),
)
OUTPUTS = (
    *("state", "saved", "slot", "slots", "table", "loss"),
    *("metric", "output", "pushed", "pulled", "follow"),
)


def parse_cell(text: str, name: str = "<cell>") -> Cell:
    """A cell on its own; DiagnosticError where the text is wrong."""
    reader = _Reader(Source(name, text))
    cell = reader.cell()
    reader.end()
    return cell


def parse_program(text: str, name: str = "<program>") -> Program:
    """A whole program; DiagnosticError where the text is wrong."""
    reader = _Reader(Source(name, text))
    program = reader.program()
    reader.end()
    return program


class _Reader(Cursor):
    """One method per construct."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.values: dict[str, Value] = {}

    def end(self) -> None:
        if self.token.kind != "end":
            raise self.fail("the end of the text")

    # ---- cells -----------------------------------------------------------------------------

    def new_value(self) -> Value:
        """`%name: type`, seen for the first time."""
        token = self.kind("value", "a value such as %x")
        self.expect(":")
        value = Value(token.text[1:], self.type())
        if value.name in self.values:
            raise DiagnosticError(Diagnostic(f"{token.text} is defined twice", token.span))
        self.values[value.name] = value
        return value

    def value(self) -> Value:
        """`%name`, defined above."""
        token = self.kind("value", "a value such as %x")
        if token.text[1:] not in self.values:
            raise DiagnosticError(Diagnostic(f"{token.text} is not defined above", token.span))
        return self.values[token.text[1:]]

    def op(self) -> Op:
        """`%r: type = opcode(%a, ...) {key = value, ...}`."""
        start = self.token.span
        name = self.kind("value", "a value such as %x").text
        self.expect(":")
        type = self.type()
        self.expect("=")
        opcode = self.kind("name", "an operation")
        if opcode.text not in OPS:
            raise DiagnosticError(Diagnostic(f"unknown operation '{opcode.text}'", opcode.span))
        operands = self.items("(", self.value, ")")
        attributes = self.items("{", self.attribute_pair, "}") if self.at("{") else ()
        if name[1:] in self.values:
            raise DiagnosticError(Diagnostic(f"{name} is defined twice", start))
        result = self.values[name[1:]] = Value(name[1:], type)
        return Op(opcode.text, operands, result, attributes, start)

    def attribute_pair(self) -> tuple[str, Attribute]:
        key = self.name()
        self.expect("=")
        return key, self.attribute()

    def cell(self) -> Cell:
        self.values = {}
        self.expect("cell")
        inputs = self.items("(", self.new_value, ")")
        self.expect("{")
        ops = []
        while self.token.kind == "value":
            ops.append(self.op())
        self.expect("return")
        results: list[Value] = []
        while not self.at("}"):
            if results:
                self.expect(",")
            results.append(self.value())
        self.expect("}")
        return Cell(inputs, tuple(ops), tuple(results))

    # ---- stages ----------------------------------------------------------------------------

    def path(self) -> Path:
        self.expect("at")
        return self.items("(", self.name, ")")

    def input(self) -> Input:
        match self.choice(*INPUTS):
            case "parameter":
                return ParameterInput(self.name())
            case "selected":
                return ParameterInput(self.name(), self.name())
            case "table":
                return TableInput(self.name(), self.name(), self.path())
            case "field":
                return FieldInput(self.name(), self.path())
            case "state":
                return StateInput(self.name(), self.name(), self.path())
            case "states":
                return StateInput(self.name(), self.name(), self.path(), True)
            case "saved":
                return SavedInput(self.name(), self.name())
            case "gradient":
                return GradientInput(self.name(), self.name())
            case "noise":
                return NoiseInput()
            case "draws":
                return NoiseInput(draws=True)
            case "share":
                return ShareInput(self.name(), self.selector())
            case _:
                return SeedInput()

    def output(self) -> Output:
        match self.choice(*OUTPUTS):
            case "state":
                return StateOutput(self.name())
            case "saved":
                return SavedOutput(self.name())
            case "slot":
                return SlotOutput(self.name(), self.name(), self.path())
            case "slots":
                return SlotOutput(self.name(), self.name(), self.path(), True)
            case "table":
                return TableSlotOutput(self.name(), self.name(), self.path())
            case "metric":
                metric, measure, position = self.name(), self.choice(*MEASURES), self.integer()
                known = []
                while self.take("where"):
                    known.append((self.name(), self.path()))
                return MetricOutput(metric, measure, position, tuple(known))
            case "output":
                return DeclaredOutput(self.name())
            case "pushed":
                return DeclaredOutput(self.name(), self.name())
            case "pulled":
                return PulledGradientOutput(self.name())
            case "follow":
                return FollowOutput(self.name(), self.selector())
            case _:
                return LossOutput()

    def stage(self) -> Stage:
        self.values = {}
        span = self.token.span
        name = self.name()
        self.expect("over")
        space = self.name()
        function = self.name() if self.take("of") else None
        placement = self.choice(EARLY, LEVEL, LATE)
        stratum = self.integer() if self.token.kind == "number" else 0
        direction = self.choice(FORWARD, BACKWARD)
        self.expect("{")
        inputs, sources = [], []
        while self.take("input"):
            inputs.append(self.new_value())
            self.expect("=")
            sources.append(self.input())
        ops = []
        while self.token.kind == "value":
            ops.append(self.op())
        outputs, results = [], []
        while not self.take("}"):
            outputs.append(self.output())
            self.expect("=")
            results.append(self.value())
        cell = Cell(tuple(inputs), tuple(ops), tuple(results))
        bound, when = (tuple(sources), cell, tuple(outputs)), (placement, direction, stratum)
        return Stage(name, space, function, *bound, *when, span)

    # ---- declarations ----------------------------------------------------------------------

    def dimension(self) -> Dimension:
        name = self.name()
        self.expect("=")
        return Dimension(name, None if self.take("open") else self.integer())

    def field(self) -> Field:
        span = self.token.span
        name = self.name()
        self.expect(":")
        kind = self.choice(*NUMBERED_KINDS, VECTOR, OUTSIDE, CHILD, OPTIONAL, LIST)
        self.expect("<")
        field = Field(name, kind, span=span)
        if kind in NUMBERED_KINDS:
            field = attrs.evolve(field, dimension=self.dimension())
        elif kind == OUTSIDE:
            field = attrs.evolve(field, width=self.integer())
        elif kind == VECTOR:
            field = attrs.evolve(field, width=self.integer())
            if self.take(","):
                field = attrs.evolve(field, dimension=self.dimension())
        else:
            field = attrs.evolve(field, target=self.name())
        self.expect(">")
        if kind in (TOKEN, CLASS) and self.take("?"):
            field = attrs.evolve(field, may_miss=True)
        return field

    def struct(self) -> Struct:
        span = self.token.span
        name, arms = self.name(), []
        self.expect("{")
        while not self.take("}"):
            arms.append(Arm(self.name(), self.items("(", self.field, ")")))
        return Struct(name, tuple(arms), span)

    def parameter(self) -> Parameter:
        span = self.token.span
        name = self.name()
        self.expect(":")
        kind = self.choice(DENSE, TABLE, STACK)
        dimensions = self.items("[", self.dimension, "]")
        self.expect("=")
        start = self.name()
        value, *pieces = self.items("(", self.real, ")") or (0.0,)
        density = self.real() if self.take("density") else 1.0
        rate = self.real() if self.take("rate") else 1.0
        initializer = Initializer(start, value, tuple(pieces))
        return Parameter(name, kind, dimensions, initializer, rate=rate, density=density, span=span)

    def function(self) -> Function:
        span = self.token.span
        name = self.name()
        self.expect("(")
        struct = self.name()
        self.expect(")")
        self.expect("->")
        return Function(name, struct, self.items("(", self.component, ")"), span)

    def component(self) -> Component:
        name = self.name()
        self.expect(":")
        return Component(name, self.tensor())

    def space(self) -> Space:
        name = self.name()
        self.expect("=")
        return Space(name, self.name(), self.items("(", self.name, ")"), self.choice(ALL, ROOT))

    def weight_gradient(self) -> WeightGradient:
        parameter = self.name()
        self.expect("over")
        space = self.name()
        selector = self.selector()
        self.expect("=")
        self.expect("saved")
        stage, delta = self.name(), self.name()
        self.expect("x")
        return WeightGradient(parameter, space, stage, delta, self.items("(", self.piece, ")"), selector)

    def selector(self) -> str:
        return self.name() if self.take("by") else ""

    def piece(self) -> tuple[Input, int, int]:
        source = self.input()
        self.expect("[")
        begin = self.integer()
        self.expect(":")
        end = self.integer()
        self.expect("]")
        return source, begin, end

    def program(self) -> Program:
        self.expect("program")
        name, root = self.name(), ""
        dimensions: list[Dimension] = []
        structs: list[Struct] = []
        parameters: list[Parameter] = []
        functions: list[Function] = []
        spaces: list[Space] = []
        stages: list[Stage] = []
        pairs: list[WeightGradient] = []
        while self.token.kind != "end":
            match self.choice(
                "dimension",
                "struct",
                "root",
                "frozen",
                "running",
                "parameter",
                "function",
                "space",
                "stage",
                "weight_gradient",
            ):
                case "dimension":
                    dimensions.append(self.dimension())
                case "struct":
                    structs.append(self.struct())
                case "root":
                    root = self.name()
                case "frozen":
                    self.expect("parameter")
                    parameters.append(attrs.evolve(self.parameter(), frozen=True))
                case "running":
                    self.expect("parameter")
                    parameters.append(attrs.evolve(self.parameter(), running=True))
                case "parameter":
                    parameters.append(self.parameter())
                case "function":
                    functions.append(self.function())
                case "space":
                    spaces.append(self.space())
                case "stage":
                    stages.append(self.stage())
                case "weight_gradient":
                    pairs.append(self.weight_gradient())
        return Program(
            name,
            tuple(dimensions),
            tuple(structs),
            root,
            tuple(parameters),
            tuple(functions),
            tuple(spaces),
            tuple(stages),
            tuple(pairs),
        )
