"""Format "csv": a text and its label a row.

In: a table with a header (or columns by number), as RFC 4180 has it. Out: the tokens of the text, and
the label as a string, or as a number. Guaranteed: every row has as many cells as the first one; rows
without a text or a label are counted.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from dnc.diagnostics import counted
from dnc.runtime.data.problems import names, shown, suggestion
from dnc.runtime.importers.source import Counts, Options, Sentence, Source
from dnc.runtime.importers.tokens import TOKENIZERS

COLUMNS = ("text", "label")
UNQUOTED = "where a quote is a sign like others: --no-quotes"


def read_csv(source: Source, options: Options, counts: Counts) -> Iterator[Sentence]:
    """A sentence for every row."""
    csv.field_size_limit(max(csv.field_size_limit(), len(source.text)))
    delimiter = "\t" if options.delimiter == "tab" else options.delimiter
    reader = csv.reader(
        io.StringIO(source.text, newline=""),
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if options.quotes else csv.QUOTE_NONE,
    )
    rows = _rows(source, reader, counts, delimiter != "," and options.quotes)
    columns = options.columns or COLUMNS
    numbers = all(column.isdecimal() for column in columns)
    where: list[int] = [int(column) - 1 for column in columns] if numbers else []
    width = 0
    for line, row in rows:
        if not where:
            where = [_column(source, line, row, column) for column in columns]
            width = len(row)
            continue
        width = width or len(row)
        if len(row) != width or max(where) >= width:
            expected = width if len(row) != width else max(where) + 1
            raise source.mistake(line, None, f"found {len(row)} cells, expected {expected}")
        tokens = TOKENIZERS[options.tokens](row[where[0]])
        label = row[where[1]].strip() if len(where) > 1 else None
        if not tokens or (label == "" and options.unlabelled != ""):
            counts.leave_out("rows without a text" if not tokens else "rows without a label")
            continue
        counts.words.update(tokens)
        rest: dict[str, Any] = {}
        if label is not None:
            is_number = options.numeric and label != options.unlabelled
            rest["label"] = _number(source, line, label) if is_number else label
            counts.labels.add(str(rest["label"]))
        yield Sentence([{"form": token} for token in tokens], rest)


def _rows(source: Source, reader: Any, counts: Counts, doubtful: bool) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the lines they begin in. doubtful: whether quotes may be signs like
    others, as in many files with tabs."""
    line, long = 1, []
    try:
        for row in reader:
            if row:
                yield line, row
            else:
                counts.leave_out("blank lines")
            if reader.line_num > line:
                long.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        notes = (UNQUOTED,) if doubtful else ()
        raise source.mistake(line, None, f"this row cannot be read: {error}", *notes) from None
    if long and doubtful:
        rows = counted(len(long), "row")
        counts.notes.append(f"{rows} of several lines, in quotes, the first in line {long[0]}; {UNQUOTED}")


def _column(source: Source, line: int, header: list[str], name: str) -> int:
    known = [" ".join(cell.split()) for cell in header]
    if name not in known:
        hint = suggestion(name, known) or f"; the columns are {names(known)}"
        raise source.mistake(line, None, f"there is no column '{name}'{hint} (--columns TEXT,LABEL)")
    if known.count(name) > 1:
        places = ", ".join(str(at + 1) for at, each in enumerate(known) if each == name)
        raise source.mistake(line, None, f"the columns {places} are all called '{name}': name them by number")
    return known.index(name)


def _number(source: Source, line: int, text: str) -> float:
    try:
        number = math.nan if "_" in text else float(text)  # 1_0 is a number for Python alone
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise source.mistake(line, None, f"found the label {shown(text)}, expected a number")
    return number
