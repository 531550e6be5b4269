"""Rows of a table from a text file of word vectors.

In: a file in GloVe's format (a word and its numbers a line, separated by blanks or tabs; a first line
with two counts, as word2vec and fastText write it, is passed over), a vocabulary, a table. Out: the table
with the rows of the words that the file has, and how many those are. Guaranteed: only vectors of words
that are looked for are kept in memory; the first of several vectors of a word counts. The last numbers of
a line, as many as a row has, are its vector, whatever stands before them the word, as ". . ." in GloVe.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import DiagnosticError, fail
from dnc.ir.program import TABLE, Parameter, Program
from dnc.runtime.data import Vocabulary
from dnc.runtime.data.lines import check_start, reading
from dnc.runtime.data.problems import DataDiagnostic, file_problem, names, suggestion

Floats = NDArray[np.float32]


@attrs.frozen
class Embeddings:
    """What a file gave a table. found: rows taken from it, `lowered` of them by the lower-case form."""

    path: str
    parameter: str
    rows: int
    found: int
    lowered: int

    def __str__(self) -> str:
        forms = f" ({self.lowered:,} by the lower-case form of the word)" if self.lowered else ""
        rest = "; the others keep their first values" if self.found < self.rows else ""
        return f"{self.path}: {self.found:,} of {self.rows:,} rows of {self.parameter}{forms}{rest}"


def table_of(program: Program, name: str) -> Parameter:
    """The table called `name`; DiagnosticError where there is none."""
    if not isinstance(name, str):
        raise fail(f"embeddings: found {type(name).__name__}, expected the name of a table")
    tables = {each.name: each for each in program.parameters if each.kind == TABLE}
    if name in tables:
        return tables[name]
    if any(each.name == name for each in program.parameters):
        raise fail(f"embeddings: {name} is no table; the tables are {names(tables) or 'none'}")
    hint = suggestion(name, tables) or f"; the tables are {names(tables) or 'none'}"
    raise fail(f"embeddings: no table is called '{name}'{hint}")


def read_embeddings(
    path: str | Path, table: Parameter, vocabulary: Vocabulary | None, values: Floats
) -> tuple[Floats, Embeddings]:
    """`values` with the rows that the file has.

    A word that the file lacks takes the vector of its lower-case form, if there is one.
    """
    dimension, width = table.dimensions[0].name, values.shape[1]
    if vocabulary is None or vocabulary.words is None:
        raise fail(
            f"embeddings: the data hold numbers for '{dimension}', so the rows of {table.name} are no words"
        )
    rows = {word.encode(): row for row, word in enumerate(vocabulary.words)}
    lower = {word.lower().encode() for word in vocabulary.words}
    vectors: dict[bytes, Floats] = {}
    for number, line in _lines(path, table, width):
        word = _word(line, width)
        if (word in rows or word in lower) and word not in vectors:
            vectors[word] = _vector(path, number, line, width)
    taken, lowered = values.copy(), 0
    found = 0
    for word, row in rows.items():
        vector = vectors.get(word)
        if vector is None:
            vector = vectors.get(word.decode().lower().encode())
            lowered += vector is not None
        if vector is not None:
            taken[row], found = vector, found + 1
    if not found:
        raise file_problem(str(path), f"holds none of the {len(rows):,} words of '{dimension}'")
    return taken, Embeddings(str(path), table.name, len(rows), found, lowered)


def _lines(path: str | Path, table: Parameter, width: int) -> Iterator[tuple[int, bytes]]:
    """The lines of vectors with their numbers, a blank for every tab; the first one has the right width, no
    other is shorter."""
    with reading(path), Path(path).open("rb") as file:
        first = True
        for number, raw in enumerate(file, 1):
            if number == 1:
                check_start(path, raw)
                raw = raw.removeprefix(codecs.BOM_UTF8)
            line = raw.rstrip(b" \t\r\n").replace(b"\t", b" ")
            cells = line.count(b" ")
            if not line or (number == 1 and cells == 1 and line.replace(b" ", b"").isdigit() and width != 1):
                continue
            if first and cells > width:  # a word with blanks, or a vector of another width
                cells = max(_numbers_at_the_end(line), width)
            if cells < width or (first and cells != width):
                word = _word(line, cells).decode("utf-8", "replace")
                size = table.dimensions[1].name
                hint = f" (--set {size}={cells})" if first and cells and size.isidentifier() else ""
                what = f"'{word}' has {cells} numbers, but the rows of {table.name} have {width}{hint}"
                raise _mistake(path, number, what)
            if first:  # whosever it is: a file of something else has no vector here
                _vector(path, number, line, width)
            first = False
            yield number, line


def _word(line: bytes, width: int) -> bytes:
    """What stands before the last `width` cells of a line, which may hold blanks."""
    if line.count(b" ") == width:
        return line.partition(b" ")[0]
    return line.rsplit(b" ", width)[0].rstrip(b" ")


def _numbers_at_the_end(line: bytes) -> int:
    """How many numbers a line ends with, behind its first cell."""
    cells = line.split(b" ")[1:]
    return next((at for at, cell in enumerate(reversed(cells)) if not _is_number(cell)), len(cells))


def _vector(path: str | Path, number: int, line: bytes, width: int) -> Floats:
    """The last `width` numbers of a line."""
    cells = line.rsplit(b" ", width)[1:]
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(cell) for cell in cells]).astype(np.float32)
    except ValueError:
        wrong = next(cell for cell in cells if not _is_number(cell))
        shown = wrong.decode("utf-8", "replace")
        raise _mistake(path, number, f"found '{shown}' in a vector, expected numbers") from None
    if not np.isfinite(vector).all():
        raise _mistake(path, number, "a vector holds numbers that are not finite")
    return vector


def _is_number(cell: bytes) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _mistake(path: str | Path, line: int, message: str) -> DiagnosticError:
    return DiagnosticError(DataDiagnostic(message, path=str(path), line=line))
