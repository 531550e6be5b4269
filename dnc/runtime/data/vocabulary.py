"""Vocabularies: which number a word or a label is.

In: the strings of the training data, per dimension. Out: numbers. Guaranteed: the same data give
the same vocabulary (sorted by frequency, then by text); what is saved loads equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec

from dnc.diagnostics import check_path
from dnc.ir.program import TABLE, Program
from dnc.ir.structure import CLASS, TOKEN, Dimension
from dnc.runtime.atomic import write_atomically
from dnc.runtime.data.problems import file_problem
from dnc.runtime.json_text import decode_json

UNKNOWN = "<unk>"


@attrs.frozen
class Vocabulary:
    """The values of one dimension.

    words: the strings in the order of their numbers; None where the data holds numbers, used as
    they are. size: how many numbers there are. unknown: whether a string that is not among
    `words` has the number of "<unk>" (tokens), or is a mistake (classes).
    """

    dimension: str
    words: tuple[str, ...] | None
    size: int
    unknown: bool
    index: dict[str, int] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "index", {word: number for number, word in enumerate(self.words or ())})

    def __len__(self) -> int:
        return self.size

    @property
    def unknown_number(self) -> int:
        """The number of what is not among the words: 0 unless "<unk>" stands elsewhere among them."""
        return self.index.get(UNKNOWN, 0)

    def number(self, word: str) -> int | None:
        """The number of a word; that of "<unk>" for an unknown token, None for an unknown class."""
        return self.index.get(word, self.unknown_number if self.unknown else None)


@attrs.frozen
class Beside:
    """Words or labels of a dimension that are known whether the training data hold them or not.

    source: where they were found, for messages.
    """

    words: tuple[str, ...]
    source: str = attrs.field(eq=False)


def build_vocabulary(
    dimension: str,
    strings: Iterable[str],
    *,
    unknown: bool,
    min_count: int = 1,
    limit: int | None = None,
    beside: Iterable[str] = (),
) -> Vocabulary:
    """A vocabulary of the strings that occur `min_count` times or more, the most frequent first.

    limit: the most entries there may be, "<unk>" included; the rarest are left out. beside: strings that are
    never left out; those that do not occur come last, in their own order.
    """
    counts = Counter(strings)
    always = dict.fromkeys(beside)
    if unknown:
        counts.pop(UNKNOWN, None)
        always.pop(UNKNOWN, None)
    kept = [word for word, count in counts.items() if count >= min_count or word in always]
    kept.sort(key=lambda word: (-counts[word], word))
    kept += [word for word in always if word not in counts]
    if limit is not None and always:
        room = limit - unknown - len(always)  # for the others
        others = [word for word in kept if word not in always]
        left_out = set(others[max(room, 0) :])
        kept = [word for word in kept if word not in left_out]
    words = tuple(([UNKNOWN] if unknown else []) + kept)[: None if always else limit]
    return Vocabulary(dimension, words, len(words), unknown)


def vocabularies_to_json(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """Vocabularies as JSON values."""
    return {
        name: {"words": each.words, "size": each.size, "unknown": each.unknown}
        for name, each in vocabularies.items()
    }


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    unknown: bool
    words: tuple[str, ...] | None = None


def vocabularies_from_json(values: Any, path: str = "vocabularies") -> dict[str, Vocabulary]:
    """The inverse of `vocabularies_to_json`; `path` names the file in errors."""
    try:
        stored = msgspec.convert(values, dict[str, _Stored])
    except msgspec.ValidationError as error:
        raise file_problem(path, f"not a vocabulary file: {error}") from None
    for name, each in stored.items():
        if each.words is not None and not len(set(each.words)) == len(each.words) == each.size:
            raise file_problem(path, f"vocabulary '{name}': size {each.size}, {len(set(each.words))} words")
    return {name: Vocabulary(name, each.words, each.size, each.unknown) for name, each in stored.items()}


def save_vocabularies(path: str | Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Write vocabularies as a JSON file, whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(vocabularies_to_json(vocabularies)), indent=1)
    write_atomically(Path(path), [text + b"\n"])


def load_vocabularies(path: str | Path) -> dict[str, Vocabulary]:
    """Read vocabularies that `save_vocabularies` wrote; DiagnosticError where the file is broken."""
    check_path(path, "a vocabulary file")
    try:
        values = decode_json(Path(path).read_bytes())
    except OSError as error:
        raise file_problem(str(path), f"cannot read the vocabularies: {error.strerror}") from None
    except ValueError as error:
        raise file_problem(str(path), f"not a vocabulary file: {error}") from None
    return vocabularies_from_json(values, str(path))


def has_vocabulary(program: Program) -> bool:
    """Whether its data hold words or classes, which training data give numbers to."""
    return bool(vocabulary_dimensions(program))


def vocabulary_dimensions(program: Program) -> dict[str, Dimension]:
    """The dimensions of words and classes, by name."""
    return {
        field.dimension.name: field.dimension
        for struct in program.structs
        for field in struct.fields.values()
        if field.kind in (TOKEN, CLASS) and field.dimension is not None
    }


def dimension_names(program: Program, parameters: Container[str]) -> set[str]:
    """What the sizes of the parameters of these names are made of."""
    found = (p.dimensions for p in program.parameters if p.name in parameters)
    return {word for dimensions in found for each in dimensions for word in re.findall(r"\w+", each.name)}


def table_rows(program: Program, vocabularies: Mapping[str, Vocabulary]) -> dict[str, int]:
    """Rows of every table: its dimension's size, or that of the vocabulary where it is open."""
    found = {}
    for parameter in program.parameters:
        if parameter.kind == TABLE:
            dimension = parameter.dimensions[0]
            known = vocabularies.get(dimension.name)
            found[parameter.name] = dimension.size or (len(known) if known is not None else 1)
    return found
