"""What the Python interface cannot take: said in words, wherever it is given."""

from pathlib import Path

import numpy as np
import pytest

import dnc
from dnc import api
from dnc.api.tuning import tune
from dnc.compiler import PlanOptions, compile_model
from dnc.runtime.checkpoint import load_checkpoint
from dnc.runtime.cpu_backend import CpuBackend
from dnc.runtime.cuda_backend import CudaBackend
from dnc.runtime.encoder.readout import Values
from dnc.runtime.run_config import read_config
from dnc.weights import export_weights, import_weights

TAKES = {
    "load": ("a build", lambda model, path: dnc.load(path)),
    "explain_build": ("a build", lambda model, path: api.explain_build(path)),
    "find_checkpoint": ("a build", lambda model, path: api.find_checkpoint(path)),
    "checkpoint": ("a run folder", lambda model, path: api.find_checkpoint("build", path)),
    "run_of": ("a run folder", lambda model, path: api.run_of(path)),
    "restore": ("a safetensors file", lambda model, path: model.restore(path)),
    "load_weights": ("a safetensors file", lambda model, path: model.load_weights(path)),
    "load_embeddings": ("a file to read", lambda model, path: model.load_embeddings("E", path)),
    "save": ("a safetensors file to write", lambda model, path: model.save(path)),
    "predict_to_file": ("a file to write", lambda model, path: api.predict_to_file(model, "dev.jsonl", path)),
    "import_weights": ("a build", lambda model, path: import_weights(path, "w.safetensors")),
    "weights": ("a file to read", lambda model, path: import_weights("build", path)),
    "export_weights": (
        "a run folder or a checkpoint",
        lambda model, path: export_weights(path, "w.safetensors"),
    ),
    "draw_run": ("a run folder", lambda model, path: api.draw_run(path)),
    "import_file": ("a file to read", lambda model, path: api.import_file("text", path, "out.jsonl")),
    "destination": ("a file to write", lambda model, path: api.import_file("text", "in.txt", path)),
    "out": ("a build to write", lambda model, path: compile_model("build/model.dn", path)),
    "program": ("a file to read", lambda model, path: api.check_data(path)),
    "data": ("a file to read", lambda model, path: api.explain_build("build", data=path)),
}
WRONG = [(3, "int"), (["build"], "list"), (b"build", "bytes"), ({}, "dict"), ("", "an empty text")]
WRONG += [("a\0b", "a text with a zero byte"), (Path("\0"), "a text with a zero byte")]


@pytest.mark.parametrize("name", TAKES)
def test_what_is_no_path(workplace, name):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    expected, call = TAKES[name]
    for value, found in WRONG if name in ("data", "checkpoint") else [(None, "NoneType"), *WRONG]:
        with pytest.raises(dnc.DiagnosticError) as caught:
            call(model, value)
        assert str(caught.value) == f"error: found {found}, expected the path of {expected}"


def test_what_is_no_name_of_a_table(workplace):
    model = dnc.load("build", "vm")
    for name, found in ((None, "NoneType"), (["E"], "list")):
        with pytest.raises(dnc.DiagnosticError, match=f"found {found}, expected the name of a table"):
            model.load_embeddings(name, "vectors.txt")


def test_what_is_no_parameters_by_name(workplace):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    for values, found in ((None, "NoneType"), ([1], "list")):
        with pytest.raises(
            dnc.DiagnosticError, match=f"found {found}, expected arrays by the names of param"
        ):
            model.set_parameters(values)


def test_batches_of_nothing(workplace):
    """Whether data are attached or not, the batch is what is wrong."""
    model = dnc.load("build", "vm")
    for call in (model.predict, model.forward, model.step):
        for batch in ([], (), np.zeros(0, np.int32)):
            with pytest.raises(dnc.DiagnosticError, match="a batch holds no samples"):
                call(batch)
    model.attach("train.jsonl")
    assert model.predict([]) == {"label": [], "p": []}


def test_what_weights_are_imported_with(workplace):
    (workplace / "map.toml").write_text('ignore = ["optimizer/*"]')
    model = dnc.load("build", "vm")
    model.train("train.jsonl", run_dir="run")
    for options, message in (
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"vocabularies": "words.txt"}, "vocabularies: found str, expected files of words"),
        ({"vocabularies": {"vocab": None}}, "found NoneType, expected the path of a file to read"),
        ({"run_dir": 3}, "found int, expected the path of a run folder"),
    ):
        with pytest.raises(dnc.DiagnosticError, match=message):
            import_weights("build", "run/last.safetensors", "map.toml", **options)


@pytest.mark.parametrize("call", ["predict", "evaluate", "step"])
def test_a_batch_makes_no_vocabulary(workplace, call):
    """Its words would be all there are, and `attach` could not bring others."""
    model = dnc.load("build", "vm")
    for batch in ([{"word": "good", "label": 4}], [{"word": 7, "label": 4}], "dev.jsonl"):
        with pytest.raises(dnc.DiagnosticError, match="no vocabulary yet: attach training data"):
            getattr(model, call)(batch)
    model.attach("train.jsonl")
    getattr(model, call)("dev.jsonl")
    again = dnc.load("build", "vm")
    getattr(again, call)(model.read("dev.jsonl"))  # a data set knows what its numbers mean


