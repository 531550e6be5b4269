"""Vocabularies of other programs: which word is which row.

In: files as they lie about: a word a line, a JSON array of words, a JSON object from words to numbers, a
`vocabulary.json` of a run folder; or just a size where data hold numbers. Out: vocabularies by
dimension. Guaranteed: every dimension of the program's tokens and classes has one, or its size is
known; rows and words agree in number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.program import Program
from dnc.ir.structure import TOKEN
from dnc.runtime.data import Vocabulary, load_vocabularies, vocabulary_dimensions
from dnc.runtime.data.lines import load
from dnc.runtime.data.problems import kind_of, names, suggestion
from dnc.runtime.data.vocabulary import UNKNOWN
from dnc.runtime.json_text import decode_json


def read_vocabularies(
    program: Program,
    given: Mapping[str, str | Path | int],
    unknown: str = UNKNOWN,
    saved: str | Path | None = None,
    rows: Callable[[str], int | None] = lambda dimension: None,
) -> dict[str, Vocabulary]:
    """The vocabularies of a program's dimensions.

    given: by dimension a file, or how many numbers there are. unknown: the word that stands for those
    that are not among them. saved: a vocabulary.json. rows: of tables over an open dimension.
    """
    used, tokens = vocabulary_dimensions(program), token_dimensions(program)
    check_dimensions(given, used)
    known = {} if saved is None else _saved(saved, used)
    found: dict[str, Vocabulary] = {}
    for name, dimension in used.items():
        if name in given:
            made = _given(name, given[name], unknown, name in tokens)
        elif name in known:
            made = known[name]
        elif dimension.size is not None:
            continue
        else:
            size = rows(name)
            if size is None:
                raise fail(
                    f"the size of '{name}' is open: give its words or their number",
                    f"--vocabulary {name}=words.txt has a word a line, in the order of the rows; "
                    f"{name}=1000 is a number, where the data hold numbers",
                )
            made = Vocabulary(name, None, size, name in tokens)
        size = made.size if dimension.size is None else dimension.size
        # A class that nobody names would be predicted as a number.
        too_few = made.size < size and name in given and name not in tokens
        if made.size > size or too_few:
            raise fail(f"the vocabulary of '{name}' has {made.size:,} entries; the build has {size:,}")
        found[name] = made
    _check_unknown(unknown, [found[name] for name in given if name in tokens])
    return found


def check_dimensions(given: Iterable[str], used: Iterable[str]) -> None:
    """DiagnosticError where a dimension is none of tokens or classes."""
    for name in given:
        if name not in used:
            hint = suggestion(name, used) or f"; the program has {names(used) or 'none'}"
            raise fail(f"vocabulary of '{name}': there is no such dimension of tokens or classes{hint}")


def _check_unknown(unknown: str, given: Sequence[Vocabulary]) -> None:
    """DiagnosticError if a word was named that no words which were given have."""
    if unknown != UNKNOWN and given and not any(each.unknown for each in given):
        known = [word for each in given for word in each.words or ()]
        where = names(each.dimension for each in given)
        hint = suggestion(unknown, known)
        raise fail(f"'{unknown}', which is to stand for all others, is not among the words of {where}{hint}")


def token_dimensions(program: Program) -> set[str]:
    """The names of the dimensions of tokens."""
    fields = (field for struct in program.structs for field in struct.fields.values())
    return {field.dimension.name for field in fields if field.kind == TOKEN and field.dimension is not None}


def _saved(path: str | Path, used: Iterable[str]) -> dict[str, Vocabulary]:
    """All vocabularies of a run; a file of words alone does not say of which dimension they are."""
    try:
        return load_vocabularies(path)
    except DiagnosticError as error:
        note = f"words alone are those of a dimension: {next(iter(used), 'vocab')}={path}"
        notes = (note,) if Path(path).is_file() else ()
        raise DiagnosticError(attrs.evolve(error.diagnostics[0], notes=notes)) from None


def _given(name: str, source: str | Path | int, unknown: str, is_token: bool) -> Vocabulary:
    if isinstance(source, int):
        if not 1 <= source < 2**31:
            raise fail(f"the vocabulary of '{name}' has {source} entries, expected 1 to {2**31 - 1}")
        return Vocabulary(name, None, source, is_token)
    words = read_words(source)
    stands = is_token and unknown in words
    if stands and unknown != UNKNOWN and UNKNOWN in words:
        raise fail(f"{source}: holds '{UNKNOWN}' beside '{unknown}', and only one can stand for all others")
    if stands:
        words = [UNKNOWN if word == unknown else word for word in words]
    return Vocabulary(name, tuple(words), len(words), stands)


def read_words(path: str | Path) -> list[str]:
    """The words of a file in the order of their numbers: one or more, each of them once."""
    words = _words(path)
    if not words:
        raise fail(f"{path}: holds no words")
    twice = sorted(word for word, count in Counter(words).items() if count > 1)
    if twice:
        raise fail(f"{path}: {names(twice)} {'are' if len(twice) > 1 else 'is'} in it more than once")
    return words


def _words(path: str | Path) -> list[str]:
    """The words of a file in the order of their numbers: one a line, or JSON."""
    content = load(path).decode("utf-8")
    is_named = Path(path).suffix.lower() == ".json"
    try:
        values = decode_json(content)
    except ValueError as error:
        if is_named:
            raise fail(f"{path}: not JSON: {error}") from None
        values = None
    if not is_named and not (isinstance(values, list | dict) and values):
        lines = content.split("\n")
        return [line.removesuffix("\r") for line in (lines[:-1] if not lines[-1] else lines)]
    if isinstance(values, dict) and all(type(number) is int for number in values.values()):
        ordered = sorted(values.items(), key=lambda item: item[1])
        wrong = next((item for at, item in enumerate(ordered) if item[1] != at), None)
        if wrong is not None:
            numbers = f"0..{len(ordered) - 1}, each once"
            raise fail(f"{path}: '{wrong[0]}' has the number {wrong[1]}; expected {numbers}")
        values = [word for word, _ in ordered]
    if not isinstance(values, list):
        saved = isinstance(values, dict) and any(isinstance(each, dict) for each in values.values())
        raise fail(
            f"{path}: holds {kind_of(values)}, expected an array of words, or their numbers by word",
            *([f"the vocabulary.json of a run stands alone: --vocabulary {path}"] if saved else []),
        )
    for number, word in enumerate(values):
        if not isinstance(word, str):
            raise fail(f"{path}: entry {number} is {kind_of(word)}, expected a word")
    return values
