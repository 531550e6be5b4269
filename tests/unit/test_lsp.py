"""`dnc lsp` through the protocol: pygls' client, and the server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="the language server needs the extra lsp")

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

from tests.support.models import EXAMPLES

ROOT = Path(__file__).parents[2]
TREE = (EXAMPLES / "treelstm.dn").read_text(encoding="utf-8")
PATIENCE = 60  # seconds; on a loaded machine


class Editor:
    """An editor with one program open; places are given as the text around `§`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = LanguageClient("tests", "1")
        self.found: dict[int, list[lsp.Diagnostic]] = {}
        self.version = 0
        self.text, self.uri = "", "file:///model.dn"

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _published(params: lsp.PublishDiagnosticsParams) -> None:
            if params.version is not None:
                self.found[params.version] = list(params.diagnostics)

    def wait(self, task):
        """The result of a task."""
        return self.loop.run_until_complete(asyncio.wait_for(task, PATIENCE))

    def start(self, options=None) -> None:
        """Starts the server, in UTF-16 as all clients can."""
        os.environ["PYTHONPATH"] = str(ROOT)
        self.wait(self.client.start_io(sys.executable, "-m", "dnc", "lsp"))
        parameters = lsp.InitializeParams(lsp.ClientCapabilities(), initialization_options=options)
        self.capabilities = self.wait(self.client.initialize_async(parameters)).capabilities
        self.client.initialized(lsp.InitializedParams())
        item = lsp.TextDocumentItem(self.uri, "dn", self.version, "")
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))

    def stop(self) -> None:
        """As an editor that is closed."""
        self.wait(self.client.shutdown_async(None))
        self.client.exit(None)
        self.wait(self.client.stop())
        self.loop.close()

    def type(self, text: str) -> list[lsp.Diagnostic]:
        """Replaces the text; the diagnostics of it."""
        self.version += 1
        self.text = text
        document = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = lsp.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))
        end = time.monotonic() + PATIENCE
        while self.version not in self.found:
            assert time.monotonic() < end, "no diagnostics came"
            self.loop.run_until_complete(asyncio.sleep(0.005))
        return self.found[self.version]

    def place(self, marked: str, last: bool = False) -> dict:
        """Where `§` stands in a piece of the text."""
        before, _, behind = marked.partition("§")
        assert self.text.count(before + behind) >= 1, marked
        at = (self.text.rindex if last else self.text.index)(before + behind) + len(before)
        line = self.text[:at].count("\n")
        row = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        position = lsp.Position(line, len(row.encode("utf-16-le")) // 2)
        return {"text_document": lsp.TextDocumentIdentifier(self.uri), "position": position}

    def at(self, range: lsp.Range) -> str:
        """The text in a range of one line."""
        assert range.start.line == range.end.line
        row = self.text.split("\n")[range.start.line].encode("utf-16-le")
        return row[2 * range.start.character : 2 * range.end.character].decode("utf-16-le")

    def hover(self, marked: str) -> str:
        """What hover shows."""
        found = self.wait(self.client.text_document_hover_async(lsp.HoverParams(**self.place(marked))))
        return "" if found is None else found.contents.value

    def complete(self, marked: str) -> dict[str, lsp.CompletionItem]:
        """Types a piece of text at the end and completes at `§`."""
        self.type(TREE + marked.replace("§", ""))
        place = lsp.CompletionParams(**self.place(marked, last=True))
        return {item.label: item for item in self.wait(self.client.text_document_completion_async(place))}

    def edited(self, edits: list[lsp.TextEdit]) -> str:
        """The text after edits of the client."""
        lines = self.text.split("\n")
        for edit in sorted(edits, key=lambda each: (each.range.start.line, each.range.start.character))[::-1]:
            start, end = edit.range.start, edit.range.end
            head, tail = lines[start.line][: start.character], lines[end.line][end.character :]
            lines[start.line : end.line + 1] = (head + edit.new_text + tail).split("\n")
        return "\n".join(lines)

    def rename(self, marked: str, new: str) -> str:
        """The text after a renaming."""
        parameters = lsp.RenameParams(**self.place(marked), new_name=new)
        edit = self.wait(self.client.text_document_rename_async(parameters))
        return self.edited(edit.changes[self.uri])

    def lines_of(self, found: list[lsp.Location]) -> list[int]:
        """The lines of places, from 1."""
        return [each.range.start.line + 1 for each in found]


@pytest.fixture(scope="module")
def server():
    editor = Editor()
    editor.start()
    yield editor
    editor.stop()


@pytest.fixture
def editor(server):
    assert server.type(TREE) == []
    return server


def test_several_diagnostics_at_once(editor):
    found = editor.type(TREE.replace("b_w, 3", "b_w + é, 3"))
    assert len(found) == 1 and "é" in found[0].message
    found = editor.type(
        TREE.replace("W @ x", "W2 @ x").replace("softmax", "softmix") + "# 𝒙\nparam unused: [1]\n"
    )
    assert [each.severity for each in found] == [lsp.DiagnosticSeverity.Error] * 2
    assert [editor.at(each.range) for each in found] == ["W2", "softmix"]
    assert found[0].source == "dnc" and "unknown name 'W2'; did you mean 'W'?" in found[0].message
    found = editor.type(TREE + "param unused: [1]\n")
    assert [each.severity for each in found] == [lsp.DiagnosticSeverity.Warning]
    assert editor.type(TREE) == []


@pytest.mark.parametrize(
    "place, parts",
    [
        ("param §W", ["param W: [3 * hidden, embed] = xavier", "[768, 256], 196,608 elements"]),
        ("= split(W §@ x", ["W @ x: [3 * hidden] = [768]"]),
        ("W @ x §+ b_w", ["W @ x + b_w: [3 * hidden] = [768]"]),
        ("    §i, o, u = split", ["i: [hidden] = [256]"]),
        ("concat(l.§h", ["h: [hidden] = [256]", "component of the state S"]),
        ("split(U @ §concat", ["concat(a: [n]", "concat(l.h, r.h): [2 * hidden] = [512]"]),
        ("-> node(§encode", ["fn encode(t: Tree) -> S", "encode(left): S = (h: [hidden] = [256]"]),
        ("Leaf(§word, ...)", ["word: token<vocab>", "a field of Tree, in Leaf"]),
        ("logits(t), t.§label", ["label: class<classes> = 5", "in Leaf and Node"]),
        ("E[§word]", ["word: token<vocab>"]),
        ("= §match t", []),
        ("state §S", ["state S = (h: [hidden] = [256], c: [hidden] = [256])"]),
        (
            "struct §Tree",
            ["struct Tree = Leaf(word: token<vocab>, label: class<classes>)\n            | Node("],
        ),
        ("model §TreeLSTM", ["model TreeLSTM(vocab, embed = 256, hidden = 256, classes = 5)"]),
        ("(§vocab, ", ["an open dimension"]),
        ("= §pieces", ["pieces(a, b, ...)"]),
        ("§argmax(logits(t))", ["argmax(logits(t)): class<classes> = 5"]),
    ],
)
def test_hover(editor, place, parts):
    shown = editor.hover(place)
    assert all(part in shown for part in parts), shown
    assert bool(parts) == bool(shown)


def test_hover_in_a_half_typed_program(editor):
    known = editor.hover("split(W §@ x")
    for broken in ("c = sigmoid(i) * tanh(\n", "c = = tanh(u)\n", "c = sigmoid(i) *"):
        assert editor.type(TREE.replace("c = sigmoid(i) * tanh(u)\n", broken))
        assert editor.hover("split(W §@ x") == known  # a line of the broken declaration
        assert "[5 * hidden] = [1280]" in editor.hover("r.h) §+ b_u")  # and one of another
    assert "[hidden] = [256]" in editor.hover("c = §sigmoid(i) *")  # the line that has changed itself
    moved = editor.type(f"# one\n# more\n{TREE.replace('c = sigmoid(i) * tanh(u)', 'c = (')}")
    assert moved and editor.hover("split(W §@ x") == known


def test_definition_and_references(editor):
    def definition(place):
        parameters = lsp.DefinitionParams(**editor.place(place))
        return editor.lines_of(editor.wait(editor.client.text_document_definition_async(parameters)))

    lines = TREE.split("\n")
    assert definition("split(§W @ x") == [lines.index(next(x for x in lines if x.startswith("param W"))) + 1]
    assert definition("t.§label)") == [4, 5]
    assert definition("§tanh(u)") == []
    assert definition("-> §leaf(") == [14]
    context = lsp.ReferenceContext(include_declaration=True)
    parameters = lsp.ReferenceParams(**editor.place("fn §encode"), context=context)
    found = editor.wait(editor.client.text_document_references_async(parameters))
    assert editor.lines_of(found) == [24, 26, 26, 28]
    editor.type(TREE.replace("-> leaf(E[word])", "-> leaf(E[word]"))
    assert definition("-> §leaf(") == [14]  # its line cannot be read


def test_renaming(editor):
    assert editor.rename("cell §leaf", "start") == TREE.replace("cell leaf", "cell start").replace(
        "-> leaf(", "-> start("
    )
    state = editor.rename("state S = (§h", "hidden_state")
    assert ".hidden_state, r.hidden_state" in state and "    hidden_state = sigmoid(o)" in state
    field = editor.rename("Leaf(§word: ", "form")
    assert field.count("form") == 3 and "word" not in field
    assert "fn encode(vertex: Tree) -> S = match vertex:" in editor.rename("encode(§t: ", "vertex")
    for place, new, why in (
        ("cell §leaf", "node", "already means something else"),
        ("cell leaf(§x: ", "W", "already means something else"),
        ("cell §leaf", "fn", "word of the language"),
        ("cell §leaf", "1st", "is no name"),
        ("§tanh(u)", "th", "belongs to the language"),
        ("§    i, o, u", "th", "no name here"),
    ):
        with pytest.raises(JsonRpcException, match=why):
            editor.rename(place, new)
    editor.type(TREE + "fn (")
    with pytest.raises(JsonRpcException, match="cannot be read"):
        editor.rename("cell §leaf", "start")


@pytest.mark.parametrize(
    "place, expected, others",
    [
        ("fn f(t: Tree) = encode(t).§", {"h", "c"}, {"t", "tanh"}),
        ("fn f(t: Tree) = t.§", {"label", "parent"}, {"word", "prev"}),
        ("fn f(t: Tree) = tanh(encode(t).h) + §", {"t", "W", "encode", "tanh", "cross_entropy"}, {"i"}),
        ("cell f(x: [hidden]) = tanh(§", {"x", "W", "leaf", "tanh"}, {"encode"}),
        ("loss sum(t in §", {"root", "all"}, {"t"}),
        ("loss sum(t in all(§", {"Tree"}, {"S"}),
        ("metric m = §", {"mean", "f1"}, {"sum"}),
        ("param Q: [§", {"hidden", "vocab"}, {"W"}),
        ("param Q: [hidden] = §", {"pieces", "zeros"}, {"W"}),
        ("struct X = A(a: token<§", {"vocab"}, {"Tree"}),
        ("struct X = A(a: §", {"token", "Tree", "X"}, {"hidden"}),
        ("fn f(t: Tree) = match t:\n    Leaf(...) -> x\n    §", {"Node"}, {"Leaf"}),
        ("fn f(t: Tree) = match t:\n    Leaf(word, §", {"label"}, {"word"}),
        ("fn f(t: Tree) = sum(encode(k).h §", {"for"}, {"in"}),
        ("me§", {"metric", "model"}, {"tanh"}),
        ("# comment t.§", set(), {"label"}),
    ],
)
def test_completion(editor, place, expected, others):
    found = editor.complete(place)
    assert expected <= set(found) and not others & set(found)


def test_completion_shows_signatures(editor):
    found = editor.complete("fn f(t: Tree) = §")
    assert found["cross_entropy"].detail == "cross_entropy(logits: [n], label: class<n>) -> []"
    assert found["node"].detail == "cell node(l: S, r: S) -> S"
    assert found["W"].detail == "[3 * hidden, embed] = [768, 256]"


def test_formatting(editor):
    def formatted():
        options = lsp.FormattingOptions(tab_size=8, insert_spaces=False)
        identifier = lsp.TextDocumentIdentifier(editor.uri)
        parameters = lsp.DocumentFormattingParams(identifier, options)
        return editor.wait(editor.client.text_document_formatting_async(parameters))

    assert list(formatted()) == []
    editor.type(TREE.replace(" = ", "="))
    assert editor.edited(formatted()) == TREE
    editor.type(TREE.replace(" = ", "=").replace("\n", "\r\n"))
    assert editor.edited(formatted()) == TREE.replace("\n", "\r\n")
    editor.type("model (")
    assert formatted() is None


def test_outline(editor):
    parameters = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(editor.uri))
    found = editor.wait(editor.client.text_document_document_symbol_async(parameters))
    assert [each.name for each in found] == [
        *("TreeLSTM", "Tree", "E", "W", "b_w", "U", "b_u", "V", "b_v", "S", "leaf", "node", "encode"),
        *("logits", "loss", "accuracy", "label", "p"),
    ]
    leaf = next(each for each in found if each.name == "leaf")
    assert (leaf.range.start.line, leaf.range.end.line) == (13, 16) and editor.at(
        leaf.selection_range
    ) == "leaf"
    assert [each.name for each in found[1].children] == ["Leaf", "Node"]


