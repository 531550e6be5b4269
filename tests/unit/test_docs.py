"""The pages under docs/: generated tables are fresh, files they name exist."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import dnc
from dnc.ir import isa

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make_isa():
    return script("make_isa")


@pytest.fixture(scope="module")
def make_python():
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    return script("make_python")


@pytest.fixture(scope="module")
def make_models():
    return script("make_models")


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


def test_python_page_is_fresh(make_python):
    page = make_python.PAGE.read_text(encoding="utf-8")
    assert make_python.render(page) == page, "run: python docs/make_python.py"


def test_a_method_that_the_python_page_lacks_is_found(make_python):
    with pytest.raises(make_python.Stale, match=r"Model has \['step'\], and not \[\]"):
        make_python.methods(dnc.Model, [name for name in make_python.MODEL if name != "step"], "model")


def test_models_page_is_fresh(make_models):
    page = make_models.PAGE.read_text(encoding="utf-8")
    assert make_models.render(page) == page, "run: python docs/make_models.py"


def test_an_example_that_the_models_page_lacks_is_found(make_models, monkeypatch):
    monkeypatch.delitem(make_models.MODELS, "dag")
    with pytest.raises(make_models.Stale, match="dag"):
        make_models.examples()


def test_the_newest_speed_of_every_model_counts(make_models, monkeypatch, tmp_path):
    def result(name, device, date, **speeds):
        points = [{"model": key, "batch": 32, "samples_per_second": value} for key, value in speeds.items()]
        (tmp_path / name).write_text(json.dumps({"device": device, "date": date, "points": points}))

    monkeypatch.setattr(make_models, "RESULTS", tmp_path)
    result("b-cpu-models.json", "CPU, 2 cores", "2026-01-02", dag=2.5, lstm2=1)
    result("a-cpu-models-again.json", "CPU, 2 cores", "2026-01-03", dag=1234.6)
    result("c-h200-models.json", "NVIDIA H200", "2026-01-01", dag=5)
    found = make_models.speeds()
    assert make_models.speed(found[False], "dag") == "1,235"
    assert make_models.speed(found[False], "lstm2") == "1.0"
    assert make_models.speed(found[True], "dag") == "5.0"
    assert make_models.speed(found[True], "lstm2") == "-"


PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:dnc|docs|tests|examples|benchmarks|editors)/[\w./-]+)`", text))
    assert named or page not in ("docs/architecture.md", "docs/isa.md")
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_names_of_files_are_seen(page):
    """Comments are for who runs the page; whoever reads it has to know what to call a file."""
    before: list[str] = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        found = re.match(r"<!-- file: (\S+) -->", line)
        if found:
            assert f"`{found[1]}`" in " ".join(before[-4:]), found[1]
        elif not line.startswith("<!--"):
            before.append(line)


def test_architecture_is_short():
    assert len((DOCS / "architecture.md").read_text(encoding="utf-8").splitlines()) <= 200
