"""Checks `match`: its arms against those of the struct, and what their patterns bind.

In: the syntax of a match and the struct. Out: per arm the names in scope and the value. Guaranteed:
every arm of the struct is there once, or an error says which is not.
"""

from __future__ import annotations

from dnc.frontend import syntax
from dnc.frontend.declarations import Declarations
from dnc.frontend.typed import Expression, Vertex, VertexUse
from dnc.frontend.vertices import field_use
from dnc.ir.structure import Arm


def match_arms(
    match: syntax.Match, declarations: Declarations, struct_name: str, variable: syntax.Identifier
) -> list[tuple[str, dict[str, Expression | None], syntax.Expression]]:
    """(arm, names in scope, value) for every well-named arm of the match."""
    report, struct = declarations.report, declarations.structs[struct_name]
    if match.subject.text != variable.text:
        report.unknown("vertex", match.subject.text, [variable.text], match.subject.span)
    known = {arm.name: arm for arm in struct.arms}
    found: dict[str, syntax.MatchArm] = {}
    result = []
    for declared in match.arms:
        name = declared.name.text
        if name not in known:
            report.unknown("arm", name, known, declared.name.span, f"'{struct_name}'")
            continue
        if name in found:
            before = found[name].name.span.line
            report.error(
                f"arm '{name}' stands twice in this match, first in line {before}", declared.name.span
            )
            continue
        found[name] = declared
        vertex = VertexUse((), Vertex(struct_name, (name,)), variable.span)
        names: dict[str, Expression | None] = {variable.text: vertex}
        names.update(_bind(declared, struct_name, known[name], declarations))
        result.append((name, names, declared.value))
    missing = [f"'{name}'" for name in known if name not in found]
    if missing and len(found) == len(match.arms):
        plural = "arms" if len(missing) > 1 else "arm"
        report.error(f"match lacks the {plural} {', '.join(missing)} of '{struct_name}'", match.span)
    return result


def _bind(
    declared: syntax.MatchArm, struct: str, arm: Arm, declarations: Declarations
) -> dict[str, Expression | None]:
    """The field variables of a pattern."""
    report = declarations.report
    names: dict[str, Expression | None] = {}
    skipped = 0
    known = [field.name for field in arm.fields]
    for binder in declared.binders:
        if binder.text == "_":
            skipped += 1
            continue
        field = arm.field(binder.text)
        if field is None:
            if (struct, binder.text) not in declarations.broken_fields:
                report.unknown("field", binder.text, known, binder.span, f"arm '{arm.name}'")
            names[binder.text] = None
        elif binder.text in names:
            report.error(f"field '{binder}' is named twice", binder.span)
        else:
            names[binder.text] = field_use(declarations, struct, field, (), binder.span)
            declarations.observer.name(binder, names[binder.text])
    missing = [name for name in known if name not in names]
    wrong = any(value is None for value in names.values())
    if not declared.rest and not wrong and len(missing) != skipped:
        if skipped > len(missing):
            report.error(
                f"arm '{arm.name}' has {len(known)} fields, found {len(names) + skipped}", declared.name.span
            )
        else:
            listed = ", ".join(f"'{name}'" for name in missing)
            report.error(
                f"the pattern of arm '{arm.name}' does not name {listed}, expected all fields or '...'",
                declared.name.span,
            )
    return names
