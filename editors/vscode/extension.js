// Starts `dnc lsp` and hands its answers to VS Code. It needs no packages, so that nothing is to be built.
"use strict";

const os = require("os");
const path = require("path");
const vscode = require("vscode");
const { Connection } = require("./protocol");

const LANGUAGE = "dn";
const SCHEMES = ["file", "untitled"]; // not the old texts that a comparison shows beside the new ones
let server = null; // the one that was started last; it may not have answered yet
let connection = null; // the same as soon as it has answered
let turn = Promise.resolve(); // stops and starts come one after the other
let diagnostics = null;

const position = (p) => new vscode.Position(p.line, p.character);
const range = (r) => new vscode.Range(position(r.start), position(r.end));
const location = (l) => new vscode.Location(vscode.Uri.parse(l.uri), range(l.range));
const edit = (e) => new vscode.TextEdit(range(e.range), e.newText);
const at = (document, place) => ({
  textDocument: { uri: document.uri.toString() },
  position: { line: place.line, character: place.character },
});

const ours = (document) => document.languageId === LANGUAGE && SCHEMES.includes(document.uri.scheme);

async function ask(method, params, token) {
  if (!connection) return null;
  return connection.request(`textDocument/${method}`, params, token);
}

function publish({ uri, diagnostics: found }) {
  const shown = found.map((each) => {
    const severity = each.severity - 1; // VS Code counts from 0
    const diagnostic = new vscode.Diagnostic(range(each.range), each.message, severity);
    diagnostic.source = each.source;
    return diagnostic;
  });
  diagnostics.set(vscode.Uri.parse(uri), shown);
}

function open(document) {
  if (!ours(document) || !connection) return;
  const { uri, version } = document;
  const textDocument = { uri: uri.toString(), languageId: LANGUAGE, version, text: document.getText() };
  connection.notify("textDocument/didOpen", { textDocument });
}

function changed({ document }) {
  if (!ours(document) || !connection) return;
  const textDocument = { uri: document.uri.toString(), version: document.version };
  const contentChanges = [{ text: document.getText() }];
  connection.notify("textDocument/didChange", { textDocument, contentChanges });
}

function closed(document) {
  if (!ours(document) || !connection) return;
  connection.notify("textDocument/didClose", { textDocument: { uri: document.uri.toString() } });
}

// The command as the settings mean it: "~", "${workspaceFolder}" and paths in the workspace are looked up. Nothing
// in a folder that is not trusted is run.
function resolved(command) {
  const folders = vscode.workspace.isTrusted ? vscode.workspace.workspaceFolders : undefined;
  const folder = folders?.[0]?.uri.fsPath ?? os.homedir();
  const named = command.replace(/^~(?=[/\\])/, os.homedir()).replace("${workspaceFolder}", folder);
  return /[/\\]/.test(named) ? path.resolve(folder, named) : named;
}

async function tell(command, reason) {
  const message =
    `'${command} lsp' does not run (${reason}). Is dnc installed with its extra, pip install -e '.[lsp]', ` +
    "and does the setting dnc.command name it?";
  const chosen = await vscode.window.showErrorMessage(message, "Open Setting", "Restart");
  if (chosen === "Open Setting") await vscode.commands.executeCommand("workbench.action.openSettings", "dnc.command");
  if (chosen === "Restart") await restart();
}

async function start() {
  const settings = vscode.workspace.getConfiguration("dnc");
  const command = resolved(settings.get("command") || "dnc");
  const started = new Connection(command, ["lsp"], { "textDocument/publishDiagnostics": publish }, (reason) => {
    if (server !== started) return; // another one runs already
    server = connection = null;
    diagnostics.clear();
    tell(command, reason);
  });
  server = started;
  const initializationOptions = { set: { ...settings.get("set") } };
  const capabilities = {
    textDocument: {
      hover: { contentFormat: ["markdown"] },
      documentSymbol: { hierarchicalDocumentSymbolSupport: true },
      rename: { prepareSupport: true },
    },
  };
  try {
    await started.request("initialize", { processId: process.pid, rootUri: null, capabilities, initializationOptions });
  } catch {
    return; // told above
  }
  if (server !== started) return; // it was stopped before it answered
  started.notify("initialized", {});
  connection = started;
  vscode.workspace.textDocuments.forEach(open);
}

