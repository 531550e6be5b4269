"""The lines of a JSONL file as decoded values.

In: a file of JSON objects, one a line, in UTF-8. Out: (line number, object) for every line that is
not blank. Guaranteed: whatever the file holds, the user gets values or a diagnostic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from dnc.diagnostics import check_path, unreadable
from dnc.runtime.data.problems import Problem, ProblemList, file_problem, kind_of, shortened

EMPTY_FILE = "the file is empty, expected one sample a line"
ONE_A_LINE = "a sample is a line: jq -c . writes it so, jq -c '.[]' the elements of an array"
OTHER_FORMATS = "; dnc import makes JSONL of CSV, CoNLL-U, plain text and more"
_PLACE = re.compile(r" \(byte (\d+)\)$")
_MARK = b"\xef\xbb\xbf"  # some editors start a UTF-8 file with it
_FOREIGN = {
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"\xff\xfe": "is UTF-16, expected UTF-8",
    b"\xfe\xff": "is UTF-16, expected UTF-8",
}  # how other files start


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """What goes wrong with a file that is read inside, as a DiagnosticError."""
    check_path(path, "a file to read")
    try:
        yield
    except OSError as error:
        raise file_problem(str(path), unreadable(error)) from None


def check_start(path: str | Path, content: bytes) -> None:
    """DiagnosticError where a file, of which this is the beginning, is none of text in UTF-8."""
    for start, what in _FOREIGN.items():
        if content.startswith(start):
            raise file_problem(str(path), what)


def load(path: str | Path) -> bytes:
    """A text file's content; DiagnosticError if there is none or it is not UTF-8."""
    with reading(path):
        content = Path(path).read_bytes()
    check_start(path, content)
    content = content.removeprefix(_MARK)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems = ProblemList(str(path))
        problems.add(f"not UTF-8: byte 0x{content[error.start]:02x} ({error.reason})", line)
        problems.check()
    return content


def objects(content: bytes, problems: ProblemList) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of every line; broken lines go to `problems`."""
    is_first = True
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, _decode(line)
        except Problem as problem:
            if is_first and _takes_lines(content):
                problems.add(f"the JSON of a sample goes on in the next line; {ONE_A_LINE}", number)
                return
            if is_first and line.lstrip()[:1] not in b'{["(' and problem.message.startswith("broken JSON"):
                problems.add(problem.message + OTHER_FORMATS, number, problem.column)
                return
            problems.add(problem.message, number, problem.column, note=problem.note)
        is_first = False


def _takes_lines(content: bytes) -> bool:
    """Whether the first JSON value of a file, which begins with it, takes more than one line."""
    content = content.strip()
    try:
        msgspec.json.decode(content)
        end = len(content)
    except RecursionError:
        return False
    except ValueError as error:
        place = _PLACE.search(str(error))
        if place is None or "trailing characters" not in str(error):
            return False
        end = int(place[1]) - 1
    return b"\n" in content[:end].rstrip()


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except RecursionError:
        raise Problem(
            "nested too deeply (some 1,000 brackets within each other can be read, and a child in a list has "
            "two); write it in the flat form"
        ) from None
    except ValueError as error:
        raise _broken(line, str(error)) from None
    if type(value) is not dict:
        hint = f"; {ONE_A_LINE}" if type(value) is list else ""
        raise Problem(f"a sample must be an object, found {kind_of(value)}{hint}")
    # As many quotes come out again as went in, unless an object lost a key, or some were escaped.
    if b"u0022" in line or line.count(b'"') != msgspec.json.encode(value).count(b'"'):
        _find_duplicate(line)
    return value


def _find_duplicate(line: bytes) -> None:
    """A problem if a key occurs twice in an object of the line."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise Problem(f"the key '{shortened(key)}' occurs twice in an object")
            seen.add(key)

    with suppress(RecursionError):  # the parser of the standard library reads fewer levels
        json.loads(line, object_pairs_hook=check)


_HALF = re.compile(r"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def _broken(line: bytes, message: str) -> Problem:
    """What is wrong with a line that is not JSON."""
    text = line.decode("utf-8").rstrip()
    if text.startswith("("):
        return Problem("broken JSON: found '('; dnc import ptb-trees makes JSONL of trees in brackets", 1)
    place = _PLACE.search(message)
    if place is None:
        half = _HALF.search(text)
        if half is not None:
            return Problem(
                f"broken JSON: {half[0]} is half of a character, and the other half is missing",
                half.start() + 1,
            )
        if "truncated" in message:
            return Problem("broken JSON: the line ends too early; a sample is a line", len(text) + 1)
        return Problem(f"broken JSON: {message.split(' - at ')[0].lower()}")
    at = int(place[1]) - ("trailing characters" in message)  # reported after reading one
    start = min(len(line[:at].decode("utf-8", "ignore")), len(text) - 1)
    sign = start > 0 and text[start - 1] == "-"
    constant = re.compile(r"-?(NaN|Infinity|nan|inf)\b").match(text, start - sign)
    if constant:
        return Problem(f"{constant[0]} is not allowed, numbers are finite", constant.start() + 1)
    what = message[: place.start()].removeprefix("JSON is malformed: ")
    if what == "trailing characters" and text[start] == "{":
        what = "found a second object; a sample is a line"
    return Problem(f"broken JSON: {what}", start + 1)
