"""What an editor shows for a place of a program.

In: an `Analysis` and a place. Out: Markdown: the declaration of the name there, or the type of the smallest
expression around it, with its shape in dimensions and in numbers; None where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from dnc.diagnostics import Span
from dnc.editing import builtins, texts
from dnc.editing.analysis import Analysis, covers
from dnc.editing.builtins import Builtin
from dnc.editing.symbols import Occurrence, Symbol, occurrences
from dnc.frontend import syntax, typed
from dnc.frontend.syntax_walk import walk

TABLES: Mapping[str, Mapping[str, Builtin]] = {
    "builtin": builtins.FUNCTIONS,
    "reduction": builtins.REDUCTIONS,
    "measure": builtins.MEASURES,
    "initializer": builtins.INITIALIZERS,
    "link": builtins.LINKS,
    "kind": {**builtins.KINDS, **builtins.PARAMETER_KINDS},
    "domain": builtins.DOMAINS,
}


@attrs.frozen
class Hover:
    """What is shown, and the text that it is about."""

    markdown: str
    span: Span


def hover_at(analysis: Analysis, line: int, column: int) -> Hover | None:
    """What is known at a place, counted from 1."""
    occurrence = occurrence_at(analysis, line, column)
    if occurrence is not None:
        lines = describe(analysis, occurrence)
        found = [_code("\n".join(lines[:1])), *lines[1:]] if lines else []
        value = _value_type(analysis, occurrence)
        if value and lines:
            found.append(_code(value))
        return Hover("\n\n".join(found), occurrence.span) if found else None
    return _expression(analysis, line, column)


def occurrence_at(analysis: Analysis, line: int, column: int) -> Occurrence | None:
    """The name at a place; of two names side by side the one that begins there."""
    found = [each for each in occurrences(analysis) if covers(each.span, line, column)]
    return found[-1] if found else None


def describe(analysis: Analysis, occurrence: Occurrence) -> list[str]:
    """The declaration of a symbol, and remarks on it; empty where nothing is known."""
    symbol = occurrence.symbol
    if symbol.kind in TABLES:
        builtin = TABLES[symbol.kind].get(symbol.name)
        return [builtin.signature, builtin.meaning] if builtin else []
    if analysis.examined is None:
        return []
    known = analysis.examined.declarations
    match symbol.kind:
        case "dimension":
            if symbol.name not in known.dimensions.sizes:
                return []
            size = known.dimensions.sizes[symbol.name]
            if size is None:
                return [symbol.name, "an open dimension: known when the data are seen, or with `--set`"]
            return [f"{symbol.name} = {size}", "a dimension; `--set` replaces its size"]
        case "struct":
            return [texts.struct(known.structs[symbol.name])] if symbol.name in known.structs else []
        case "arm" | "field":
            return list(_of_struct(analysis, symbol))
        case "parameter":
            parameter = known.parameters.get(symbol.name)
            return [] if parameter is None else list(texts.parameter(parameter))
        case "state":
            state = known.states.get(symbol.name)
            return [] if state is None else [f"state {texts.type_text(state)}"]
        case "component":
            owner = known.states.get(symbol.owner)
            component = owner.component(symbol.name) if owner else None
            if component is None:
                return []
            type = texts.both(texts.shape(component.type.shape))
            return [f"{symbol.name}: {type}", f"a component of the state {symbol.owner}"]
        case "cell" | "function":
            return signature(analysis, symbol)
        case "local":
            found = _local(analysis, occurrence)
            return [] if found is None else [f"{symbol.name}: {texts.type_text(found)}"]
        case "model":
            sizes = known.dimensions.sizes.items()
            shown = ", ".join(name if size is None else f"{name} = {size}" for name, size in sizes)
            return [f"model {symbol.name}({shown})"]
        case "metric" | "output":
            return [f"{symbol.kind} {symbol.name}"]
    return []


def signature(analysis: Analysis, symbol: Symbol) -> list[str]:
    """What a cell or a function takes and returns, in dimensions and in numbers."""
    assert analysis.examined is not None
    declared = next(
        (
            each
            for each in analysis.model.declarations
            if isinstance(each, syntax.CallableDeclaration) and each.name.text == symbol.name
        ),
        None,
    )
    if declared is None:
        return []
    taken = []
    for argument in declared.arguments:
        found = analysis.recorder.names.get(id(argument.name))
        taken.append(f"{argument.name}: {texts.short(found.type) if found is not None else '?'}")
    checked = analysis.examined.cells.get(symbol.name) or analysis.examined.functions.get(symbol.name)
    returned = f" -> {texts.short(checked.result)}" if checked is not None else ""
    lines = [f"{declared.keyword} {symbol.name}({', '.join(taken)}){returned}"]
    if checked is not None and not isinstance(checked.result, typed.State):
        numbers = texts.type_text(checked.result)
        if numbers != texts.short(checked.result):
            lines.append(f"returns {numbers}")
    return lines


def _of_struct(analysis: Analysis, symbol: Symbol) -> Iterator[str]:
    assert analysis.examined is not None
    struct = analysis.examined.declarations.structs.get(symbol.owner)
    if struct is None:
        return
    if symbol.kind == "arm":
        for arm in struct.arms:
            if arm.name == symbol.name:
                yield texts.arm(arm)
                yield f"an arm of {struct.name}"
    elif symbol.name in struct.fields:
        arms = [arm.name for arm in struct.arms if arm.field(symbol.name)]
        yield texts.field(struct.fields[symbol.name])
        yield f"a field of {struct.name}" + (f", in {' and '.join(arms)}" if len(struct.arms) > 1 else "")


def _local(analysis: Analysis, occurrence: Occurrence) -> typed.Type | None:
    """The type of a local name, wherever its type is known."""
    for each in occurrences(analysis):
        if each.symbol == occurrence.symbol and each.identifier is not None:
            found = analysis.recorder.names.get(id(each.identifier))
            if found is not None:
                return found.type
    return None


def _value_type(analysis: Analysis, occurrence: Occurrence) -> str:
    """The type of the call or the member that a name stands in, where the declaration does not say it."""
    if occurrence.symbol.kind not in ("builtin", "reduction", "link", "cell", "function"):
        return ""
    for seen in analysis.recorder.expressions.values():
        match seen.node:
            case syntax.Call(function=name) | syntax.Comprehension(reduction=name) | syntax.Member(name=name):
                if name.span == occurrence.span and seen.found is not None:
                    return f"{_text(analysis, seen.node)}: {texts.type_text(seen.found.type)}"
            case _:
                pass
    return ""


def _expression(analysis: Analysis, line: int, column: int) -> Hover | None:
    """The type of the smallest expression around a place."""
    best: tuple[int, Any, typed.Expression] | None = None
    for seen in analysis.recorder.expressions.values():
        node = seen.node
        span = node.operator.span if isinstance(node, syntax.Binary) else node.span
        on_operator = isinstance(node, syntax.Binary) and covers(span, line, column)
        if seen.found is not None and (on_operator or covers(node.span, line, column)):
            size = 0 if on_operator else node.span.length
            if best is None or size < best[0]:
                best = size, node, seen.found
    if best is None:
        return None
    _, node, found = best
    return Hover(_code(f"{_text(analysis, node)}: {texts.type_text(found.type)}"), node.span)


def _text(analysis: Analysis, node: Any) -> str:
    """The text of an expression; of one over several lines its first line."""
    span = node.span
    line = analysis.source.line_text(span.line)
    last = max(each.span.line for each in walk(node) if hasattr(each, "span"))
    return line[span.column - 1 : span.column - 1 + span.length] + (" ..." if last != span.line else "")


def _code(text: str) -> str:
    return f"```dn\n{text}\n```"
