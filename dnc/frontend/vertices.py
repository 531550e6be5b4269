"""Steps over the structure: fields, links and data of vertices.

In: a vertex or a list at a path, and a name after a dot. Out: the typed use of what lies there.
Guaranteed: a field exists in every arm that the vertex may be.
"""

from __future__ import annotations

from dnc.diagnostics import Span
from dnc.frontend.declarations import Declarations
from dnc.frontend.syntax import Identifier
from dnc.frontend.typed import (
    Expression,
    FieldUse,
    Function,
    FunctionCall,
    Index,
    Type,
    Vertex,
    VertexList,
    VertexUse,
)
from dnc.ir.forest import holders, parent_struct
from dnc.ir.structure import (
    FIRST,
    LAST,
    LIST,
    NEXT,
    NUMBERED_KINDS,
    OUTSIDE,
    PARENT,
    PREVIOUS,
    Field,
    Path,
)
from dnc.ir.types import TensorType


def whole(declarations: Declarations, struct: str) -> Vertex:
    """A vertex of `struct` of which nothing more is known."""
    return Vertex(struct, tuple(arm.name for arm in declarations.structs[struct].arms))


def step(declarations: Declarations, base: VertexUse, name: Identifier, span: Span) -> Expression | None:
    """`base.name`; None (and an error) where that does not exist."""
    if isinstance(base.type, VertexList):
        if name.text in (FIRST, LAST):
            return VertexUse((*base.path, name.text), whole(declarations, base.type.struct), span)
        declarations.report.error(
            f"found '.{name}' of {base.type}, expected .first, .last, or sum(f(x) for x in ...)", name.span
        )
        return None
    assert isinstance(base.type, Vertex)
    if name.text in (PREVIOUS, NEXT, PARENT):
        return _link(declarations, base, base.type, name, span)
    field = _field(declarations, base.type, name)
    return None if field is None else field_use(declarations, base.type.struct, field, base.path, span)


def field_use(declarations: Declarations, struct: str, field: Field, path: Path, span: Span) -> Expression:
    """The value or the vertex in `field` of the vertex at `path`, which is of `struct`."""
    if field.target is not None:
        kind: Type = whole(declarations, field.target)
        if field.kind == LIST:
            kind = VertexList(field.target)
        return VertexUse((*path, field.name), kind, span)
    if field.kind in NUMBERED_KINDS:
        assert field.dimension is not None
        return FieldUse(field.name, path, Index(field.kind, field.dimension), span)
    shape = TensorType((field.width,) if field.width else ())
    if field.kind == OUTSIDE:
        return FunctionCall(pull_name(struct, field), path, shape, span)
    return FieldUse(field.name, path, shape, span)


def pull_name(struct: str, field: Field) -> str:
    """The function that stands for a pulled field, so that its gradient is added up as that of any."""
    return f"pull {struct}.{field.name}"


def pulls(declarations: Declarations) -> dict[str, Function]:
    """A function for every pulled field: its value at the vertex itself."""
    found = {}
    for struct in declarations.structs.values():
        for field in struct.fields.values():
            if field.kind == OUTSIDE and field.span is not None:
                type = TensorType((field.width,))
                value = FieldUse(field.name, (), type, field.span)
                bodies = tuple((arm.name, value) for arm in struct.arms if arm.field(field.name))
                name = pull_name(struct.name, field)
                found[name] = Function(name, struct.name, type, True, bodies, field.span, implicit=True)
    return found


def _link(
    declarations: Declarations, base: VertexUse, vertex: Vertex, name: Identifier, span: Span
) -> Expression | None:
    """prev and next need a list of the struct; parent needs one struct that refers to it."""
    if name.text not in _links(declarations, vertex.struct) and declarations.broken_fields:
        return None  # the field that would make it a child was reported
    if name.text == PARENT:
        above = parent_struct(declarations.structs, vertex.struct)
        if above is not None:
            return VertexUse((*base.path, PARENT), whole(declarations, above), span)
        above_it = dict.fromkeys(holder for holder, _ in holders(declarations.structs, vertex.struct))
        found = f"{' and '.join(above_it)} refer to it" if above_it else "no struct refers to it"
        declarations.report.error(f"'{vertex.struct}' has no parent: {found}, expected one struct", name.span)
        return None
    if name.text not in _links(declarations, vertex.struct):
        declarations.report.error(
            f"'{vertex.struct}' has no {name}: its vertices are in no list [{vertex.struct}]", name.span
        )
        return None
    return VertexUse((*base.path, name.text), whole(declarations, vertex.struct), span)


def _links(declarations: Declarations, struct: str) -> tuple[str, ...]:
    """The links that vertices of `struct` have."""
    parent = (PARENT,) if parent_struct(declarations.structs, struct) is not None else ()
    kinds = [kind for _, kind in holders(declarations.structs, struct)]
    return (PREVIOUS, NEXT, *parent) if LIST in kinds else parent


def _field(declarations: Declarations, vertex: Vertex, name: Identifier) -> Field | None:
    """The field `name`, which every possible arm of `vertex` must have."""
    struct = declarations.structs[vertex.struct]
    arms = [arm for arm in struct.arms if arm.name in vertex.arms]
    found = [arm.field(name.text) for arm in arms]
    if found and all(field is not None for field in found):
        return found[0]
    if (struct.name, name.text) in declarations.broken_fields:
        return None
    if any(field is not None for field in found):
        lacking = next(arm.name for arm, field in zip(arms, found, strict=True) if field is None)
        declarations.report.error(
            f"arm '{lacking}' of '{struct.name}' has no field '{name}', expected it in every arm",
            name.span,
            "read it in a match arm, or range over all(Struct.Arm)",
        )
        return None
    owner = f"'{struct.name}'" if len(arms) != 1 else f"'{arms[0].name}'"
    known = [field.name for arm in arms for field in arm.fields] + list(_links(declarations, struct.name))
    declarations.report.unknown("field", name.text, known, name.span, owner)
    return None