def test_sizes_that_the_program_gives_need_no_vocabulary(workplace):
    (workplace / "one.dn").write_text(
        "model One(words = 9, d = 2)\nstruct W = W(form: token<words>, label: class<d>)\n"
        "param E: table[words, d]\nfn f(w: W) = E[w.form]\n"
        "loss sum(w in root) cross_entropy(f(w), w.label)\noutput y = f(root)\n"
    )
    compile_model("one.dn", "one", ("cpu",), {})
    assert dnc.load("one", "vm").predict([{"form": 8}])["y"][0].shape == (2,)


def test_numbers_that_are_missing(workplace):
    """They are told before there is a run folder."""
    model = dnc.load("build", "vm")
    for name in ("epochs", "batch", "log_every"):
        with pytest.raises(dnc.DiagnosticError, match=f"{name} is None, expected a whole number"):
            model.train("train.jsonl", run_dir="run", **{name: None})
    assert not (workplace / "run").exists()
    with pytest.raises(dnc.DiagnosticError, match="launches is None, expected a whole number"):
        model.trace(None)
    assert model.train("train.jsonl", run_dir="run", patience=None, save_every=None).exists()


def test_what_is_no_name_and_no_number():
    for format, found in ((3, "int"), (["text"], "list")):
        with pytest.raises(dnc.DiagnosticError, match=f"found {found}, expected the name of a format"):
            api.import_file(format, "in.txt", "out.jsonl")
    with pytest.raises(dnc.DiagnosticError, match="fields: found list, expected new names of fields"):
        api.import_file("text", "in.txt", "out.jsonl", fields=["form"])
    for kind in (3, ["step"]):
        with pytest.raises(dnc.DiagnosticError, match="unknown schedule"):
            api.rate_schedule(kind)
    for decay in ("x", True, [0.5]):
        with pytest.raises(dnc.DiagnosticError, match=r"the decay is .*, expected a number"):
            api.rate_schedule("step", decay)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"targets": "cpu"}, "targets are 'cpu', expected names, as ('cpu', 'cuda')"),
        ({"targets": 3}, "targets are 3, expected names, as ('cpu', 'cuda')"),
        ({"targets": ["cpu", 3]}, "targets are ['cpu', 3], expected names, as ('cpu', 'cuda')"),
        ({"targets": ()}, "targets: there are none, expected one or more"),
        ({"settings": [3]}, "settings are [3], expected whole numbers by the names of dimensions"),
        ({"settings": {3: 4}}, "settings are {3: 4}, expected whole numbers by"),
        ({"settings": {"hidden": 8.5}}, "settings are {'hidden': 8.5}, expected whole numbers by"),
        ({"settings": {"hidden": True}}, "settings are {'hidden': True}, expected whole numbers by"),
    ],
)
def test_what_is_compiled(workplace, options, message):
    with pytest.raises(dnc.DiagnosticError) as caught:
        compile_model("build/model.dn", "other", **options)
    assert str(caught.value).startswith(f"error: {message}")
    assert not (workplace / "other").exists()


def test_data_and_optimizers_of_no_kind(workplace):
    model = dnc.load("build", "vm")
    for call in (model.attach, lambda data: tune("build", data, device="cpu")):
        expected = "expected a path, a data set, or a list of samples"
        with pytest.raises(dnc.DiagnosticError, match=f"found one sample, {expected}"):
            call({"word": "a", "label": 1})
        with pytest.raises(dnc.DiagnosticError, match=f"found int, {expected}"):
            call(3)
    for optimizer in ([], 3, "sdg"):
        with pytest.raises(dnc.DiagnosticError, match="unknown optimizer"):
            model.configure(optimizer)


def test_gradients_are_checked_with_the_program(workplace):
    """An element-wise gradient of a large matrix is a mistake of a program that trains."""
    (workplace / "square.dn").write_text(
        "model Square(d = 128)\nstruct W = W(x: pulled<d>, label: class<d>)\nparam A: [d, d]\n"
        "fn f(w: W) = (A * A) @ w.x\nloss sum(w in root) cross_entropy(f(w), w.label)\n"
    )
    for check in (lambda: api.check_data("square.dn"), lambda: compile_model("square.dn", "square")):
        with pytest.raises(dnc.DiagnosticError) as caught:
            check()
        assert str(caught.value).startswith(
            "square.dn:4:15: error: the gradient of 'A' in 'loss' is not a product of two vectors"
        )
    compile_model("square.dn", "square", options=PlanOptions(mode="infer"))


