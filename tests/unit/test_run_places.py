"""Folders that hold no run: what lies in one under a name of a run's files is not written over."""

import shutil

import pytest

import dnc
from dnc import api
from dnc.runtime.atomic import write_text
from dnc.runtime.run_config import RunConfig, write_config
from dnc.runtime.run_folder import METRICS, OWN
from dnc.weights import import_weights


@pytest.fixture
def trained(workplace):
    """A finished run, a map for its weights, and a model for another one."""
    (workplace / "map.toml").write_text('ignore = ["optimizer/*"]')
    dnc.load("build", "vm").train("train.jsonl", run_dir="run")
    return dnc.load("build", "vm")


@pytest.mark.parametrize("name", [name for name in OWN if name != METRICS])
def test_a_file_of_someone_else(trained, workplace, name):
    (workplace / "own").mkdir()
    shutil.copy("dev.jsonl", f"own/{name}")
    before = (workplace / "own" / name).read_bytes()
    for write in (
        lambda: trained.train("train.jsonl", run_dir="own"),
        lambda: import_weights(
            "build", "run/last.safetensors", "map.toml", saved="run/vocabulary.json", run_dir="own"
        ),
    ):
        with pytest.raises(dnc.DiagnosticError) as caught:
            write()
        assert f"own: holds {name}, which a run would write over" in str(caught.value)
    assert [path.name for path in (workplace / "own").iterdir()] == [name]
    assert (workplace / "own" / name).read_bytes() == before


def test_a_checkpoint_that_lies_where_the_run_is_to_be(trained, workplace):
    (workplace / "own").mkdir()
    shutil.copy("run/last.safetensors", "own/last.safetensors")
    trained.restore("own/last.safetensors")
    with pytest.raises(dnc.DiagnosticError, match="which a run would write over, and no run"):
        trained.train("train.jsonl", run_dir="own", epochs=2)


def test_an_import_that_did_not_end_is_no_run(trained, workplace):
    """It would begin with weights that nobody has chosen."""
    (workplace / "own").mkdir()
    write_config(workplace / "own" / "run.toml", RunConfig(build="build"))
    write_text(workplace / "own" / METRICS, "")
    with pytest.raises(dnc.DiagnosticError, match="weights were imported here, and that did not end"):
        api.run_of("own")
    import_weights("build", "run/last.safetensors", "map.toml", saved="run/vocabulary.json", run_dir="own")
    assert api.run_of("own")[1] is not None
