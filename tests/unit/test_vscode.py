"""The folder for Visual Studio Code: the colours are those of the language, and it starts `dnc lsp`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dnc.diagnostics import Source
from dnc.editing.analysis import analyze
from dnc.editing.symbols import occurrences
from dnc.frontend.lines import tokens_of
from tests.support.models import EXAMPLES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "editors" / "vscode"
TREE = (EXAMPLES / "treelstm.dn").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def make_grammar():
    spec = spec_from_file_location("make_grammar", ROOT / "editors" / "make_grammar.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def patterns():
    text = (FOLDER / "syntaxes" / "dn.tmLanguage.json").read_text(encoding="utf-8")
    return json.loads(text)["patterns"]


def colours(patterns, text):
    """Per line and column (from 1) of what is coloured, the text and its scope."""
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        at = 0
        while at < len(line):
            matches = [(re.compile(each["match"]).search(line, at), each) for each in patterns]
            begin = min((match.start() for match, _ in matches if match), default=None)
            if begin is None:
                break
            match, pattern = next((m, p) for m, p in matches if m and m.start() == begin)
            names = {int(group): each["name"] for group, each in pattern.get("captures", {}).items()}
            for group, name in (names or {0: pattern["name"]}).items():
                found[number, match.start(group) + 1] = (match[group], name)
            at = max(match.end(), at + 1)
    return found


def test_grammar_is_fresh(make_grammar):
    assert make_grammar.PAGE.read_text(encoding="utf-8") == make_grammar.render(), (
        "run: python editors/make_grammar.py"
    )


SCOPES = {
    "builtin": "support.function",
    "reduction": "support.function",
    "measure": "support.function",
    "initializer": "support.constant",
    "link": "variable.language",
    "domain": "variable.language",
    "kind": "storage.type",
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.dn")), ids=lambda path: path.stem)
def test_colours_are_those_of_the_language(make_grammar, patterns, path):
    text = path.read_text(encoding="utf-8")
    found = colours(patterns, text)
    for token in tokens_of(text):
        shown, scope = found.get((token.line, token.column), ("", ""))
        if token.type == "COMMENT":
            assert (shown, scope.split(".")[0]) == (str(token), "comment")
        elif str(token) in make_grammar.keywords():
            assert shown == str(token) and scope.startswith("keyword"), token
        elif token.type == "NUMBER":
            assert (shown, scope.split(".")[0]) == (str(token), "constant")
        elif str(token) in make_grammar.operators():
            assert (shown, scope) == (str(token), "keyword.operator.dn")
    for each in occurrences(analyze(Source("m", text))):
        if each.symbol.kind in SCOPES:
            shown, scope = found[each.span.line, each.span.column]
            assert scope.startswith(SCOPES[each.symbol.kind]), (each, scope)
        elif each.symbol.is_own and each.symbol.name not in make_grammar.keywords():
            shown, scope = found[each.span.line, each.span.column]
            assert shown == each.symbol.name and not scope.startswith("keyword"), (each, scope)


def test_manifest_names_what_is_there():
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    contributes = package["contributes"]
    paths = [
        package["main"],
        contributes["grammars"][0]["path"],
        contributes["languages"][0]["configuration"],
    ]
    assert all((FOLDER / path).is_file() for path in paths)
    assert "dependencies" not in package and "scripts" not in package
    json.loads((FOLDER / "language-configuration.json").read_text(encoding="utf-8"))


def run(command, text):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    host = ROOT / "tests" / "support" / "vscode_host.js"
    done = subprocess.run(
        [node, str(host), str(FOLDER / "extension.js"), str(command), text],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stderr == ""
    return json.loads(done.stdout)


def test_the_extension(tmp_path):
    pytest.importorskip("pygls", reason="the language server needs the extra lsp")
    command = tmp_path / "dnc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dnc "$@"\n')
    command.chmod(0o755)
    found = run(command, TREE.replace("c = sigmoid(i) *", "c=sigmoid(§i) *", 1) + "param unused: [1]\n")
    assert found["errors"] == []
    assert [(each["severity"], each["source"]) for each in found["first"]] == [(1, "dnc")]
    assert "i: [hidden] = [128]" in found["hover"]["contents"]["value"]
    assert [each["range"]["start"]["line"] for each in found["definition"]] == [14]
    assert len(found["references"]) == len(found["highlights"]) == 2
    assert [each["name"] for each in found["symbols"]][:2] == ["TreeLSTM", "Tree"]
    assert found["formatting"][0]["newText"].startswith(TREE.split("\n")[0])
    assert {"i", "tanh", "W"} <= {each["label"] for each in found["completion"]}
    assert [each["newText"] for each in found["renamed"]["file:///model.dn"]] == ["other"] * 2
    assert "word of the language" in found["refused"]
    assert found["last"][0]["severity"] == 0


def test_a_command_that_is_not_there(tmp_path):
    found = run(tmp_path / "none", TREE)
    assert len(found["errors"]) == 1 and "ENOENT" in found["errors"][0] and ".[lsp]" in found["errors"][0]