async function stop() {
  const last = server;
  server = connection = null;
  diagnostics?.clear();
  await last?.stop();
}

function restart() {
  turn = turn.then(stop).then(() => void start()); // a server that does not answer must not hold up the next one
  return turn;
}

const symbol = (each) => {
  const kind = each.kind - 1; // VS Code counts from 0
  const { name, detail } = each;
  const found = new vscode.DocumentSymbol(name, detail ?? "", kind, range(each.range), range(each.selectionRange));
  found.children = (each.children ?? []).map(symbol);
  return found;
};

const providers = {
  Hover: {
    async provideHover(document, place, token) {
      const found = await ask("hover", at(document, place), token);
      return found && new vscode.Hover(new vscode.MarkdownString(found.contents.value), range(found.range));
    },
  },
  Definition: {
    async provideDefinition(document, place, token) {
      return ((await ask("definition", at(document, place), token)) ?? []).map(location);
    },
  },
  Reference: {
    async provideReferences(document, place, context, token) {
      const params = { ...at(document, place), context: { includeDeclaration: context.includeDeclaration } };
      return ((await ask("references", params, token)) ?? []).map(location);
    },
  },
  DocumentHighlight: {
    async provideDocumentHighlights(document, place, token) {
      const found = (await ask("documentHighlight", at(document, place), token)) ?? [];
      return found.map((each) => new vscode.DocumentHighlight(range(each.range)));
    },
  },
  DocumentSymbol: {
    async provideDocumentSymbols(document, token) {
      const params = { textDocument: { uri: document.uri.toString() } };
      return ((await ask("documentSymbol", params, token)) ?? []).map(symbol);
    },
  },
  DocumentFormattingEdit: {
    async provideDocumentFormattingEdits(document, options, token) {
      const wished = { tabSize: options.tabSize, insertSpaces: options.insertSpaces };
      const params = { textDocument: { uri: document.uri.toString() }, options: wished };
      return ((await ask("formatting", params, token)) ?? []).map(edit);
    },
  },
  Rename: {
    async prepareRename(document, place, token) {
      const found = await ask("prepareRename", at(document, place), token);
      if (!found) throw new Error("the language server does not run: 'dnc: Restart the language server' starts it");
      return range(found);
    },
    async provideRenameEdits(document, place, newName, token) {
      const found = await ask("rename", { ...at(document, place), newName }, token);
      if (!found) throw new Error("the language server does not run: 'dnc: Restart the language server' starts it");
      const edits = new vscode.WorkspaceEdit();
      for (const [uri, each] of Object.entries(found.changes)) edits.set(vscode.Uri.parse(uri), each.map(edit));
      return edits;
    },
  },
};

const completion = {
  async provideCompletionItems(document, place, token) {
    return ((await ask("completion", at(document, place), token)) ?? []).map((each) => {
      const item = new vscode.CompletionItem(each.label, each.kind - 1); // VS Code counts from 0
      item.detail = each.detail;
      item.documentation = each.documentation;
      item.sortText = each.sortText;
      return item;
    });
  },
};

async function activate(context) {
  diagnostics = vscode.languages.createDiagnosticCollection("dnc");
  const selector = SCHEMES.map((scheme) => ({ language: LANGUAGE, scheme }));
  context.subscriptions.push(
    diagnostics,
    vscode.workspace.onDidOpenTextDocument(open),
    vscode.workspace.onDidChangeTextDocument(changed),
    vscode.workspace.onDidCloseTextDocument(closed),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("dnc")) restart();
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.commands.registerCommand("dnc.restart", restart),
    vscode.languages.registerCompletionItemProvider(selector, completion, ".", "<", "(", "["),
    ...Object.entries(providers).map(([kind, each]) => vscode.languages[`register${kind}Provider`](selector, each))
  );
  await start();
}

module.exports = { activate, deactivate: stop };
