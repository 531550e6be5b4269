"""Runs what a page of the documentation shows.

In: a Markdown page. Out: its blocks, run in order in the working folder, which holds dnc's `examples/`.
A block that is not true is an AssertionError with its place.

- `console`: every `$ command` runs, and what stands below it is what it prints (where nothing does, it only
  has to succeed). `cat FILE` of a file that is not there makes it.
- `python`: all blocks of a page share their names; one that is a file is left to a command. `text` behind
  `<!-- output -->` is what the block printed.
- `dn`: a whole program (with a model and a loss) has to be right; other declarations in form alone. Both
  have to be formatted. `json` and `toml` have to be JSON (or a line of it each) and TOML.
- Other languages are not run; a block has to have one.

In what is printed `...` stands for anything. Comments in front of a block say more: `<!-- file: NAME -->`
writes it to a file, `<!-- skip: WHY -->`, `<!-- needs: MODULE -->`, `<!-- exit: CODE -->`,
`<!-- excerpt: PATH -->` (a `dn` block is made of lines of that file, in order), `<!-- form: WHY -->` (it is
right in form alone),
`<!-- smaller: OLD => NEW -->` runs it with NEW, so that it takes a second. `<!-- setup` ... `-->` is Python
that prepares the folder and is not shown; `sh` runs a command, `head` copies the first lines of a file.
`<!-- page needs: MODULE -->` is about all blocks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from dnc.cli import execute
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.frontend.format import format_program

MARK = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
MARKS = frozenset({"excerpt", "file", "form", "skip", "needs", "exit", "smaller", "output"})
NOT_RUN = frozenset({"text", "lua", "lisp", "bibtex", "ini"})


@attrs.frozen
class Block:
    """A block of a page. line: of its first line of text, from 1. marks: what the comments before it say."""

    page: str
    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.page}:{self.line}"

    def values(self, mark: str) -> list[str]:
        """What a mark says, as often as it is there."""
        return [value for name, value in self.marks if name == mark]


@attrs.define
class Page:
    """A page while it runs. skipped: why blocks were left out. printed: by the last block of Python."""

    names: dict[str, Any] = attrs.field(factory=lambda: {"__name__": "__page__", "sh": sh, "head": head})
    printed: str = ""
    skipped: list[str] = attrs.field(factory=list)

    def run(self, block: Block) -> None:
        """Runs a block, or notes why not."""
        if block.values("skip"):
            self.skipped.append(f"{block.place}: {block.values('skip')[0]}")
            return
        for module in block.values("needs"):
            if importlib.util.find_spec(module) is None:
                self.skipped.append(f"{block.place}: needs {module}")
                return
        for change in block.values("smaller"):
            old, arrow, new = change.partition(" => ")
            assert arrow and old in block.text, f"{block.place}: 'smaller: {change}' changes nothing"
            block = attrs.evolve(block, text=block.text.replace(old, new))
        for name in block.values("file"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(block.text, encoding="utf-8")
        if block.language in NOT_RUN:
            if block.values("output"):
                _compare(block, self.printed, block.text)
            return
        getattr(self, f"_{block.language}", _unknown)(block)

    def _setup(self, block: Block) -> None:
        self._execute(block)

    def _python(self, block: Block) -> None:
        if block.values("file"):  # a script or a module, for a command to run
            compile(block.text, block.page, "exec")
            return
        self.printed = self._execute(block)

    def _execute(self, block: Block) -> str:
        code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, self.names)
        return out.getvalue()

    def _console(self, block: Block) -> None:
        assert block.text.startswith("$ "), f"{block.place}: a console begins with a command: $ ..."
        expected = int((block.values("exit") or ["0"])[0])
        for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, shown = _split(step)
            code, printed = _command(block, command, shown)
            assert code == expected, f"{block.place}: $ {command}\nexit code {code}\n{printed}"
            if shown.strip():
                _compare(block, printed, shown)

    def _dn(self, block: Block) -> None:
        source = Source(block.place, block.text)
        for path in block.values("excerpt"):
            lines = iter(Path(path).read_text(encoding="utf-8").split("\n"))
            assert all(line in lines for line in block.text.split("\n")), f"{block.place}: is not from {path}"
            return
        whole = all(
            re.search(f"^{word}", block.text, re.MULTILINE) for word in (r"model\b", r"(loss|push)\b")
        )
        if whole and not block.values("form"):
            load_program(source, {})
        assert format_program(source) == block.text, f"{block.place}: is not formatted (dnc fmt)"

    def _json(self, block: Block) -> None:
        try:
            json.loads(block.text)
        except ValueError:
            for line in block.text.splitlines():
                json.loads(line)

    def _toml(self, block: Block) -> None:
        tomllib.loads(block.text)


def needs(page: Path) -> list[str]:
    """The modules without which nothing of a page can run."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^<!-- page needs: (\w+) -->$", text, re.MULTILINE)
    return [module for module in found if importlib.util.find_spec(module) is None]


