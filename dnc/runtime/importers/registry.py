"""The formats that can be imported, and the import itself.

In: a format's name, a text file or a folder of them, options. Out: JSONL beside a `Report` of what was
taken and left out. Guaranteed: a mistake in the source is a `DiagnosticError` with its line, and
writes nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from dnc.diagnostics import check_path, fail
from dnc.runtime.atomic import write_atomically
from dnc.runtime.data.problems import file_problem, names, suggestion
from dnc.runtime.importers import conll, conllu, ptb_trees, sick, structures, table, tagged, text
from dnc.runtime.importers.naming import Naming
from dnc.runtime.importers.source import Counts, Options, Sample, Sentence, open_source
from dnc.runtime.importers.tokens import TOKENIZERS
from dnc.runtime.run_folder import check_result

Reader = Callable[[Any, Options, Counts], Iterator[Any]]
"""Yields sentences or samples from a source (or from several by name) and counts what it sees."""

SEQUENCE_OPTIONS = ("structure", "seed", "rare", "counted_in", "longest", "layers", "skip")
MOST_LAYERS = 1 << 16
MOST_CLASSES = 1000


KINDS: Mapping[str, type] = {
    **dict.fromkeys(("length", "classes", "seed", "rare", "longest", "layers", "skip"), int),
    **dict.fromkeys(("marks", "numeric", "quotes"), bool),
    **dict.fromkeys(("tokens", "structure", "delimiter", "separator", "comments", "unlabelled"), str),
    "columns": tuple,
}
"""The types of options, which a caller from Python may get wrong."""


@attrs.frozen
class Format:
    """A format. fields: the names it writes, "" for those that are only written when they are named.

    files: what its folder holds; without any, it is one file. sentences: whether it yields
    `Sentence`s, from which structures are derived.
    """

    read: Reader
    fields: Mapping[str, str]
    options: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sentences: bool = True

    @property
    def all_options(self) -> tuple[str, ...]:
        """The options it takes."""
        return (*self.options, *(SEQUENCE_OPTIONS if self.sentences else ()))


def _fields(*written: str, also: tuple[str, ...] = ()) -> dict[str, str]:
    return {name: name for name in written} | dict.fromkeys(also, "")


_WORD = {"also": ("lemma", "xpos", "relation")}
FORMATS: Mapping[str, Format] = {
    "ptb-trees": Format(ptb_trees.read_ptb_trees, _fields("word", "label", "left", "right"), sentences=False),
    "conllu-trees": Format(
        conllu.read_conllu_trees,
        _fields("word", "tag", "children", **_WORD),
        ("unlabelled",),
        sentences=False,
    ),
    "conllu-words": Format(conllu.read_conllu_words, _fields("form", "tag", **_WORD), ("unlabelled",)),
    "sick": Format(
        sick.read_sick,
        _fields("left", "right", "word", "children", "score", "target"),
        ("classes",),
        sick.FILES,
        sentences=False,
    ),
    "tagged": Format(tagged.read_tagged, _fields("form", "tag"), ("separator", "unlabelled")),
    "conll": Format(conll.read_conll, _fields("form", "tag"), ("columns", "comments", "unlabelled")),
    "text": Format(text.read_text, _fields("form", also=("target",)), ("tokens", "length", "marks")),
    "csv": Format(
        table.read_csv,
        _fields("form", "label"),
        ("columns", "delimiter", "quotes", "numeric", "tokens", "unlabelled"),
    ),
}


@attrs.frozen
class Report:
    """What an import did. left_out: how many of what ("blank lines") were not taken. notes: what may be meant
    otherwise."""

    source: str
    destination: str
    samples: int
    vertices: int
    vocabulary: int
    labels: int
    spelled: int
    left_out: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = f"{self.samples:,} samples, {self.vertices:,} vertices, {self.vocabulary:,} different words"
        counts += f", {self.labels:,} different labels" if self.labels else ""
        counts += f", {self.spelled:,} words spelled out" if self.spelled else ""
        return f"{self.source} -> {self.destination}: {counts}; {_left_out(self.left_out)}"


def _left_out(counted: Iterable[tuple[str, int]]) -> str:
    return "left out: " + (", ".join(f"{count:,} {what}" for what, count in counted if count) or "nothing")


def import_file(
    format: str,
    source: str | Path,
    destination: str | Path,
    *,
    fields: Mapping[str, str] | None = None,
    **options: Any,
) -> Report:
    """Write `source`, a file (or folder) in `format`, as JSONL to `destination`.

    fields: new names of fields, "" to leave one out. options: those of the format, see `Options`.
    """
    if not isinstance(format, str):
        raise fail(f"found {type(format).__name__}, expected the name of a format")
    if not isinstance(fields, Mapping | None):
        raise fail(f"fields: found {type(fields).__name__}, expected new names of fields by their own")
    check_path(source, "a file to read")
    check_path(destination, "a file to write")
    if format not in FORMATS:
        longer = [f"'{each}'" for each in FORMATS if each.startswith(f"{format}-")]
        hint = f"; did you mean {' or '.join(longer)}?" if longer else suggestion(format, FORMATS)
        hint = hint or f"; the formats are {names(sorted(FORMATS))}"
        raise fail(f"unknown format '{format}'{hint}")
    chosen = FORMATS[format]
    checked = _checked(format, chosen, options)
    known = dict(chosen.fields)
    if chosen.sentences:
        known |= {name: name for name in structures.FIELDS[checked.structure]}
        known |= {name: name for name in structures.SPELLED_FIELDS if checked.rare}
        if checked.structure != "sequence":
            del known["form"]
    naming = Naming(format, known, fields or {}, checked.unlabelled)
    checked = attrs.evolve(checked, written=naming.written)
    inputs = [Path(source) / name for name in chosen.files] or [Path(source)]
    check_result(destination, *inputs, checked.counted_in)
    counts = Counts()
    found = list(_read(chosen, source, checked, counts))
    spelled = 0
    if chosen.sentences:
        spelled, samples = _derived(chosen, found, checked, counts)
    else:
        samples = found
    if not samples:
        left = f"; {_left_out(counts.left_out.items())}" if any(counts.left_out.values()) else ""
        raise file_problem(str(source), f"the file holds no samples{left}")
    flat = chosen.sentences and checked.structure in structures.FLAT
    vertices = sum(naming.apply(sample, flat) for sample in samples)
    encoded = [msgspec.json.encode(sample) + b"\n" for sample in samples]
    try:
        write_atomically(Path(destination), encoded)
    except OSError as error:
        raise file_problem(str(destination), f"cannot be written: {error.strerror}") from None
    if checked.unlabelled is not None:
        counts.labels.discard(checked.unlabelled)
        counts.leave_out(f"labels '{checked.unlabelled}'", naming.left_out)
    left_out = tuple((what, count) for what, count in counts.left_out.items() if count)
    return Report(
        str(source),
        str(destination),
        len(samples),
        vertices,
        len(counts.words),
        len(counts.labels),
        spelled,
        left_out,
        tuple(counts.notes),
    )


def _check_columns(format: str, columns: tuple[str, ...]) -> None:
    """DiagnosticError where these cannot be a text and what belongs to it."""
    found, numbers = ",".join(columns), [column.isdecimal() for column in columns]
    right = 1 <= len(columns) <= 2 and "0" not in columns and (all(numbers) or not any(numbers))
    if format == "conll":
        if not right or not all(re.fullmatch("[1-9][0-9]{0,8}", column) for column in columns):
            raise fail(
                f"--columns: found '{found}', expected the numbers of the word's and the tag's, as 1,4 "
                "(of words without tags 1)"
            )
    elif not right:
        raise fail(
            f"--columns: found '{found}', expected the text's and the label's, as review,stars "
            "(or, without a header, 2,1)"
        )
    if len(set(columns)) < len(columns):
        raise fail(f"--columns: {columns[0]} is named twice")


def _read(chosen: Format, source: str | Path, options: Options, counts: Counts) -> Iterator[Any]:
    if chosen.files:
        return chosen.read({name: open_source(Path(source) / name) for name in chosen.files}, options, counts)
    return chosen.read(open_source(source), options, counts)


def _derived(
    chosen: Format, sentences: list[Sentence], options: Options, counts: Counts
) -> tuple[int, list[Sample]]:
    """The samples of the sentences that are not too long, and how many words were spelled out."""
    seen: Counter[str] = Counter()
    if options.rare:
        counted = sentences
        if options.counted_in is not None:
            counted = list(_read(chosen, options.counted_in, options, Counts()))
        seen.update(word["form"] for sentence in counted for word in sentence.words)
    longest = options.longest
    kept = [each for each in sentences if longest is None or len(each.words) <= longest]
    counts.leave_out(f"sentences of more than {longest} words", len(sentences) - len(kept))
    counts.keep(kept)
    spelled = sum(structures.spell(sentence, seen, options.rare) for sentence in kept) if options.rare else 0
    choice = random.Random(options.seed)
    return spelled, [structures.STRUCTURES[options.structure](each, choice, options) for each in kept]


def _checked(format: str, chosen: Format, given: Mapping[str, Any]) -> Options:
    """The options, each of them one of the format's and in its range."""
    for name in given:
        if name not in chosen.all_options:
            own = ", ".join(f"--{each.replace('_', '-')}" for each in chosen.all_options) or "none"
            option = name.replace("_", "-")
            raise fail(f"--{option} does not go with the format '{format}'; its options are: {own}")
    options = Options(**given)
    for name, type in KINDS.items():
        value = getattr(options, name)
        if name in given and (not isinstance(value, type) or (type is int and isinstance(value, bool))):
            expected = {int: "a whole number", bool: "True or False", tuple: "a tuple of names"}
            raise fail(f"--{name}: found {value!r}, expected {expected.get(type, 'a text')}")
    for name, known in (("tokens", TOKENIZERS), ("structure", structures.STRUCTURES)):
        value = getattr(options, name)
        if value not in known:
            hint = suggestion(value, known) or f", expected one of {', '.join(known)}"
            raise fail(f"--{name}: found '{value}'{hint}")
    least_of = {"length": 1, "classes": 2, "longest": 1, "seed": 0, "rare": 0, "layers": 1, "skip": 0}
    for name, least in least_of.items():
        number, most = getattr(options, name), MOST_CLASSES if name == "classes" else 2**31 - 1
        if number is not None and not least <= number <= most:
            limit = f"{least} or more" if number < least else f"at most {most}"
            raise fail(f"--{name}: found {number}, expected {limit}")
    if len(options.delimiter) != 1 and options.delimiter != "tab":
        raise fail(f"--delimiter: found '{options.delimiter}', expected one character, or tab")
    if options.comments is not None and not options.comments.strip():
        raise fail(f"--comments: found '{options.comments}', expected what comments begin with, as '#'")
    if not options.separator or not {" ", "\t"}.isdisjoint(options.separator):
        found = options.separator.replace("\t", "\\t")
        raise fail(
            f"--separator: found '{found}', expected characters without a blank or a tab",
            "of a word and its tags a line: dnc import conll",
        )
    if "columns" in given:
        _check_columns(format, options.columns)
    if options.structure == "grid":
        if options.layers is None:
            raise fail("--structure grid needs --layers")
        if options.layers > MOST_LAYERS:
            raise fail(f"--layers: found {options.layers}, expected {MOST_LAYERS} or fewer")
        if options.skip > options.layers:
            raise fail(f"--skip: found {options.skip}, expected at most --layers, which is {options.layers}")
    elif options.layers is not None or options.skip:
        raise fail("--layers and --skip go with --structure grid alone")
    if "seed" in given and options.structure != "random":
        raise fail("--seed goes with --structure random alone")
    if options.rare and options.structure != "sequence":
        raise fail("--rare goes with --structure sequence alone")
    if options.counted_in is not None and not options.rare:
        raise fail("--counted-in says where words are counted for --rare, which is not given")
    return options
