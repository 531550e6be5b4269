"""The pages under docs/: generated tables are fresh, files they name exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from dnc.ir import isa

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def make_isa():
    spec = importlib.util.spec_from_file_location("make_isa", DOCS / "make_isa.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_isa_page_is_fresh(make_isa):
    page = make_isa.PAGE.read_text(encoding="utf-8")
    assert make_isa.render(page) == page, "run: python docs/make_isa.py"


def test_isa_page_names_everything(make_isa):
    page = make_isa.PAGE.read_text(encoding="utf-8")
    fields = [field for opcode in make_isa.example_plan().opcodes for field in opcode.fields]
    for name in (*isa.HEADER, *isa.PLACES, *isa.ABORT_FIELDS, *isa.OPTIMIZERS, *fields):
        assert f"`{name}`" in page


def test_a_field_without_a_meaning_is_found(make_isa):
    with pytest.raises(make_isa.Stale, match="surplus"):
        make_isa.meanings("header", (*isa.HEADER, "surplus"), make_isa.HEADER)
    with pytest.raises(make_isa.Stale, match="version"):
        make_isa.meanings("header", isa.HEADER[1:], make_isa.HEADER)


@pytest.mark.parametrize("page", ["architecture.md", "isa.md"])
def test_named_files_exist(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:dnc|docs|tests|examples|benchmarks)/[\w./-]+)`", text))
    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_architecture_is_short():
    assert len((DOCS / "architecture.md").read_text(encoding="utf-8").splitlines()) <= 200
