"""A program that was edited after its compilation: the build is of the old one, and a command says so."""

import os
import shutil
from pathlib import Path

import pytest

from dnc.runtime.build import read_build
from tests.support.command_line import TREE

NOTE = "note: base.dn has changed since b was compiled\n"
TRAIN = "run b --data train.jsonl --device vm --run-dir"


@pytest.fixture
def compiled(workplace, command):
    shutil.copyfile(TREE, "base.dn")
    assert command("compile base.dn -o b --set embed=4,hidden=4").code == 0
    assert NOTE not in command(f"{TRAIN} first").error
    return Path("base.dn")


def test_an_edited_program_is_told_of(compiled, command):
    compiled.write_text(compiled.read_text().replace("tanh", "sigmoid"))
    for line in (
        f"{TRAIN} run",
        "run b --data dev.jsonl --device vm --eval --run-dir first",
        "run b --data dev.jsonl --device vm --predict out.jsonl --run-dir first",
        "run --resume run --epochs 2",
    ):
        done = command(line)
        note = NOTE.replace(" b ", f" {Path('b').absolute()} ") if "resume" in line else NOTE
        assert done.code == 0 and done.error.count(note) == 1, line
    assert command("compile base.dn -o b --set embed=4,hidden=4").code == 0
    assert NOTE not in command(f"{TRAIN} third").error


def test_wherever_the_command_is_run(compiled, command, monkeypatch):
    """A program of that name in another folder is another one; both may be moved together."""
    there = Path("elsewhere")
    there.mkdir()
    (there / "base.dn").write_text("model Other(d = 1)\n")
    monkeypatch.chdir(there)
    line = "run ../b --data ../dev.jsonl --device vm --eval --run-dir ../first"
    done = command(line)
    assert done.code == 0 and "note:" not in done.error
    Path("../base.dn").write_text("model New(d = 1)\n")
    assert "note: base.dn has changed since ../b was compiled\n" in command(line).error
    Path("../moved").mkdir()
    for name in ("b", "base.dn"):
        os.rename(f"../{name}", f"../moved/{name}")
    done = command(line.replace("../b", "../moved/b"))
    assert "note: base.dn has changed since ../moved/b was compiled\n" in done.error


def test_nothing_is_said_where_nothing_is_known(compiled, command):
    line = "run b --data dev.jsonl --device vm --eval --run-dir first"
    text = compiled.read_bytes()
    for content in (b"\xff", text.replace(b"\n", b"\r\n")):
        compiled.write_bytes(content)
        done = command(line)
        assert done.code == 0 and "note:" not in done.error
    compiled.unlink()
    assert "note:" not in command(line).error
    compiled.mkdir()
    assert "note:" not in command(line).error
    compiled.rmdir()
    manifest = Path("b/manifest.json")
    compiled.write_text("model New(d = 1)\n")
    manifest.write_text(manifest.read_text().replace('"source_place": "../base.dn"', '"source_place": ""'))
    assert read_build("b").source_place == ""
    assert "note:" not in command(line).error
