"""Names that our files cannot hold, as they are no UTF-8, or that a terminal cannot show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.models import EXAMPLES

RUN = "run build --device vm --epochs 1 --data"


@pytest.fixture
def odd(workplace):
    """The training data, by a name that is no UTF-8."""
    name = os.fsdecode(b"d\xff.jsonl")
    try:
        shutil.copy("train.jsonl", name)
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    return name


def test_names_that_no_run_can_note(command, odd, workplace):
    odd_run = os.fsdecode(b"run\xff")
    for arguments in ((odd,), (odd, "--run-dir", "run"), ("train.jsonl", "--run-dir", odd_run)):
        done = command(RUN, *arguments)
        assert done.code == 2 and "is not UTF-8, and what is written here has to name it" in done.error
        assert not list(workplace.glob("run*"))


def test_a_program_that_no_build_can_note(command, odd):
    name = os.fsdecode(b"m\xff.dn")
    shutil.copy(EXAMPLES / "treelstm.dn", name)
    done = command("compile", name, "-o", "other")
    assert done.code == 2 and "is not UTF-8" in done.error and not os.path.exists("other")
    os.mkdir(os.fsdecode(b"f\xff"))
    shutil.copy(EXAMPLES / "treelstm.dn", "m.dn")
    os.chdir(os.fsdecode(b"f\xff"))  # the place of a source is not noted then; the workplace goes back
    done = command("compile ../m.dn -o ../other --set hidden=3,embed=3")
    assert done.code == 0, done.error


def test_a_terminal_of_another_encoding(odd):
    shutil.copy("train.jsonl", "é.jsonl")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "dnc", *arguments]
        return subprocess.run(command, capture_output=True, env=environment)

    done = run(*RUN.split(), "é.jsonl", "--run-dir", "r")
    assert done.returncode == 0, done.stderr
    assert '"data":"é.jsonl"'.encode() in done.stdout.splitlines()[0]
    for name, shown in (("é.jsonl", rb"\xe9.jsonl"), (odd, rb"d\udcff.jsonl")):
        done = run("check", str(EXAMPLES / "treelstm.dn"), "--data", name)  # which writes nothing
        assert done.returncode == 0 and shown + b": 12 samples" in done.stdout, done.stderr
