"""What may stand at a place of a half-written program.

In: a text and a place in it. Out: the names and words that fit there, with signatures. The place is filled
with a name, and what is missing behind it with the shortest form that can be read; the checker then says
what is in scope, or what lies before a dot. Guaranteed: no text makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from dnc.diagnostics import Source
from dnc.editing import builtins, texts
from dnc.editing.analysis import NONE, Analysis, Settings, analyze
from dnc.editing.builtins import Builtin
from dnc.editing.hover import signature
from dnc.editing.symbols import Symbol
from dnc.frontend import syntax, typed
from dnc.frontend.declarations import Declarations
from dnc.frontend.parser import accepted_behind, begins_declaration, parse_partly
from dnc.frontend.syntax_walk import children
from dnc.ir.forest import holders, parent_struct
from dnc.ir.structure import FIRST, LAST, LIST, NEXT, PARENT, PREVIOUS

PLACE = "completed__here"
CLOSING = {"(": ")", "[": "]", "<": ">"}
TAILS = ("", " 0", " = 0", " -> 0", "(t in root) 0", "[1]", ":\n    A -> 0", ": [1]")
"""What may complete a declaration that ends with a name and closed brackets."""

_WORD = re.compile(r"[A-Za-z_0-9]*$")


@attrs.frozen
class Completion:
    """A name or word. kind: as of `Symbol`, or "keyword"; detail: its type or signature."""

    text: str
    kind: str
    detail: str = ""
    meaning: str = ""


def complete(text: str, line: int, column: int, settings: Settings = NONE) -> list[Completion]:
    """What fits at a place, counted from 1; each text once."""
    lines = text.split("\n")
    if not 0 < line <= len(lines) or "#" in lines[line - 1][: column - 1]:
        return []
    row = lines[line - 1]
    written = row[: column - 1]
    prefix = _WORD.search(written)
    assert prefix is not None
    before, behind = written[: prefix.start()], re.sub(r"^[A-Za-z_0-9]+", "", row[column - 1 :])
    found: dict[str, Completion] = {}
    if not before:
        found |= {word: _builtin(word, "keyword", each) for word, each in builtins.DECLARATIONS.items()}
    if prefix[0][:1].isdigit():
        return []
    filled = _filled(lines, line - 1, before, behind)
    if filled is not None:
        analysis = analyze(Source("", filled), settings)
        for path in _places(analysis.model, ()):
            for each in _fitting(analysis, path):
                found.setdefault(each.text, each)
    start = _first_row(lines, line - 1)
    if before.strip():
        for word in accepted_behind("\n".join([*lines[start : line - 1], before])):
            found.setdefault(word, Completion(word, "keyword"))
    return list(found.values())


# ---- the place ------------------------------------------------------------------------------------


def _first_row(lines: list[str], row: int) -> int:
    """Where the declaration around a row begins."""
    return next((at for at in range(row, -1, -1) if begins_declaration(lines[at])), 0)


def _filled(lines: list[str], row: int, before: str, behind: str) -> str | None:
    """The program with a name at the place, in the form closest to the text that can be read."""
    start = _first_row(lines, row)
    end = next((at for at in range(row + 1, len(lines)) if begins_declaration(lines[at])), len(lines))
    head = [*lines[start:row], before + PLACE]
    closers = _closers("\n".join(head))
    candidates = [[*head[:-1], before + PLACE + behind, *lines[row + 1 : end]]]
    for rest in (lines[row + 1 : end], []):
        candidates += [[*head[:-1], f"{head[-1]}{closers}{tail}", *rest] for tail in TAILS]
    for candidate in candidates:
        declaration = "\n".join(candidate)
        _, errors = parse_partly(Source("", declaration))
        if not errors:
            return "\n".join([*lines[:start], declaration, *lines[end:]])
    return None


def _closers(text: str) -> str:
    """What closes the brackets that are open at the end of a text."""
    opened: list[str] = []
    for character in re.sub(r"#[^\n]*|->", "", text):
        if character in CLOSING:
            opened.append(character)
        elif opened and character == CLOSING[opened[-1]]:
            opened.pop()
    return "".join(CLOSING[each] for each in reversed(opened))


def _places(node: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The paths from the program to the names that fill the place."""
    todo = [(node, above)]
    while todo:
        each, path = todo.pop()
        here = (*path, each)
        if isinstance(each, syntax.Identifier | syntax.Name) and each.text == PLACE:
            yield here
        todo += [(child, here) for child in children(each)]


# ---- what fits ------------------------------------------------------------------------------------


