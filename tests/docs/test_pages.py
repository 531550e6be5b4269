"""Every command and snippet of README.md and of the pages in docs/ runs (`tests/support/pages.py`)."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest

from dnc.diagnostics import Source
from dnc.frontend.parser import parse
from tests.support.pages import Block, Page, blocks, needs

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """One cache of kernels for all pages, also where they run in several processes."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"


@pytest.mark.parametrize("name", PAGES)
def test_page(name, tmp_path, monkeypatch, kernels):
    if missing := needs(PAGES[name]):
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DNC_CACHE_DIR", str(kernels))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = Page()
    found = list(blocks(PAGES[name], name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in found:
            page.run(block)
    if page.skipped and len(page.skipped) == len(found):
        pytest.skip("; ".join(page.skipped))


DECLARED = re.compile(
    r"(?<!`)`((?:(?:frozen|running) )?(?:param|state|cell|fn|output|metric|push) [^`]*[=:][^`]*)`(?!`)"
)


@pytest.mark.parametrize("name", PAGES)
def test_declarations_inside_of_sentences_have_a_right_form(name):
    for declared in DECLARED.findall(PAGES[name].read_text()):
        parse(Source(name, f"model M(d = 1)\n{declared}\n"))


# ---- the runner itself ---------------------------------------------------------------------------


def one(language, text, **marks):
    return Block("page.md", 1, language, text, tuple(marks.items()))


@pytest.mark.parametrize(
    "block, message",
    [
        (one("", "x\n"), "found a block of ''"),
        (one("sh", "x\n"), "found a block of 'sh'"),
        (one("console", "dnc --version\n"), "begins with a command"),
        (one("console", "$ rm x\n"), "'rm' is not run here"),
        (one("console", "$ dnc --version\ndnc 0\n"), "but this was printed"),
        (one("console", "$ dnc check none.dn\n"), "exit code 2"),
        (one("console", "$ dnc --version\n", exit="2"), "exit code 0"),
        (one("console", "$ dnc --version\n", smaller="a => b"), "changes nothing"),
        (one("dn", "fn f(t:T) = t.x\n"), "is not formatted"),
    ],
)
def test_what_is_not_true_is_found(block, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=message):
        Page().run(block)


def test_what_is_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Page()
    page.run(one("python", "x = 1\nprint(x, 0.123)\n"))
    page.run(one("text", "1 0...\n", output=""))
    with pytest.raises(AssertionError, match="but this was printed"):
        page.run(one("text", "2\n", output=""))
    page.run(one("python", "y = no_module\n", needs="no_such_module"))
    page.run(one("console", "$ make coffee\n", skip="there is none"))
    assert page.skipped == ["page.md:1: needs no_such_module", "page.md:1: there is none"]
    page.run(one("console", "$ cat a/b.txt\nsome\ntext\n$ cat a/b.txt\nsome\n...\n$ ls a\nb.txt\n"))
    page.run(one("console", "$ dnc check \\\n    none.dn   # a comment\nerror: none.dn: ...\n", exit="2"))
    page.run(one("dn", "fn f(t: T) = t.x\n", file="c.dn"))
    assert Path("c.dn").read_text() == "fn f(t: T) = t.x\n"
