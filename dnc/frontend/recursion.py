"""Checks that recursion ends: in a group of functions that call one another, every call moves on.

In: checked functions. Out: errors. Guaranteed: all recursive calls of a group go to children, or
all to prev, or all to next, or all to the parent, but for calls at the same vertex that do not lead
back by such calls alone, so that the structure bounds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dnc.frontend.report import Report
from dnc.frontend.typed import Expression, Function, FunctionCall
from dnc.frontend.walk import calls
from dnc.ir.reads import closure
from dnc.ir.structure import NEXT, PARENT, PREVIOUS, Path

DIRECTIONS = {PREVIOUS: "the previous vertex", NEXT: "the next vertex", PARENT: "the parent"}
CHILDREN = "a child"
# What stands for a link where recursion goes to children.
BESIDE = {
    PREVIOUS: "a field of the data is a child too: before: Struct? holds the previous vertex",
    NEXT: "a field of the data is a child too: after: Struct? holds the next vertex",
}


def direction(path: Path) -> str | None:
    """Where a path leads: `CHILDREN`, a link, or None where it stays or turns."""
    kinds = {step if step in DIRECTIONS else CHILDREN for step in path}
    return kinds.pop() if len(kinds) == 1 else None


def check_recursion(functions: Mapping[str, Function], report: Report) -> None:
    """Reports every recursive call that does not move as the others of its group."""
    made = {
        name: [call for _, body in _distinct(function) for call in calls(body)]
        for name, function in functions.items()
    }
    reached = {name: _reachable(name, made) for name in functions}
    staying = {name: [call for call in found if not call.path] for name, found in made.items()}
    stays = {name: _reachable(name, staying) for name in functions}
    moves: dict[frozenset[str], tuple[str, FunctionCall]] = {}
    for name in functions:
        for call in made[name]:
            if call.function not in functions or name not in reached[call.function]:
                continue
            group = frozenset(other for other in reached[name] if name in reached.get(other, ()))
            shown = call.span.source.line_text(call.span.line)[call.span.column - 1 :][: call.span.length]
            found = direction(call.path)
            if not call.path and name not in {call.function, *stays[call.function]}:
                continue
            if found is None:
                way = _way(call.function, name, made)
                through = (f"{name} calls itself through {', '.join(way)}",) if way else ()
                what = "turns" if call.path else "not on a child"
                expected = (
                    f"one way, to {_ways(call.path)}" if call.path else "a child, .prev, .next or .parent"
                )
                report.error(
                    f"recursion {what}: {shown}, expected {expected}",
                    call.span,
                    *through,
                )
                continue
            first, by = moves.setdefault(group, (found, call))
            if first != found:
                report.error(
                    f"recursion goes to {DIRECTIONS.get(found, found)} here, expected "
                    f"{DIRECTIONS.get(first, first)} as in line {by.span.line}",
                    call.span,
                    *(note for way, note in BESIDE.items() if {first, found} == {CHILDREN, way}),
                )


def _ways(path: Path) -> str:
    """Where the steps of a path lead, each way once: "a child or the next vertex"."""
    return " or ".join(dict.fromkeys(DIRECTIONS.get(step, CHILDREN) for step in path))


def _distinct(function: Function) -> tuple[tuple[str, Expression], ...]:
    return function.bodies if function.matched else function.bodies[:1]


def _way(start: str, end: str, made: Mapping[str, list[FunctionCall]]) -> tuple[str, ...]:
    """The functions on the shortest way of calls from `start` to `end`, without `end`."""
    ways: dict[str, tuple[str, ...]] = {start: ()}
    todo = [start]
    for name in todo:
        if name == end:
            return ways[name]
        for call in made.get(name, []):
            if call.function not in ways:
                ways[call.function] = (*ways[name], name)
                todo.append(call.function)
    return ()


def _reachable(name: str, made: Mapping[str, list[FunctionCall]]) -> set[str]:
    """The functions called from `name`, directly or not; itself only if it is recursive."""

    def called(caller: str) -> Iterator[str]:
        return (call.function for call in made.get(caller, []))

    return closure(called(name), called)
