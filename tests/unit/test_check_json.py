"""`dnc check --json`: the form that docs/editing.md describes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec

from dnc.diagnostics import Diagnostic, Source, Span
from dnc.editing import CheckResult, check_result
from dnc.editing.report import schema
from tests.support.command_line import TREE

ROOT = Path(__file__).parents[2]


def result(done):
    assert done.out.count("\n") == 1 and done.error == ""
    found = msgspec.json.decode(done.out, type=CheckResult)
    assert done.code == (0 if found.ok else 2)
    return found


def test_a_right_program(command):
    found = result(command(f"check {TREE} --json"))
    assert found == CheckResult(1, str(TREE), True, "TreeLSTM", [])


def test_several_mistakes(command):
    path = ROOT / "tests" / "errors" / "several_mistakes.dn"
    found = result(command(f"check {path} --json"))
    assert not found.ok and found.model is None and len(found.diagnostics) == 5
    first = found.diagnostics[0]
    assert first.file == str(path) and first.severity == "error" and first.range is not None
    line = path.read_text().split("\n")[first.range.start.line - 1]
    assert line[first.range.start.column - 1 : first.range.end.column - 1] == "clases"
    assert first.range.end.line == first.range.start.line


def test_warnings_and_notes(command):
    path = ROOT / "tests" / "errors" / "unused_function.dn"
    found = result(command(f"check {path} --json"))
    assert found.ok and found.model and {each.severity for each in found.diagnostics} == {"warning"}
    note = check_result("m", None, [Diagnostic("x", Span(Source("m", "y"), 1, 1), notes=("a", "b"))])
    assert note.diagnostics[0].notes == ["a", "b"]


def test_data(command, workplace):
    (workplace / "bad.jsonl").write_text('{"word": "good", "label": 1}\n{"word": 1.5, "label": 1}\n')
    found = result(command(f"check {TREE} --data bad.jsonl --json"))
    assert not found.ok and found.diagnostics[0].file == "bad.jsonl"
    assert found.diagnostics[0].range is not None and found.diagnostics[0].range.start.line == 2


def test_what_belongs_to_no_place(command):
    for text in ("none.dn", f"{TREE} --set nothing=1", f"{TREE} --set x"):
        found = result(command(f"check --json {text}"))
        assert not found.ok and found.diagnostics[0].range is None


def test_paths_of_other_bytes_than_utf_8(command):
    path, shown = "a\udcff.dn", "a\\udcff.dn"
    found = result(command("check --json", path))
    assert found.program == shown and found.diagnostics[0].message == f"{shown}: there is no such file"
    found = result(command(f"check {TREE} --json --data", path))
    assert found.diagnostics[0].file == shown


def test_names_of_other_bytes_in_a_place(command, workplace):
    path = workplace / "a\udcff.dn"
    path.write_text("model M(")
    assert result(command("check --json", path.name)).diagnostics[0].file == "a\\udcff.dn"


def test_json_is_utf_8(command, workplace, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert command("check --json \u00e4.dn").code == 2
    assert msgspec.json.decode(out.buffer.getvalue(), type=CheckResult).program == "\u00e4.dn"


def test_schema_is_fresh():
    path = ROOT / "docs" / "check.schema.json"
    assert path.read_text(encoding="utf-8") == schema(), "run: python docs/make_check_schema.py"


def test_a_language_server_without_its_package(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.delitem(sys.modules, "dnc.editing.server", raising=False)
    for name in [name for name in sys.modules if name.startswith("pygls.")]:
        monkeypatch.delitem(sys.modules, name)
    done = command("lsp")
    assert (done.code, done.out) == (2, "")
    assert done.error == "error: the language server needs pygls (in dnc's folder: pip install -e '.[lsp]')\n"
