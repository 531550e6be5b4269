// Runs the extension against a stand-in of VS Code's interface, and prints what it did as one line of JSON.
// Arguments: the folder of the extension, the command, a text with § where a cursor is, what to expect.
"use strict";

const Module = require("module");
const [folder, command, text] = process.argv.slice(2);

class Position { constructor(line, character) { Object.assign(this, { line, character }); } }
class Range { constructor(start, end) { Object.assign(this, { start, end }); } }
const record = (...names) => class { constructor(...values) { names.forEach((name, i) => (this[name] = values[i])); } };
const published = [], errors = [], providers = {}, listeners = {}, commands = {};
const uri = { scheme: "file", toString: () => "file:///model.dn" };
const document = { uri, languageId: "dn", version: 1, getText: () => text.replace("§", "") };
const listen = (name) => (listener) => (listeners[name] = listener);
const provide = (kind) => (selector, provider) => (providers[kind] = provider);
const vscode = {
  Position, Range,
  Location: record("uri", "range"), TextEdit: record("range", "newText"), Hover: record("contents", "range"),
  Diagnostic: record("range", "message", "severity"), MarkdownString: record("value"),
  DocumentHighlight: record("range"), CompletionItem: record("label", "kind"),
  DocumentSymbol: record("name", "detail", "kind", "range", "selectionRange"),
  WorkspaceEdit: class { constructor() { this.edits = {}; } set(to, edits) { this.edits[to] = edits; } },
  Uri: { parse: (value) => value },
  commands: { registerCommand: (name, run) => (commands[name] = run) },
  languages: new Proxy(
    { createDiagnosticCollection: () => ({ set: (to, found) => published.push(found), clear() {} }) },
    { get: (own, name) => own[name] ?? provide(/^register(.*)Provider$/.exec(name)[1]) }
  ),
  window: { showErrorMessage: (message) => errors.push(message) },
  workspace: {
    textDocuments: [document],
    getConfiguration: () => ({ get: (name) => ({ command, set: { hidden: 128 } })[name] }),
    isTrusted: true, onDidGrantWorkspaceTrust: listen("trust"), onDidChangeConfiguration: listen("settings"),
    onDidOpenTextDocument: listen("open"), onDidChangeTextDocument: listen("change"), onDidCloseTextDocument: listen("close"),
  },
};
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? vscode : load(name, ...rest));

async function until(condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
}

async function main() {
  const extension = require(folder);
  await extension.activate({ subscriptions: [] });
  if (errors.length) return { errors };
  await until(() => published.length);
  const before = text.split("§")[0].split("\n");
  const place = new Position(before.length - 1, before.at(-1).length);
  const found = { first: published[0], hover: await providers.Hover.provideHover(document, place) };
  found.definition = await providers.Definition.provideDefinition(document, place);
  found.references = await providers.Reference.provideReferences(document, place, { includeDeclaration: true });
  found.highlights = await providers.DocumentHighlight.provideDocumentHighlights(document, place);
  found.symbols = await providers.DocumentSymbol.provideDocumentSymbols(document);
  found.formatting = await providers.DocumentFormattingEdit.provideDocumentFormattingEdits(document, { tabSize: 4, insertSpaces: true });
  found.completion = await providers.CompletionItem.provideCompletionItems(document, place);
  found.renamed = (await providers.Rename.provideRenameEdits(document, place, "other")).edits;
  found.refused = await providers.Rename.provideRenameEdits(document, place, "fn").catch((error) => error.message);
  await commands["dnc.restart"]();
  await until(() => published.length > 1);
  document.version = 2;
  document.getText = () => "model (";
  listeners.change({ document });
  await until(() => published.length > 2);
  found.last = published.at(-1);
  listeners.close(document);
  await extension.deactivate();
  return { ...found, errors };
}

main().then((found) => console.log(JSON.stringify(found)));