def test_programs_that_are_not_open(editor, tmp_path):
    """They are read from the disk; what cannot be read there is an empty program, not an internal error."""
    (tmp_path / "model.dn").write_text(TREE, encoding="utf-8")
    (tmp_path / "other.dn").write_bytes(b"\xff\xfe")
    position = editor.place("c = sig§moid(i)")["position"]
    for uri, is_there in (
        ((tmp_path / "model.dn").as_uri(), True),
        ((tmp_path / "other.dn").as_uri(), False),
        ((tmp_path / "none.dn").as_uri(), False),
        (tmp_path.as_uri(), False),
        ("untitled:Untitled-1", False),
    ):
        document = lsp.TextDocumentIdentifier(uri)
        place = {"text_document": document, "position": position}
        found = editor.wait(editor.client.text_document_hover_async(lsp.HoverParams(**place)))
        assert (found is not None) == is_there
        names = editor.wait(editor.client.text_document_completion_async(lsp.CompletionParams(**place)))
        assert bool(names) == is_there
        outline = lsp.DocumentSymbolParams(document)
        assert bool(editor.wait(editor.client.text_document_document_symbol_async(outline))) == is_there
        asked = lsp.ReferenceParams(lsp.ReferenceContext(True), document, position)
        assert not editor.wait(editor.client.text_document_references_async(asked))  # of what is built in
        assert not editor.wait(
            editor.client.text_document_definition_async(lsp.DefinitionParams(document, position))
        )
        options = lsp.FormattingOptions(4, True)
        asked = lsp.DocumentFormattingParams(document, options)
        assert not editor.wait(editor.client.text_document_formatting_async(asked))
        with pytest.raises(JsonRpcException, match=r"there is no name here|belongs to the language"):
            editor.wait(editor.client.text_document_rename_async(lsp.RenameParams(document, position, "x")))


