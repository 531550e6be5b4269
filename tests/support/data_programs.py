"""Programs for the data reader: only their structs, dimensions and root matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dnc.ir.cell import Cell
from dnc.ir.forest import Forest
from dnc.ir.program import Program, Space, Stage, StateInput
from dnc.ir.structure import CHILD, CLASS, LIST, OPTIONAL, TOKEN, VECTOR, Arm, Dimension, Field, Struct

VOCAB = Dimension("vocab", None)
CLASSES = Dimension("classes", 5)
TAGS = Dimension("tags", None)


def token(name: str, dimension: Dimension = VOCAB) -> Field:
    return Field(name, TOKEN, dimension)


def label(name: str = "label", dimension: Dimension = CLASSES) -> Field:
    return Field(name, CLASS, dimension)


def child(name: str, target: str) -> Field:
    return Field(name, CHILD, target=target)


def optional(name: str, target: str) -> Field:
    return Field(name, OPTIONAL, target=target)


def children(name: str, target: str) -> Field:
    return Field(name, LIST, target=target)


def vector(name: str, width: int = 0) -> Field:
    return Field(name, VECTOR, width=width)


def struct(name: str, **arms: list[Field]) -> Struct:
    return Struct(name, tuple(Arm(arm, tuple(fields)) for arm, fields in arms.items()))


def program(*structs: Struct, reads: dict[str, list[tuple[str, ...]]] | None = None) -> Program:
    """A program whose root is the last struct; `reads`: paths that a stage over a struct reads."""
    spaces, stages = [], []
    for name, paths in (reads or {}).items():
        arms = next(tuple(arm.name for arm in each.arms) for each in structs if each.name == name)
        spaces.append(Space(name, name, arms))
        inputs = tuple(StateInput("f", "h", path) for path in paths)
        stages.append(Stage(name, name, None, inputs, Cell((), (), ()), ()))
    return Program("Test", (), structs, structs[-1].name, (), (), tuple(spaces), tuple(stages))


TREE = program(
    struct(
        "Tree", Leaf=[token("word"), label()], Node=[child("left", "Tree"), child("right", "Tree"), label()]
    )
)
WORD = struct("Word", Word=[token("form"), label("tag", TAGS)])
SENTENCE = program(WORD, struct("Sentence", Sentence=[children("words", "Word"), label()]))
SPEECH = program(
    struct("Frame", Frame=[vector("x", 3), vector("energy")]),
    struct("Speech", Speech=[children("frames", "Frame"), label()]),
)
ARITY = program(struct("Tree", Tree=[token("word"), children("children", "Tree")]))
GATES = program(
    struct(
        "Gate",
        Source=[vector("x", 2), vector("target")],
        Join=[child("a", "Gate"), optional("b", "Gate"), vector("x", 2), vector("target")],
    )
)
TWINS = program(
    struct(
        "Expr",
        Constant=[vector("value")],
        Sum=[child("a", "Expr"), child("b", "Expr")],
        Product=[child("a", "Expr"), child("b", "Expr")],
    )
)
MUTUAL = program(
    struct("Noun", Noun=[token("word"), optional("clause", "Clause")]),
    struct("Clause", Clause=[children("nouns", "Noun"), optional("then", "Clause"), label()]),
)
ALL_PROGRAMS = {
    "tree": TREE,
    "sentence": SENTENCE,
    "speech": SPEECH,
    "arity": ARITY,
    "gates": GATES,
    "twins": TWINS,
    "mutual": MUTUAL,
}


def write(path: Path, *lines: Any) -> Path:
    """A JSONL file: strings and bytes as they are, other values as JSON."""
    encoded = [
        line
        if isinstance(line, bytes)
        else line.encode()
        if isinstance(line, str)
        else msgspec.json.encode(line)
        for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def contents(forest: Forest) -> dict[str, list[Any]]:
    """Everything a forest holds, as plain lists, to compare by value."""
    result: dict[str, list[Any]] = {"roots": forest.roots.tolist()}
    for name, table in forest.tables.items():
        arrays: dict[str, Any] = {"arm": table.arm, "begin": table.begin}
        arrays |= {"previous": table.previous, "next": table.next, "parent": table.parent}
        arrays |= table.data | table.children
        for field, (begin, entries) in table.lists.items():
            arrays |= {f"{field}.begin": begin, f"{field}.entries": entries}
        result |= {f"{name}.{key}": np.asarray(array).tolist() for key, array in arrays.items()}
    return result