def blocks(page: Path, name: str) -> Iterator[Block]:
    """The blocks of a page in order; `name` is what it is called in messages."""
    lines = page.read_text(encoding="utf-8").split("\n")
    marks: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```") or line == "<!-- setup":
            ends = "```" if line.startswith("```") else "-->"
            end = lines.index(ends, at + 1)
            text = "".join(f"{each}\n" for each in lines[at + 1 : end])
            language = line[3:].strip() if ends == "```" else "setup"
            yield Block(name, at + 2, language, text, tuple(marks))
            marks, at = [], end + 1
            continue
        found = MARK.fullmatch(line)
        if found and found[1] in MARKS:
            marks.append((found[1], found[2] or ""))
        elif line.strip():
            assert not marks, f"{name}:{at + 1}: expected a block behind <!-- {marks[0][0]} -->"
        at += 1


def sh(command: str) -> None:
    """Runs a command of a page's setup."""
    code, printed = _command(Block("setup", 0, "console", command), command, "")
    assert code == 0, f"$ {command}\n{printed}"


def head(path: str, count: int, to: str) -> None:
    """Copies the first lines of a file."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(to).write_text("".join(lines[:count]), encoding="utf-8")


def _unknown(block: Block) -> None:
    raise AssertionError(
        f"{block.place}: found a block of '{block.language}', expected one of console, python, dn, json, "
        "toml and text"
    )


def _split(step: str) -> tuple[str, str]:
    """A command, which goes on behind a backslash, and what it prints."""
    lines = step.split("\n")
    count = 1
    while lines[count - 1].endswith("\\"):
        count += 1
    return " ".join(line.rstrip("\\").strip() for line in lines[:count]), "\n".join(lines[count:])


def _command(block: Block, command: str, shown: str) -> tuple[int, str]:
    """Runs a command; its exit code and what it prints."""
    program, *arguments = shlex.split(command, comments=True)
    out = io.StringIO()
    if program == "cat":
        path = Path(arguments[0])
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(shown, encoding="utf-8")
        return 0, path.read_text(encoding="utf-8")
    if program == "ls":
        folder = Path(arguments[0] if arguments else ".")
        return 0, "".join(f"{each.name}\n" for each in sorted(folder.iterdir()))
    if program == "python":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    assert program == "dnc", f"{block.place}: '{program}' is not run here: say why with <!-- skip: ... -->"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = execute(arguments)
    return code, out.getvalue()


def _compare(block: Block, printed: str, shown: str) -> None:
    """What was printed is what is shown, in which `...` stands for anything."""
    pattern = ".*".join(re.escape(piece) for piece in _tidy(shown).split("..."))
    assert re.fullmatch(pattern, _tidy(printed), re.DOTALL), (
        f"{block.place}: shows\n{shown}\nbut this was printed:\n{printed}"
    )


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))