@pytest.mark.parametrize(
    "count, message", [(0, "0, expected 1 or more"), ("2", "'2', expected a whole number")]
)
def test_words_met_as_often_as_no_number(workplace, count, message):
    for read in (dnc.load("build", "vm").attach, dnc.load("build", "vm").read):
        with pytest.raises(dnc.DiagnosticError, match=f"min_count is {message}"):
            read("train.jsonl", min_count=count)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"without": "hoist"}, "without: found 'hoist', expected a tuple of names"),
        ({"without": None}, "without: found None, expected a tuple of names"),
        ({"cluster": "8"}, "cluster: found '8', expected a whole number"),
        ({"batch": 1.5}, "batch: found 1.5, expected a whole number"),
        ({"tile": True}, "tile: found True, expected a whole number"),
        ({"window": None}, "window: found None, expected a whole number"),
        ({"repeat": "yes"}, "repeat: found 'yes', expected True or False"),
        ({"mode": None}, "mode: found None, expected a text"),
        ({"workers": 0}, "workers: found 0, expected 1 or more"),
        ({"registers": -1}, "registers: found -1, expected 0 or more"),
        ({"residency": "shelf"}, "residency: found 'shelf', expected register, shared, streamed or sparse"),
    ],
)
def test_options_of_plans(workplace, options, message):
    with pytest.raises(dnc.DiagnosticError) as caught:
        compile_model("build/model.dn", "other", ("cuda",), options=PlanOptions(**options))
    assert str(caught.value) == f"error: {message}"
    assert not Path("other").exists()


def test_files_that_may_not_be_read(workplace, monkeypatch):
    """They are there, and not damaged."""
    (workplace / "w.safetensors").write_bytes(b"")
    model = dnc.load("build", "vm")

    def refused(path, *options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(dnc.DiagnosticError, match="safetensors: cannot be read: Permission denied"):
        model.restore("w.safetensors")
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(dnc.DiagnosticError, match=r"manifest.json: cannot be read: Permission denied"):
        dnc.load("build", "vm")


def test_a_working_folder_that_is_gone(workplace, monkeypatch):
    model = dnc.load(workplace / "build", "vm")
    (workplace / "gone").mkdir()
    monkeypatch.chdir(workplace / "gone")
    (workplace / "gone").rmdir()
    with pytest.raises(dnc.DiagnosticError, match="from the working folder: No such file"):
        model.train(workplace / "train.jsonl", run_dir="run")


def test_whole_numbers_of_numpy(workplace):
    model = dnc.load("build", "vm", seed=np.int64(3))
    kept = model.train(
        "train.jsonl", epochs=np.int64(1), batch=np.int32(4), run_dir="run", log_every=np.int8(2)
    )
    model.save("saved.safetensors")
    assert read_config(kept / "run.toml").epochs == 1
    assert load_checkpoint("saved.safetensors").seed == 3


def test_numbers_behind_the_last_row_are_not_looked_at():
    """They are what was in memory before, and may be no whole numbers."""
    values = Values(
        "f1", "f1", "column", 0, 2, 1, (), True, False, np.zeros(0, np.intp), np.zeros(1, np.intp)
    )
    with np.errstate(all="raise"):
        assert values.of(np.array([4.0, np.nan], np.float32), 1)[0] == 4


@pytest.mark.parametrize("name", ["report", "tick", "stop"])
def test_what_is_told_is_a_function(workplace, name):
    model = dnc.load("build", "vm")
    with pytest.raises(dnc.DiagnosticError, match=f"{name} is None, expected a function"):
        model.train("train.jsonl", run_dir="run", **{name: None})
    assert not Path("run").exists()


def test_an_event_that_is_none(workplace):
    dnc.load("build", "vm").train("train.jsonl", run_dir="run")
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('"a note"\n')
    with pytest.raises(dnc.DiagnosticError, match=r"metrics.jsonl:\d+: found a string, expected an event"):
        api.draw_run("run")
    model = dnc.load("build", "vm", checkpoint="run/last.safetensors")
    model.train("train.jsonl", epochs=2, run_dir="other")


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_an_array_in_place_of_arrays_by_name(workplace, name):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    model.forward([0])
    given = ([0], np.ones((1, 2))) if name == "forward" else (np.ones((1, 2)),)
    with pytest.raises(dnc.DiagnosticError, match=r"found ndarray, expected a .* by name"):
        getattr(model, name)(*given)


@pytest.mark.parametrize("name", ["kernel.json", "kernel.tirx"])
def test_a_kernel_that_lacks_a_file(workplace, name):
    files = {"kernel.json": b"{}", "kernel.tirx": b""}
    del files[name]
    with pytest.raises(dnc.DiagnosticError, match=f"the build has no {name} for a CPU; compile it again"):
        CpuBackend(dnc.load("build", "vm").plan, files)
    with pytest.raises(dnc.DiagnosticError, match=r"has no kernel.json for a GPU; compile it again"):
        CudaBackend(dnc.load("build", "vm").plan, {}, None)
