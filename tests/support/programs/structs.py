"""Random structs: trees of any arity, sequences, what may be missing, structures inside structures.

In: a draft. Out: its structs. Guaranteed: every struct can end, and the first one is the root. A new
kind of field is one entry of `DATA`.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.programs.draft import Draft, Field, Struct

# The data fields, by kind: the text of their type and the size of what they hold.
DATA: dict[str, Callable[[Draft], tuple[str, int | None]]] = {
    "token": lambda draft: ("token<vocab>", None),
    "class": lambda draft: ("class<classes>", draft.dimensions["classes"]),
    "vector": lambda draft: _vector(draft, "vector"),
    "float": lambda draft: ("float", None),
    "pulled": lambda draft: _vector(draft, "pulled"),
    "index": lambda draft: ("index<many>", draft.dimensions["many"]),
}
MAY_MISS = ("token", "class")
LINKS = {"child": "{}", "list": "[{}]", "optional": "{}?"}


def _vector(draft: Draft, kind: str) -> tuple[str, int]:
    width = draft.width()
    return f"{kind}<{draft.size_text(width)}>", width


def add_structs(draft: Draft) -> None:
    """One to three structs; each one but the first is referred to by one before it."""
    names = ["A", "B", "C"][: draft.pick((1, 2, 2, 3))]
    links: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    for number, name in enumerate(names):
        if number:
            links[names[draft.count(0, number - 1)]].append((draft.pick(("list", "child", "optional")), name))
        for _ in range(draft.pick((1, 0, 2))):
            links[name].append((draft.pick(("child", "list", "optional")), name))
    if len(names) == 3 and draft.chance(15):  # structs that refer to each other, below the root
        links[names[2]].append((draft.pick(("optional", "list")), names[1]))
    for name in names:
        draft.structs[name] = _struct(draft, name, links[name])


def _struct(draft: Draft, name: str, links: list[tuple[str, str]]) -> Struct:
    pool = [_data(draft) for _ in range(draft.count(1, 3))]
    pool += [Field(draft.name("t"), kind, LINKS[kind].format(to), target=to) for kind, to in links]
    endless = [field for field in pool if field.kind == "child" and field.target == name]
    count = draft.pick((1, 2, 3)) if not endless else draft.pick((2, 3))
    arms: dict[str, tuple[Field, ...]] = {}
    for number in range(count):
        chosen = [
            field
            for field in pool
            if (number > 0 or field not in endless)
            and (field.target not in (None, name) or not draft.chance(25))
        ]
        arms[f"{name}{number}" if count > 1 else name] = tuple(chosen)
    return Struct(name, arms)


def _data(draft: Draft) -> Field:
    kind = draft.pick(tuple(DATA))
    text, size = DATA[kind](draft)
    optional = "?" if kind in MAY_MISS and draft.chance(30) else ""
    return Field(draft.name("x"), kind, text + optional, size)
