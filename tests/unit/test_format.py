"""The form of formatted programs, and `dnc fmt`."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys

import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.editing import format_text
from dnc.frontend.format import format_program
from tests.support.models import EXAMPLES

BAD = "model M( d=1 )"
GOOD = (EXAMPLES / "treelstm.dn").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.dn")), ids=lambda path: path.stem)
def test_examples_are_formatted(path):
    text = path.read_text(encoding="utf-8")
    assert format_program(Source(str(path), text)) == text, "run: dnc fmt examples"


CASES = {
    "spaces": (
        "loss  sum( t in  all( T.A ) )-x*-2 *( a+b )[ 1 ]",
        "loss sum(t in all(T.A)) -x * -2 * (a + b)[1]",
    ),
    "difference": ("fn f(t:T)=g(t)-x", "fn f(t: T) = g(t) - x"),
    "signs": ("fn f( t:T ) = - - x-(-y)", "fn f(t: T) = --x - (-y)"),
    "weight": ("loss - 0.5*sum(t in root)x", "loss -0.5 * sum(t in root) x"),
    "initializer": ("param b:[ d ]=constant( - 1 )lr*0.1", "param b: [d] = constant(-1) lr * 0.1"),
    "kinds": ("struct T=A( x:token< v+1 >,y:T ?,z:[ T ])", "struct T = A(x: token<v + 1>, y: T?, z: [T])"),
    "table": ("frozen  param E:table [v,d]", "frozen param E: table[v, d]"),
    "else": ("fn f(t:T)=f(t.prev)else(g(t))", "fn f(t: T) = f(t.prev) else (g(t))"),
    "list": ("output x=[ f(t)for t in all(T) ],", "output x = [f(t) for t in all(T)],"),
    "comment": ("state S=(h:[d])# why", "state S = (h: [d])  # why"),
    "arms": (
        "fn f(t: T) = match t:\n  A(...) -> x\n  Longer(y) -> y # c\n",
        "fn f(t: T) = match t:\n    A(...)    -> x\n    Longer(y) -> y  # c\n",
    ),
    "terms": (
        "loss sum(t in root) x\nmetric m = mean(t in root) x\n\noutput y = x\noutput z = x",
        "loss    sum(t in root) x\nmetric  m = mean(t in root) x\n\noutput y = x\noutput z = x",
    ),
    "structs": (
        "struct A = A(b: [B])\n# between\nstruct Other = B(x: float)\n| C\n",
        "struct A     = A(b: [B])\n# between\nstruct Other = B(x: float)\n             | C\n",
    ),
    "struct below": ("struct A =\n  B\n  | C", "struct A =\n    B\n    | C"),
    "parameters": ("param a: [d],\n b: [d]", "param a: [d],\n      b: [d]"),
    "running parameters": (
        "running param a: [d],\n b: [d] = constant(1)",
        "running param a: [d],\n              b: [d] = constant(1)",
    ),
    "arguments": (
        "fn f(t: T) = g(a,\n h(b,\n c))",
        "fn f(t: T) = g(a,\n               h(b,\n                 c))",
    ),
    "hanging": ("fn f(t: T) = g(\n a,\n b\n)", "fn f(t: T) = g(\n    a,\n    b\n)"),
    "operator": ("fn f(t: T) =\n a +\n b", "fn f(t: T) =\n    a +\n    b"),
    "blocks": (
        "cell f(x: [d]):\n  a = x\n  # of the block\n# of the program\n\n\n\ncell g(x: [d]) = x\n\n",
        "cell f(x: [d]):\n    a = x\n    # of the block\n# of the program\n\ncell g(x: [d]) = x\n",
    ),
    "line breaks": (
        "state S = (h: [d])\r\n\r\nstate T = (h: [d])",
        "state S = (h: [d])\r\n\r\nstate T = (h: [d])\r\n",
    ),
}


@pytest.mark.parametrize("before, after", CASES.values(), ids=CASES)
def test_form(before, after):
    formatted = format_text(before)
    assert formatted.after == (after if after.endswith("\n") else f"{after}\n")
    assert not format_text(formatted.after).changed


def test_a_mistake_is_told_and_nothing_formatted():
    with pytest.raises(DiagnosticError, match=r"^m\.dn:1:7: error: "):
        format_text("state (", "m.dn")
    with pytest.raises(DiagnosticError, match=r"^m\.dn:1:14: error: an expression is nested too deeply"):
        format_text(f"fn f(t: T) = {'-' * 5000}x", "m.dn")


# ---- the command ---------------------------------------------------------------------------------


def test_files_and_folders(command, workplace):
    bad, good, broken = (workplace / f"{name}.dn" for name in ("bad", "good", "broken"))
    bad.write_text(GOOD.replace(" = ", "="))
    bad.chmod(0o640)
    good.write_text(GOOD)
    broken.write_text("model (")
    before = good.stat()
    done = command("fmt bad.dn good.dn")
    assert (done.code, done.out, done.error) == (0, "", "formatted bad.dn\n")
    assert bad.read_text() == GOOD and stat.S_IMODE(bad.stat().st_mode) == 0o640
    assert good.stat().st_mtime_ns == before.st_mtime_ns
    done = command("fmt .")
    assert done.code == 2 and done.error.startswith("broken.dn:1:7: error: ")
    assert broken.read_text() == "model ("


def test_a_full_disk_names_the_file_and_others_are_formatted(command, workplace, monkeypatch):
    for name in ("a.dn", "b.dn"):
        (workplace / name).write_text(BAD)
    replace = os.replace

    def full(source, path):
        if str(path).endswith("a.dn"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, path)

    monkeypatch.setattr("os.replace", full)
    done = command("fmt .")
    assert (done.code, done.out) == (2, "")
    assert done.error == "formatted b.dn\nerror: a.dn: cannot be written: No space left on device\n"
    assert [(workplace / name).read_text() for name in ("a.dn", "b.dn")] == [BAD, "model M(d = 1)\n"]
    assert sorted(each.name for each in workplace.glob("*.dn*")) == ["a.dn", "b.dn"]


def test_check_and_diff_write_nothing(command, workplace):
    (workplace / "bad.dn").write_text(BAD)
    for options in ("--check", "--diff", "--check --diff"):
        done = command(f"fmt bad.dn {options}")
        assert done.code == (1 if "--check" in options else 0)
        assert (workplace / "bad.dn").read_text() == BAD
        if "--diff" in options:
            assert f"-{BAD}\n\\ No newline at end of file\n+model M(d = 1)\n" in done.out
        else:
            assert done.error == "would format bad.dn\n"
    (workplace / "bad.dn").write_text("model M(d = 1)\n")
    done = command("fmt bad.dn --check")
    assert (done.code, done.out, done.error) == (0, "", "")


def piped(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_pipe(command, monkeypatch):
    piped(monkeypatch, BAD.encode())
    assert command("fmt -").out == "model M(d = 1)\n"
    piped(monkeypatch, BAD.encode())
    done = command("fmt - --check")
    assert (done.code, done.out, done.error) == (1, "", "would format <stdin>\n")
    piped(monkeypatch, b"model M(")
    assert command("fmt -").error.startswith("<stdin>:1:8: error: ")
    piped(monkeypatch, b"\xff")
    assert command("fmt -").error.startswith("<stdin>:1:1: error: not UTF-8: byte 0xff\n")


@pytest.mark.parametrize("options", ["", " --diff"])
def test_pipes_are_utf_8(command, monkeypatch, options):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    piped(monkeypatch, f"{BAD}# \u00e4".encode())
    assert command(f"fmt -{options}").code == 0
    assert "model M(d = 1)  # \u00e4\n" in out.buffer.getvalue().decode()


def test_standard_output_may_be_a_stream_of_text(command, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    piped(monkeypatch, BAD.encode())
    assert command("fmt -").code == 0 and sys.stdout.getvalue() == "model M(d = 1)\n"


def test_a_file_with_the_name_of_a_pipe(command, workplace):
    (workplace / "-").write_text(BAD)
    assert command("fmt ./-").error == "formatted -\n"
    assert (workplace / "-").read_text() == "model M(d = 1)\n"


@pytest.mark.parametrize("character", ["\u2028", "\f", "\x85"])
def test_lines_of_a_diff_end_where_those_of_files_do(character):
    lines = format_text(f"# a{character}b\n{BAD}\n").diff().split("\n")
    assert lines[2:] == ["@@ -1,2 +1,2 @@", f" # a{character}b", f"-{BAD}", "+model M(d = 1)", ""]


def test_builds_are_only_read(command, workplace):
    inside = workplace / "build" / "model.dn"
    inside.write_text(BAD)
    (workplace / "link.dn").symlink_to(inside)
    (workplace / "good.dn").write_text(GOOD)
    for options in ("", " --check", " --diff"):
        done = command(f"fmt .{options}")
        refused = f"error: link.dn: lies in the build {workplace}/build, which is only read"
        assert (done.code, done.out) == (2, "") and done.error.startswith(refused)
        for path, named in (("build", "build/model.dn"), ("build/model.dn",) * 2, ("link.dn",) * 2):
            done = command(f"fmt {path}{options}")
            assert done.code == 2 and done.error.startswith(f"error: {named}: lies in the build ")
    (workplace / "link.dn").unlink()
    assert command("fmt . --check").code == 0
    assert inside.read_text() == BAD


def test_a_folder_inside_that_cannot_be_read(command, workplace, monkeypatch):
    (workplace / "bad.dn").write_text(BAD)
    (workplace / "closed").mkdir()
    scandir = os.scandir

    def denied(path):  # also to root
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    for path, formatted in ((".", "would format bad.dn\n"), ("closed", "")):
        done = command(f"fmt --check {path}")
        told = f"{formatted}error: closed: cannot be read: Permission denied\n"
        assert (done.code, done.error) == (2, told)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("none.dn", "error: none.dn: there is no such file\n"),
        ("folder", "error: folder: holds no .dn files\n"),
        ("- bad.dn", "error: found '-' and other paths"),
        ("binary.dn", "binary.dn:2:5: error: not UTF-8: byte 0xff\n  # \u00f6 \ufffd\n      ^\n"),
        ("", "error: Missing argument '"),
    ],
)
def test_mistakes(command, workplace, arguments, message):
    (workplace / "folder").mkdir()
    (workplace / "binary.dn").write_bytes("model M(d)\n# \u00f6 ".encode() + b"\xff")
    done = command(f"fmt {arguments}")
    assert done.code == 2 and done.error.startswith(message)


def test_a_file_that_is_read_only(command, workplace, monkeypatch):
    (workplace / "bad.dn").write_text(BAD)
    denied = ("bad.dn", os.W_OK)  # also to root
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) != denied)
    done = command("fmt bad.dn")
    assert (done.code, done.error) == (2, "error: bad.dn: cannot be written: it is read-only\n")
    assert (workplace / "bad.dn").read_text() == BAD


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(command, workplace):
    (workplace / "folder").mkdir()
    (workplace / "folder" / "bad.dn").write_text(BAD)
    (workplace / "folder").chmod(0o500)
    done = command("fmt folder")
    assert done.code == 2 and "no permission to write" in done.error
