"""The syntax tree: what a program says, before any name is looked up.

All nodes are frozen and carry the span of the text they came from. Dimension expressions use the
nodes of value expressions; `dnc.frontend.dimensions` gives them their meaning.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import Span


@attrs.frozen
class Identifier:
    """A name (or an operator) where it stands."""

    text: str
    span: Span = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        return self.text


# ---- expressions -------------------------------------------------------------------------------


@attrs.frozen
class Number:
    """A literal; `text` as it was written."""

    text: str
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Name:
    """A use of a name as a value."""

    text: str
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Call:
    """`function(arguments)`: of a builtin, a cell or a function."""

    function: Identifier
    arguments: tuple[Expression, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Comprehension:
    """`reduction(bodies for variable in source)`."""

    reduction: Identifier
    bodies: tuple[Expression, ...]
    variable: Identifier
    source: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Member:
    """`base.name`: a field, a link or a component of a state."""

    base: Expression
    name: Identifier
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Lookup:
    """`base[index]`: a row of a table or a matrix, or an element of a vector."""

    base: Expression
    index: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Part:
    """`base[begin:end]`: elements of a vector or rows of a matrix; bounds are sizes, None where left out."""

    base: Expression
    begin: Expression | None
    end: Expression | None
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Negation:
    """`-operand`."""

    operand: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Binary:
    """`left operator right` with one of + - * / // @ ==."""

    operator: Identifier
    left: Expression
    right: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Fallback:
    """`value else instead`: the second where the first is called at an absent vertex."""

    value: Expression
    instead: Expression
    span: Span = attrs.field(eq=False, repr=False)


Expression = Number | Name | Call | Comprehension | Member | Lookup | Part | Negation | Binary | Fallback

# ---- types -------------------------------------------------------------------------------------


@attrs.frozen
class NamedType:
    """A state or a struct, by name."""

    name: Identifier
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class ShapeType:
    """`[d, ...]`, `[]` being a scalar."""

    dimensions: tuple[Expression, ...]
    span: Span = attrs.field(eq=False, repr=False)


TypeSyntax = NamedType | ShapeType

# ---- declarations ------------------------------------------------------------------------------


@attrs.frozen
class DimensionDeclaration:
    """`name` or `name = default` in the model line."""

    name: Identifier
    default: Expression | None


@attrs.frozen
class ModelDeclaration:
    """`model Name(dimensions)`."""

    name: Identifier
    dimensions: tuple[DimensionDeclaration, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class FieldDeclaration:
    """`name: kind`. form: "plain" (float or a struct), "indexed" (kind<dimension>), "optional" and
    "optional_indexed" (the same with ?), "list", or "values": a list of anything else than a name."""

    name: Identifier
    form: str
    kind: Identifier
    dimension: Expression | None = None


@attrs.frozen
class ArmDeclaration:
    """`Arm(fields)`."""

    name: Identifier
    fields: tuple[FieldDeclaration, ...]


@attrs.frozen
class StructDeclaration:
    """`struct Name = Arm | Arm`."""

    name: Identifier
    arms: tuple[ArmDeclaration, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class InitializerSyntax:
    """`kind(values)`."""

    kind: Identifier
    values: tuple[float, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class ParameterDeclaration:
    """`name: [shape] = initializer density share lr * rate`; `kind` is what stands before the shape (table)
    or None.

    way: how it changes: "" (trained), "frozen" or "running".
    """

    name: Identifier
    kind: Identifier | None
    shape: ShapeType
    initializer: InitializerSyntax | None
    way: str
    density: NumberSyntax | None
    rate: NumberSyntax | None


@attrs.frozen
class NumberSyntax:
    """A number behind a word: `density value`, `lr * value`."""

    value: float
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class ParametersDeclaration:
    """A `param` line."""

    parameters: tuple[ParameterDeclaration, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Typed:
    """`name: type`: a component of a state or an argument."""

    name: Identifier
    type: TypeSyntax


@attrs.frozen
class StateDeclaration:
    """`state Name = (components)`."""

    name: Identifier
    components: tuple[Typed, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Assignment:
    """`names = value`; several names take the pieces of a split."""

    names: tuple[Identifier, ...]
    value: Expression


@attrs.frozen
class Result:
    """An expression alone on the last line of a block: what the block returns."""

    value: Expression


@attrs.frozen
class Block:
    """The indented lines after `:`."""

    lines: tuple[Assignment | Result, ...]


@attrs.frozen
class MatchArm:
    """`Arm(binders) -> value`. `rest` is whether `...` stands among the binders."""

    name: Identifier
    binders: tuple[Identifier, ...]
    rest: bool
    value: Expression


@attrs.frozen
class Match:
    """`match subject:` and its arms."""

    subject: Identifier
    arms: tuple[MatchArm, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class CallableDeclaration:
    """A cell or a function (`keyword`): `name(arguments) -> result` and its body."""

    keyword: str
    name: Identifier
    arguments: tuple[Typed, ...]
    result: TypeSyntax | None
    body: Expression | Match | Block
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Domain:
    """`root`, `all(Struct)` or `all(Struct.Arm)`."""

    name: Identifier
    struct: Identifier | None
    arm: Identifier | None
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class Reduction:
    """`name(variable in domain)`."""

    name: Identifier
    variable: Identifier
    domain: Domain


@attrs.frozen
class LossDeclaration:
    """`loss weight * reduction value`."""

    weight: float
    reduction: Reduction
    value: Expression
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class MetricDeclaration:
    """`metric name = measure value`, or `measure value, value`; the measure has the form of a reduction."""

    name: Identifier
    reduction: Reduction
    values: tuple[Expression, ...]
    span: Span = attrs.field(eq=False, repr=False)


@attrs.frozen
class OutputItem:
    """`name = value`, or `name = [value for variable in domain]`."""

    name: Identifier
    value: Expression
    variable: Identifier | None = None
    domain: Domain | None = None


@attrs.frozen
class OutputDeclaration:
    """An `output` or a `push` line (`keyword`)."""

    keyword: str
    items: tuple[OutputItem, ...]
    span: Span = attrs.field(eq=False, repr=False)


Declaration = (
    ModelDeclaration
    | StructDeclaration
    | ParametersDeclaration
    | StateDeclaration
    | CallableDeclaration
    | LossDeclaration
    | MetricDeclaration
    | OutputDeclaration
)


@attrs.frozen
class Model:
    """A whole program, declaration by declaration."""

    declarations: tuple[Declaration, ...]
