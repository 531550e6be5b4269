"""What an expression may read: names of values and states, and a vertex with all that lies around it.

In: a draft and where an expression stands. Out: texts of values by shape, of states by name, and of
classes by size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from tests.support.programs.draft import Callable_, Draft, Field, Shape, State

CHILDREN, PREVIOUS, NEXT, PARENT = "children", "prev", "next", "parent"
REDUCTIONS = ("sum", "mean", "max")
LONGEST_PATH = 2
OFTEN = 5
"""How much more likely what is at hand is read than what is two steps away."""


@attrs.frozen
class Place:
    """A vertex seen from the one at hand. arms: what it may be. ways: the kinds of steps that lead there."""

    text: str
    struct: str
    arms: tuple[str, ...]
    ways: frozenset[str] = frozenset()
    steps: int = 0


@attrs.frozen
class Group:
    """Functions that call one another along `way`; those `later` also at the vertex itself."""

    functions: tuple[Callable_, ...] = ()
    way: str | None = None
    later: tuple[Callable_, ...] = ()


@attrs.define
class Scope:
    """Texts that may be read, by what they are; `elements`: of the children `k` in a list; `indices`:
    of the vertex itself, which select from stacks. follows: running parameters may be moved. reads: functions
    that the value of a body calls, where it can."""

    draft: Draft
    values: dict[Shape, list[str]] = attrs.field(factory=dict)
    states: dict[str, list[str]] = attrs.field(factory=dict)
    classes: dict[int, list[str]] = attrs.field(factory=dict)
    elements: dict[str, list[tuple[Shape, str]]] = attrs.field(factory=dict)
    cells: bool = True
    indices: list[str] = attrs.field(factory=list)
    follows: bool = False
    reads: tuple[Callable_, ...] = ()

    def add(self, text: str, type: Shape | State, times: int = 1) -> None:
        """Makes a value or a state readable; it is chosen `times` as often as others."""
        if isinstance(type, State):
            self.states.setdefault(type.name, []).extend([text] * times)
            for component, shape in type.components:
                self.values.setdefault(shape, []).extend([f"{text}.{component}"] * times)
        else:
            self.values.setdefault(type, []).extend([text] * times)

    def add_vertex(
        self,
        variable: str,
        struct: str,
        arms: Sequence[str],
        bound: Sequence[Field] = (),
        group: Group = Group(),
    ) -> None:
        """Makes the vertex `variable` readable: its data, its neighbours' data, calls on all of them."""
        draft = self.draft
        calls: list[tuple[Callable_, str, int]] = []
        for place in self._places(Place(variable, struct, tuple(arms)), bound):
            for field in common_fields(draft, place.struct, place.arms):
                self._add_field(place, field, bound, variable)
                if field.kind == "list":
                    ways = place.ways | {CHILDREN}
                    self._add_lists(f"{place.text}.{field.name}", str(field.target), ways, group)
            for function in callable_at(draft, place.struct, place.ways, group):
                times = OFTEN if function in group.functions else 2 if place.steps < LONGEST_PATH else 1
                self.add(f"{function.name}({place.text})", function.result, times)
                calls.append((function, f"{function.name}({place.text})", place.steps))
        self._add_fallbacks(calls)

    def _add_fallbacks(self, calls: Sequence[tuple[Callable_, str, int]]) -> None:
        """Calls at vertices that may be absent, with others of their type in their place."""
        for function, text, _ in [call for call in calls if call[2]][:4]:
            others = [other for found, other, _ in calls if found.result == function.result and other != text]
            if others:
                self.add(f"({text} else {self.draft.pick(others)})", function.result)

    def _places(self, start: Place, bound: Sequence[Field]) -> Iterator[Place]:
        todo = [start]
        for place in todo:
            yield place
            if place.steps < LONGEST_PATH:
                todo += around(self.draft, place)

    def _add_field(self, place: Place, field: Field, bound: Sequence[Field], variable: str) -> None:
        draft, times = self.draft, OFTEN if not place.steps else 1
        text = field.name if place.text == variable and field in bound else f"{place.text}.{field.name}"
        if field.kind == "token":
            for table, shape in draft.tables.items():
                self.add(f"{table}[{text}]", shape, times)
        elif field.kind == "class":
            self.classes.setdefault(int(field.size or 0), []).append(text)
        elif field.kind == "index" and not place.steps:
            self.indices.append(text)
        elif field.kind in ("float", "vector", "pulled"):
            self.add(text, () if field.kind == "float" else (int(field.size or 0),), times)

    def _add_lists(self, text: str, struct: str, ways: frozenset[str], group: Group) -> None:
        assert struct in self.draft.structs
        for function in callable_at(self.draft, struct, ways, group):
            results = [("", function.result)]
            if isinstance(function.result, State):
                results = [(f".{name}", shape) for name, shape in function.result.components]
            for component, shape in results:
                reduction = self.draft.pick(REDUCTIONS)
                assert not isinstance(shape, State)
                self.elements.setdefault(text, []).append((shape, f"{function.name}(k){component}"))
                times = OFTEN if function in group.functions else 1
                self.add(f"{reduction}({function.name}(k){component} for k in {text})", shape, times)


def common_fields(draft: Draft, struct: str, arms: Sequence[str]) -> list[Field]:
    """The fields that all the arms have."""
    first, *others = (draft.structs[struct].arms[arm] for arm in arms)
    return [field for field in first if all(field in other for other in others)]


def around(draft: Draft, place: Place) -> Iterator[Place]:
    """The vertices one step away."""

    def at(step: str, struct: str, way: str) -> Place:
        arms = tuple(draft.structs[struct].arms)
        return Place(f"{place.text}.{step}", struct, arms, place.ways | {way}, place.steps + 1)

    for field in common_fields(draft, place.struct, place.arms):
        if field.kind in ("child", "optional"):
            yield at(field.name, str(field.target), CHILDREN)
        elif field.kind == "list":
            for end in ("first", "last"):
                yield at(f"{field.name}.{end}", str(field.target), CHILDREN)
    for way in links(draft, place.struct):
        yield at(way, place.struct, way)
    parent = {holder for holder, _ in holders(draft, place.struct)}
    if len(parent) == 1 and place.struct not in parent:
        yield at(PARENT, parent.pop(), PARENT)


def links(draft: Draft, struct: str) -> tuple[str, ...]:
    """The links from vertices of a struct to others of it."""
    found = holders(draft, struct)
    parent = (PARENT,) if any(name == struct for name, _ in found) else ()
    return (PREVIOUS, NEXT, *parent) if any(kind == "list" for _, kind in found) else parent


def holders(draft: Draft, struct: str) -> list[tuple[str, str]]:
    """The structs that refer to a struct, with the kind of each such field."""
    return [
        (holder.name, field.kind)
        for holder in draft.structs.values()
        for fields in holder.arms.values()
        for field in fields
        if field.target == struct
    ]


def callable_at(draft: Draft, struct: str, ways: frozenset[str], group: Group) -> list[Callable_]:
    """The functions that may be called on a vertex reached by `ways`."""
    found = list(draft.functions)
    if group.way is not None and ways == {group.way}:
        found += group.functions
    if not ways:
        found += group.later
    return [function for function in found if function.struct == struct]
