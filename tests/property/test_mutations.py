"""Damaged programs and data: each gets a diagnostic, or works; never a traceback, never a hang.

Programs go through `dnc check` and, where they are right, through the passes to a plan; data through
`dnc check --data`. Many more: `python -m tests.property.test_mutations 50000`.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnc.cli import execute
from dnc.compiler import make_plan, read_program, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import read
from tests.support.models import EXAMPLES
from tests.support.mutations import Choices, damaged_line, damaged_program, seeded
from tests.support.programs import program_of
from tests.unit.test_data_random import flatten, grow

TESTS = Path(__file__).parents[1]
TEXTS = [path.read_text() for path in sorted((*EXAMPLES.glob("*.dn"), *TESTS.glob("property/programs/*.dn")))]
MADE_UP = 40  # random programs among the texts
Command = Callable[[Path, Path | None], tuple[int, str]]
LONGEST = 20  # seconds
LARGEST = 512  # dimension of a parameter in a program that is planned; larger ones take their time
COUNT = int(os.environ.get("DNC_MUTATIONS", "150"))

generated = settings(deadline=None, derandomize="DNC_MUTATIONS" not in os.environ, max_examples=COUNT)


def make_program(chosen: Choices) -> str:
    """A damaged program."""
    number = chosen.number(0, len(TEXTS) + MADE_UP - 1)
    return damaged_program(chosen, TEXTS[number] if number < len(TEXTS) else program_of(number))


def make_data(chosen: Choices) -> tuple[str, bytes]:
    """A program, and data for it of which a line is damaged."""
    text, program = chosen.pick(programs_of_texts())
    rng = random.Random(chosen.number(0, 2**16))
    nested = grow(program, program.root, rng, 12)
    sample = flatten(program, nested, rng) if chosen.number(0, 1) else nested
    good = msgspec.json.encode(nested) + b"\n"
    return text, good * chosen.number(0, 2) + damaged_line(chosen, sample) + b"\n" * chosen.number(0, 2)


@st.composite
def drawn(draw: Callable[..., Any], make: Callable[[Choices], Any]) -> Any:
    """What `make` makes of choices that Hypothesis draws."""
    return make(Choices(lambda least, most: int(draw(st.integers(least, most)))))


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """TimeoutError after `LONGEST` seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_program(text: str, folder: Path, by: Command) -> str:
    """Checks a program, and compiles it where it is right."""
    path = folder / "damaged.dn"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    code, error = by(path, None)
    if code == 2:
        assert error.startswith((str(path), "error: ")), error
        return "refused"
    assert code == 0
    program = read_program(path, {})[1]
    sizes = [size for p in program.parameters for size in p.type.shape if size is not None]
    if max(sizes, default=0) <= LARGEST:
        with contextlib.suppress(DiagnosticError), time_limit():
            make_plan(transform(program), "cpu")
    return "right"


def check_data(made: tuple[str, bytes], folder: Path, by: Command) -> str:
    """Checks data for a program."""
    model, path = folder / "model.dn", folder / "damaged.jsonl"
    model.write_text(made[0])
    path.write_bytes(made[1])
    code, error = by(model, path)
    assert code in (0, 2)
    assert code == 0 or error.startswith((str(path), "error: ")), error
    return "refused" if code else "right"


def command_line(model: Path, data: Path | None) -> tuple[int, str]:
    """Exit code and standard error of `dnc check`."""
    error = io.StringIO()
    arguments = ["check", str(model), *(["--data", str(data)] if data else [])]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error), time_limit():
        code = execute(arguments)
    return code, error.getvalue()


def directly(model: Path, data: Path | None) -> tuple[int, str]:
    """What `dnc check` calls, without the command line, which takes longer than the check."""
    try:
        with time_limit():
            if data is None:
                read_program(model, {})
            else:
                read(data, dict(programs_of_texts())[model.read_text()])
    except DiagnosticError as error:
        return 2, str(error)
    return 0, ""


@cache
def programs_of_texts() -> list[tuple[str, Any]]:
    found = []
    for text in TEXTS:
        with contextlib.suppress(DiagnosticError):
            found.append((text, load_program(Source("model.dn", text), {})[0]))
    return found


@generated
@given(drawn(make_program))
def test_programs(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    check_program(text, tmp_path_factory.getbasetemp(), command_line)


@generated
@given(drawn(make_data))
def test_data(tmp_path_factory: pytest.TempPathFactory, made: tuple[str, bytes]) -> None:
    check_data(made, tmp_path_factory.getbasetemp(), command_line)


def campaign(first: int, count: int) -> int:
    """Seeds `first` to `first + count` of both kinds; how many kinds of failures there were."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    ended: Counter[str] = Counter()
    seen: Counter[tuple[str, int]] = Counter()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(first, first + count):
            begin, kind = time.perf_counter(), "data" if seed % 2 else "program"
            try:
                by = directly if seed % 20 > 1 else command_line
                if seed % 2:
                    found = check_data(make_data(seeded(seed)), Path(name), by)
                else:
                    found = check_program(make_program(seeded(seed)), Path(name), by)
                ended[f"{kind} {found}"] += 1
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                seen[frame.filename, frame.lineno or 0] += 1
                if seen[frame.filename, frame.lineno or 0] == 1:
                    print(f"==== seed {seed}: {kind}", flush=True)
                    print("".join(traceback.format_exception(error)[-4:])[-1500:], flush=True)
            if (took := time.perf_counter() - begin) > 3:
                print(f"seed {seed}: {took:.1f} s", flush=True)
    print(f"{count} in {time.perf_counter() - start:.0f} s: {dict(ended)}; failures: {dict(seen)}")
    return len(seen)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(1 if campaign(int(sys.argv[1]), int(sys.argv[2])) else 0)
