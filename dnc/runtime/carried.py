"""What a program has to be told of the elements of a list that came before: the carried states.

In: a plan and a list field of the root. Out: how many elements back its outputs look, and the functions
whose states they read there; or a DiagnosticError that says what they read of elements that are yet to
come, or that have gone. Guaranteed: with these states given, the elements that follow have the outputs
that they have behind all elements at once.
"""

from __future__ import annotations

import attrs

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.forest import parent_struct, program_structs, target_of
from dnc.ir.plan import Plan
from dnc.ir.program import FieldInput, StateInput, TableInput
from dnc.ir.structure import (
    FIRST,
    LAST,
    LIST,
    NEXT,
    PARENT,
    PREVIOUS,
    Path,
    Struct,
    unless_path,
)
from dnc.runtime.data.usage import reachable
from dnc.runtime.phases import PREDICT, RESULT_KINDS, needed_stages


@attrs.frozen
class Carried:
    """field: the list. element: the struct of its elements. back: how many of the last elements are
    kept. functions: those whose states at them are."""

    field: str
    element: str
    back: int
    functions: tuple[str, ...]


def carried(plan: Plan, field: str | None = None) -> Carried:
    """What outputs read of the elements before; field: None for the root's only list."""
    program, structs = plan.program, program_structs(plan.program)
    root = structs[program.root]
    lists = [name for name, each in root.fields.items() if each.kind == LIST]
    if not any(result.kind in RESULT_KINDS[PREDICT] for result in plan.results):
        raise fail(f"model {program.name} declares no output: there is nothing to stream")
    if field is None and len(lists) != 1:
        found = "it has none"
        if lists:
            found = f"{root.name} has the lists {', '.join(lists)}: name one, as field='{lists[0]}'"
        raise fail(f"a stream goes along a list of {root.name}, the root; {found}")
    if field is not None and field not in lists:
        raise fail(f"{root.name}, the root, has no list '{field}'; its lists: {', '.join(lists) or 'none'}")
    field = field or lists[0]
    element = target_of(root, field)
    if element == root.name or root.name in reachable(structs, element):
        raise fail(f"{root.name}.{field} cannot be streamed: its elements hold vertices of {root.name}")
    walker = _Walker(structs, root.name, field, element)
    for name in sorted(needed_stages(plan, PREDICT)):
        stage = program.stage(name)
        struct = program.space(stage.space).struct
        for source in stage.inputs:
            if not isinstance(source, StateInput | TableInput | FieldInput):
                continue
            if walker.walk(struct, source.path) and isinstance(source, StateInput):
                walker.functions[source.function] = None
    return Carried(field, element, walker.back, tuple(walker.functions))


class _Walker:
    """Walks paths; notes how far back they go, and refuses what a stream cannot know."""

    def __init__(self, structs: dict[str, Struct], root: str, field: str, element: str) -> None:
        self.structs, self.root, self.field, self.element = structs, root, field, element
        self.back = 0
        self.functions: dict[str, None] = {}

    def refusal(self, what: str) -> DiagnosticError:
        """Why the list cannot be streamed."""
        return fail(f"{self.root}.{self.field} cannot be streamed: the outputs read {what}")

    def walk(self, struct: str, path: Path) -> int:
        """How many elements before the chunk's own the end of a path may be."""
        back = 0
        for at, step in enumerate(path):
            after = path[at + 1] if at + 1 < len(path) else None
            if (other := unless_path(step)) is not None:
                self.walk(struct, other)
            elif step in (FIRST, LAST):
                continue  # of the list that is the step before
            elif step == NEXT and struct == self.element:
                raise self.refusal(f"the next {self.element}, which is yet to come")
            elif step == PREVIOUS and struct == self.element:
                back += 1
                self.back = max(self.back, back)
            elif step == PARENT:
                struct, back = parent_struct(self.structs, struct) or struct, 0
            elif step not in (PREVIOUS, NEXT):
                if back:
                    raise self.refusal(f"'{step}' of an element before, which has gone")
                if (struct, step) == (self.root, self.field) and after != LAST:
                    whole = "its first element" if after == FIRST else "the whole list"
                    raise self.refusal(f"{whole}, which has gone")
                struct = target_of(self.structs[struct], step)
        return back