def test_positions_are_those_of_utf_16(editor):
    found = editor.type(TREE.replace("b_w, 3)", "b_w, 3)  # 𝒙𝒙").replace("+ b_v", "+ 𝒙"))
    assert len(found) == 1 and editor.at(found[0].range) == "𝒙"


def test_every_beginning_of_a_program(editor):
    """As typed: no request fails, and the server still lives."""
    for end in range(0, len(TREE), 37):
        editor.type(TREE[:end] or " ")
        last = lsp.Position(TREE[:end].count("\n"), len(TREE[:end].rsplit("\n", 1)[-1]))
        place = {"text_document": lsp.TextDocumentIdentifier(editor.uri), "position": last}
        editor.wait(editor.client.text_document_hover_async(lsp.HoverParams(**place)))
        editor.wait(editor.client.text_document_completion_async(lsp.CompletionParams(**place)))
    far = lsp.HoverParams(lsp.TextDocumentIdentifier(editor.uri), lsp.Position(10**6, 10**6))
    assert editor.wait(editor.client.text_document_hover_async(far)) is None


def test_settings_of_dimensions():
    editor = Editor()
    editor.start({"set": {"hidden": 128, "other": 3, "embed": "no"}})
    try:
        editor.type(TREE.replace("hidden = 256", "hidden"))
        assert "[3 * hidden] = [384]" in editor.hover("split(W §@ x")
    finally:
        editor.stop()


def said_on_stderr(*requests: dict) -> str:
    """What a server writes to standard error whose editor sends these requests and leaves in order."""
    said = [
        {"id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}},
        {"method": "initialized", "params": {}},
        *requests,
        {"id": 2, "method": "shutdown"},
        {"method": "exit"},
    ]
    texts = [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in said]
    given = b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(text), text) for text in texts)
    command = [sys.executable, "-m", "dnc", "lsp"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdin is not None and running.stderr is not None
        running.stdin.write(given)
        running.stdin.flush()  # and stays open
        assert running.wait(60) == 0
        return running.stderr.read().decode()


def test_an_editor_that_leaves_in_order():
    """Exit code 0 and nothing on standard error."""
    assert "Traceback" not in said_on_stderr()


def test_a_refused_renaming_is_no_traceback():
    item = {"uri": "file:///model.dn", "languageId": "dn", "version": 1, "text": TREE}
    place = {"textDocument": {"uri": item["uri"]}, "position": {"line": 0, "character": 0}}
    said = said_on_stderr(
        {"method": "textDocument/didOpen", "params": {"textDocument": item}},
        {"id": 3, "method": "textDocument/rename", "params": {**place, "newName": "new"}},
    )
    assert "Traceback" not in said, said