def _fitting(analysis: Analysis, path: tuple[Any, ...]) -> Iterator[Completion]:
    if analysis.examined is None:
        return
    known = analysis.examined.declarations
    declared, parent, place = path[1], path[-2], path[-1]
    match parent:
        case syntax.Member() if parent.name is place:
            yield from _members(known, analysis.type_of(parent.base))
        case syntax.NamedType():
            yield from _states(known)
            yield from _structs(known)
        case syntax.FieldDeclaration() if parent.kind is place:
            yield from _table(builtins.KINDS, "kind")
            yield from _structs(known)
        case syntax.ParameterDeclaration() if parent.kind is place:
            yield from _table(builtins.PARAMETER_KINDS, "kind")
        case syntax.InitializerSyntax():
            yield from _table(builtins.INITIALIZERS, "initializer")
        case syntax.Domain():
            if parent.name is place:
                yield from _table(builtins.DOMAINS, "domain")
            elif parent.struct is place:
                yield from _structs(known)
            elif parent.struct is not None and parent.struct.text in known.structs:
                for arm in known.structs[parent.struct.text].arms:
                    yield Completion(arm.name, "arm", texts.arm(arm))
        case syntax.Reduction() if parent.name is place:
            loss = isinstance(declared, syntax.LossDeclaration)
            yield from _table({n: b for n, b in builtins.MEASURES.items() if (n == "sum") == loss}, "measure")
        case syntax.Comprehension() if parent.reduction is place:
            yield from _table(builtins.REDUCTIONS, "reduction")
        case syntax.MatchArm():
            yield from _pattern(known, declared, parent, place)
        case syntax.Match():
            yield from (Completion(each.name.text, "local") for each in declared.arguments)
        case syntax.Call() if parent.function is place:
            yield from _callables(analysis, declared)
        case _ if isinstance(place, syntax.Name):
            shapes = (syntax.ShapeType, syntax.FieldDeclaration, syntax.DimensionDeclaration)
            if any(isinstance(each, shapes) for each in path):
                yield from _dimensions(known)
            else:
                yield from _values(analysis, declared, place)


def _values(analysis: Analysis, declared: Any, place: syntax.Name) -> Iterator[Completion]:
    assert analysis.examined is not None
    seen = analysis.seen(place)
    for name, found in (seen.names if seen else {}).items():
        yield Completion(name, "local", texts.type_text(found.type) if found is not None else "")
    for name, parameter in analysis.examined.declarations.parameters.items():
        detail = texts.both(texts.shape(parameter.dimensions)) if parameter is not None else ""
        yield Completion(name, "parameter", detail)
    yield from _callables(analysis, declared)


def _callables(analysis: Analysis, declared: Any) -> Iterator[Completion]:
    assert analysis.examined is not None
    known = analysis.examined.declarations
    in_cell = isinstance(declared, syntax.CallableDeclaration) and declared.keyword == "cell"
    for kind, names in (("cell", known.cells), ("function", {} if in_cell else known.functions)):
        for name in names:
            lines = signature(analysis, Symbol(kind, name))
            yield Completion(name, kind, lines[0] if lines else "")
    yield from _table(builtins.FUNCTIONS, "builtin")
    if not in_cell:
        yield from _table(builtins.REDUCTIONS, "reduction")


def _members(known: Declarations, type: typed.Type | None) -> Iterator[Completion]:
    """What may stand behind a dot."""
    match type:
        case typed.State():
            for component in type.components:
                shape = texts.both(texts.shape(component.type.shape))
                yield Completion(component.name, "component", shape)
        case typed.Vertex():
            arms = [arm for arm in known.structs[type.struct].arms if arm.name in type.arms]
            for field in arms[0].fields if arms else ():
                if all(arm.field(field.name) for arm in arms):
                    yield Completion(field.name, "field", texts.field(field))
            for link in _links(known, type.struct):
                yield _builtin(link, "link", builtins.LINKS[link])
        case typed.VertexList():
            for link in (FIRST, LAST):
                yield _builtin(link, "link", builtins.LINKS[link])
        case _:
            pass


def _links(known: Declarations, struct: str) -> Iterator[str]:
    """The links that vertices of a struct have."""
    if LIST in [kind for _, kind in holders(known.structs, struct)]:
        yield from (PREVIOUS, NEXT)
    if parent_struct(known.structs, struct) is not None:
        yield PARENT


def _pattern(
    known: Declarations, declared: syntax.CallableDeclaration, arm: syntax.MatchArm, place: Any
) -> Iterator[Completion]:
    """Arms and fields in a match."""
    types = [each.type for each in declared.arguments if isinstance(each.type, syntax.NamedType)]
    struct = known.structs.get(types[0].name.text) if types else None
    if struct is None:
        return
    if arm.name is place:
        assert isinstance(declared.body, syntax.Match)
        used = {each.name.text for each in declared.body.arms}
        yield from (
            Completion(each.name, "arm", texts.arm(each)) for each in struct.arms if each.name not in used
        )
        return
    for each in struct.arms:
        if each.name == arm.name.text:
            bound = {binder.text for binder in arm.binders}
            for field in each.fields:
                if field.name not in bound:
                    yield Completion(field.name, "field", texts.field(field))


def _dimensions(known: Declarations) -> Iterator[Completion]:
    for name, size in known.dimensions.sizes.items():
        yield Completion(name, "dimension", "open" if size is None else str(size))


def _states(known: Declarations) -> Iterator[Completion]:
    for name, state in known.states.items():
        yield Completion(name, "state", "" if state is None else ", ".join(texts.components(state)))


def _structs(known: Declarations) -> Iterator[Completion]:
    for name, struct in known.structs.items():
        yield Completion(name, "struct", " | ".join(texts.arm(arm) for arm in struct.arms))


def _table(entries: Mapping[str, Builtin], kind: str) -> Iterator[Completion]:
    return (_builtin(name, kind, builtin) for name, builtin in entries.items())


def _builtin(name: str, kind: str, builtin: Builtin) -> Completion:
    return Completion(name, kind, builtin.signature, builtin.meaning)
