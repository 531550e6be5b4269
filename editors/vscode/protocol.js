// JSON-RPC over the streams of a process, as the Language Server Protocol frames it. Knows nothing of VS Code.
"use strict";

const { spawn } = require("child_process");

class Connection {
  // handlers: by method, what is done with the server's notifications. ended(reason): it has stopped.
  constructor(command, args, handlers, ended) {
    this.handlers = handlers;
    this.waiting = new Map();
    this.next = 1;
    this.pending = Buffer.alloc(0);
    this.log = "";
    this.process = spawn(command, args, { stdio: ["pipe", "pipe", "pipe"] });
    this.process.on("error", (error) => this.#end(error.message, ended));
    this.process.on("exit", (code, signal) => {
      const told = this.log.trim().split("\n").at(-1); // of a traceback the last line says what it was
      this.#end([signal ?? `exit code ${code}`, ...(told ? [told] : [])].join(": "), ended);
    });
    this.process.stdin.on("error", () => {}); // the server has gone; "exit" says why
    this.process.stdout.on("data", (data) => this.#receive(data));
    this.process.stderr.on("data", (data) => (this.log = (this.log + data).slice(-4000)));
  }

  request(method, params, token) {
    const id = this.next++;
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    if (token) token.onCancellationRequested(() => this.notify("$/cancelRequest", { id }));
    this.#send({ id, method, params });
    return answer;
  }

  notify(method, params) {
    this.#send({ method, params });
  }

  async stop() {
    this.stopping = true;
    if (this.over) return;
    const gone = new Promise((resolve) => this.process.once("exit", resolve));
    const late = setTimeout(() => this.process.kill(), 2000);
    await this.request("shutdown").catch(() => {});
    this.notify("exit");
    await gone;
    clearTimeout(late);
  }

  #send(message) {
    if (this.over) {
      this.waiting.get(message.id)?.reject(new Error("the language server has stopped"));
      this.waiting.delete(message.id);
      return;
    }
    const body = Buffer.from(JSON.stringify({ jsonrpc: "2.0", ...message }), "utf8");
    this.process.stdin.write(`Content-Length: ${body.length}\r\n\r\n`);
    this.process.stdin.write(body);
  }

  #receive(data) {
    this.pending = Buffer.concat([this.pending, data]);
    for (;;) {
      const head = this.pending.indexOf("\r\n\r\n");
      if (head < 0) return;
      const length = /content-length: *(\d+)/i.exec(this.pending.toString("ascii", 0, head));
      const end = head + 4 + Number(length ? length[1] : 0);
      if (this.pending.length < end) return;
      const message = JSON.parse(this.pending.toString("utf8", head + 4, end));
      this.pending = this.pending.subarray(end);
      this.#handle(message);
    }
  }

  #handle(message) {
    if (message.method && message.id !== undefined) {
      this.#send({ id: message.id, result: null }); // the server asks for nothing that matters here
    } else if (message.method) {
      this.handlers[message.method]?.(message.params);
    } else {
      const asked = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.error) asked?.reject(new Error(message.error.message));
      else asked?.resolve(message.result);
    }
  }

  #end(reason, ended) {
    if (this.over) return;
    this.over = true;
    for (const { reject } of this.waiting.values()) reject(new Error("the language server has stopped"));
    this.waiting.clear();
    if (!this.stopping) ended(reason);
  }
}

module.exports = { Connection };
