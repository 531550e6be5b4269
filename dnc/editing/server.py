"""`dnc lsp`: a language server over standard input and output, on pygls.

In: requests of the Language Server Protocol. Out: diagnostics as one types, hover, definitions, references,
renaming, completion, formatting and the outline. Guaranteed: a program that is half typed gets what is
known of it; this module only translates between the protocol and the rest of `dnc.editing`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from dnc.diagnostics import Diagnostic, DiagnosticError, Span
from dnc.editing.completion import complete
from dnc.editing.documents import Document, Documents
from dnc.editing.formatting import format_text
from dnc.editing.navigation import Entry, outline, rename, renameable, same
from dnc.version import VERSION

COMPLETION_KINDS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "local": lsp.CompletionItemKind.Variable,
    "parameter": lsp.CompletionItemKind.Field,
    "component": lsp.CompletionItemKind.Property,
    "field": lsp.CompletionItemKind.Property,
    "link": lsp.CompletionItemKind.Property,
    "dimension": lsp.CompletionItemKind.Constant,
    "struct": lsp.CompletionItemKind.Struct,
    "state": lsp.CompletionItemKind.Struct,
    "arm": lsp.CompletionItemKind.EnumMember,
    "kind": lsp.CompletionItemKind.TypeParameter,
}
SORTED = {"local": 0, "field": 0, "component": 0, "keyword": 2}
SYMBOL_KINDS = {
    "model": lsp.SymbolKind.Module,
    "dimension": lsp.SymbolKind.Constant,
    "struct": lsp.SymbolKind.Struct,
    "state": lsp.SymbolKind.Struct,
    "arm": lsp.SymbolKind.EnumMember,
    "field": lsp.SymbolKind.Field,
    "component": lsp.SymbolKind.Field,
    "parameter": lsp.SymbolKind.Variable,
    "cell": lsp.SymbolKind.Class,
    "function": lsp.SymbolKind.Function,
}


class Server(LanguageServer):
    """The language server. Whole texts are sent: programs are short."""

    def __init__(self) -> None:
        super().__init__("dnc", VERSION, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.documents = Documents()

    def text(self, uri: str) -> str:
        """The program at `uri`, as it is now: as it is open, else as it lies on the disk, else nothing."""
        try:
            return str(self.workspace.get_text_document(uri).source)
        except (OSError, UnicodeDecodeError):
            return ""

    def document(self, uri: str) -> Document:
        """What is known of the program at `uri`."""
        return self.documents.get(uri, self.text(uri))

    def place(self, uri: str, position: lsp.Position) -> tuple[int, int]:
        """Line and column, counted from 1 in characters."""
        lines = self._lines(uri)
        if position.line >= len(lines):
            return len(lines) + 1, 1
        at = self.workspace.position_codec.position_from_client_units(lines, position)
        return at.line + 1, at.character + 1

    def range(self, uri: str, span: Span) -> lsp.Range:
        """A span in the units of the client."""
        start = lsp.Position(span.line - 1, span.column - 1)
        end = lsp.Position(span.line - 1, span.column - 1 + span.length)
        return self.range_between(uri, start, end)

    def range_between(self, uri: str, start: lsp.Position, end: lsp.Position) -> lsp.Range:
        """A range between characters in the units of the client."""
        lines = self._lines(uri)
        codec = self.workspace.position_codec
        ends = (
            codec.position_to_client_units(lines, each) if each.line < len(lines) else each
            for each in (start, end)
        )
        return lsp.Range(*ends)

    def whole(self, uri: str) -> lsp.Range:
        """The whole text."""
        lines = self._lines(uri)
        return self.range_between(uri, lsp.Position(0, 0), lsp.Position(len(lines) - 1, len(lines[-1])))

    def publish(self, uri: str) -> None:
        """Sends what is wrong in a program."""
        text = self.workspace.get_text_document(uri)
        found = [self._diagnostic(uri, each) for each in self.document(uri).current.diagnostics]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, text.version))

    def _diagnostic(self, uri: str, found: Diagnostic) -> lsp.Diagnostic:
        span = found.span
        start = lsp.Position(0, 0)
        error = found.severity == "error"
        return lsp.Diagnostic(
            lsp.Range(start, start) if span is None else self.range(uri, span),
            "\n".join((found.message, *found.notes)),
            lsp.DiagnosticSeverity.Error if error else lsp.DiagnosticSeverity.Warning,
            source="dnc",
        )

    def _lines(self, uri: str) -> list[str]:
        return self.text(uri).split("\n")


server = Server()


@server.feature(lsp.INITIALIZE)
def _initialize(ls: Server, params: lsp.InitializeParams) -> None:
    options = params.initialization_options
    given = options.get("set") if isinstance(options, Mapping) else None
    sizes = given.items() if isinstance(given, Mapping) else ()
    ls.documents = Documents({str(name): size for name, size in sizes if type(size) is int and size > 0})


@server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
def _opened(ls: Server, params: lsp.DidOpenTextDocumentParams) -> None:
    ls.publish(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
def _changed(ls: Server, params: lsp.DidChangeTextDocumentParams) -> None:
    ls.publish(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
def _closed(ls: Server, params: lsp.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    ls.documents.close(uri)
    ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


@server.feature(lsp.TEXT_DOCUMENT_HOVER)
def _hover(ls: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    uri = params.text_document.uri
    found = ls.document(uri).hover(*ls.place(uri, params.position))
    if found is None:
        return None
    text = lsp.MarkupContent(lsp.MarkupKind.Markdown, found.markdown)
    return lsp.Hover(text, ls.range(uri, found.span))


@server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
def _definition(ls: Server, params: lsp.DefinitionParams) -> list[lsp.Location]:
    uri = params.text_document.uri
    return _locations(ls, uri, ls.document(uri).definitions(*ls.place(uri, params.position)))


@server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
def _references(ls: Server, params: lsp.ReferenceParams) -> list[lsp.Location]:
    uri = params.text_document.uri
    found = same(ls.document(uri).current, *ls.place(uri, params.position))
    wanted = (each.span for each in found if params.context.include_declaration or not each.declares)
    return _locations(ls, uri, wanted)


@server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
def _highlight(ls: Server, params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
    uri = params.text_document.uri
    found = same(ls.document(uri).current, *ls.place(uri, params.position))
    return [lsp.DocumentHighlight(ls.range(uri, each.span)) for each in found]


@server.feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)
def _prepare_rename(ls: Server, params: lsp.PrepareRenameParams) -> lsp.Range:
    uri = params.text_document.uri
    try:
        return ls.range(uri, renameable(ls.document(uri).current, *ls.place(uri, params.position)).span)
    except DiagnosticError as error:
        raise JsonRpcInvalidParams(error.diagnostics[0].message) from None


@server.feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
def _rename(ls: Server, params: lsp.RenameParams) -> lsp.WorkspaceEdit:
    uri, current = params.text_document.uri, ls.document(params.text_document.uri).current
    try:
        spans = rename(current, *ls.place(uri, params.position), params.new_name, ls.documents.settings)
    except DiagnosticError as error:
        raise JsonRpcInvalidParams(error.diagnostics[0].message) from None
    return lsp.WorkspaceEdit({uri: [lsp.TextEdit(ls.range(uri, span), params.new_name) for span in spans]})


@server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[".", "<", "(", "["]))
def _completion(ls: Server, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
    uri = params.text_document.uri
    text = ls.text(uri).replace("\r\n", "\n")
    found = complete(text, *ls.place(uri, params.position), ls.documents.settings)
    return [
        lsp.CompletionItem(
            each.text,
            kind=COMPLETION_KINDS.get(each.kind, lsp.CompletionItemKind.Function),
            detail=each.detail or None,
            documentation=each.meaning or None,
            sort_text=f"{SORTED.get(each.kind, 1)}{each.text}",
        )
        for each in found
    ]


@server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
def _format(ls: Server, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
    uri = params.text_document.uri
    try:
        result = format_text(ls.text(uri))
    except DiagnosticError:  # the diagnostics say why
        return None
    return [lsp.TextEdit(ls.whole(uri), result.after)] if result.changed else []


@server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
def _symbols(ls: Server, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
    uri = params.text_document.uri
    return [_symbol(ls, uri, entry) for entry in outline(ls.document(uri).current)]


def _symbol(ls: Server, uri: str, entry: Entry) -> lsp.DocumentSymbol:
    lines = ls.text(uri).split("\n")
    last = min(entry.last_line, len(lines))
    end = lsp.Position(last - 1, len(lines[last - 1].rstrip("\r")))
    return lsp.DocumentSymbol(
        entry.name,
        SYMBOL_KINDS.get(entry.kind, lsp.SymbolKind.Property),
        ls.range_between(uri, lsp.Position(entry.span.line - 1, 0), end),
        ls.range(uri, entry.span),
        detail=entry.detail or entry.kind,
        children=[_symbol(ls, uri, each) for each in entry.inner],
    )


def _locations(ls: Server, uri: str, spans: Iterable[Span]) -> list[lsp.Location]:
    return [lsp.Location(uri, ls.range(uri, span)) for span in spans]


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """False where pygls logs the traceback of a request that is refused in words."""
    return not (record.exc_info and isinstance(record.exc_info[1], JsonRpcInvalidParams))


def serve(**streams: Any) -> None:
    """Serves until the editor closes; over standard input and output unless `streams` say otherwise."""
    logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_no_refusal)
    server.start_io(**streams)
