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


@attrs.define
class Scope:
    """Texts that may be read, by what they are. group: functions under way, callable along `way`."""

    draft: Draft
    values: dict[Shape, list[str]] = attrs.field(factory=dict)
    states: dict[str, list[str]] = attrs.field(factory=dict)
    classes: dict[int, list[str]] = attrs.field(factory=dict)
    cells: bool = True

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
        group: Sequence[Callable_] = (),
        way: str | None = None,
    ) -> None:
        """Makes the vertex `variable` readable: its data, its neighbours' data, calls on all of them."""
        draft = self.draft
        for place in self._places(Place(variable, struct, tuple(arms)), bound):
            for field in common_fields(draft, place.struct, place.arms):
                self._add_field(place, field, bound, variable)
                if field.kind == "list":
                    ways = place.ways | {CHILDREN}
                    self._add_lists(f"{place.text}.{field.name}", str(field.target), ways, group, way)
            for function in callable_at(draft, place.struct, place.ways, group, way):
                times = OFTEN if function in group else 2 if place.steps < LONGEST_PATH else 1
                self.add(f"{function.name}({place.text})", function.result, times)

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
            for table, width in draft.tables.items():
                self.add(f"{table}[{text}]", (width,), times)
        elif field.kind == "class":
            self.classes.setdefault(int(field.size or 0), []).append(text)
        elif field.kind in ("float", "vector"):
            self.add(text, () if field.kind == "float" else (int(field.size or 0),), times)

    def _add_lists(
        self, text: str, struct: str, ways: frozenset[str], group: Sequence[Callable_], way: str | None
    ) -> None:
        for function in callable_at(self.draft, struct, ways, group, way):
            results = [("", function.result)]
            if isinstance(function.result, State):
                results = [(f".{name}", shape) for name, shape in function.result.components]
            for component, shape in results:
                reduction = self.draft.pick(REDUCTIONS)
                assert not isinstance(shape, State)
                times = OFTEN if function in group else 1
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


def links(draft: Draft, struct: str) -> tuple[str, ...]:
    """The links that vertices of a struct have."""
    holders = [
        (holder.name, field.kind)
        for holder in draft.structs.values()
        for fields in holder.arms.values()
        for field in fields
        if field.target == struct
    ]
    parent = (PARENT,) if any(name == struct for name, _ in holders) else ()
    return (PREVIOUS, NEXT, *parent) if any(kind == "list" for _, kind in holders) else parent


def callable_at(
    draft: Draft, struct: str, ways: frozenset[str], group: Sequence[Callable_], way: str | None
) -> list[Callable_]:
    """The functions that may be called on a vertex reached by `ways`: those of a group only one way."""
    found = [function for function in draft.functions if function.struct == struct]
    if way is not None and ways == {way}:
        found += [function for function in group if function.struct == struct]
    return found
