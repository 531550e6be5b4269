"""Checkpoints, initial values, weights by name, builds: what is on disk."""

import json
import tempfile
from pathlib import Path

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dnc.diagnostics import DiagnosticError
from dnc.ir.isa import VERSION
from dnc.ir.optimizers import OPTIMIZERS, Hyper
from dnc.ir.program import Initializer, Parameter
from dnc.ir.structure import Dimension
from dnc.runtime.build import FORMAT, Build, Target, check_outside, is_build, read_build, write_build
from dnc.runtime.checkpoint import Checkpoint, Course, Position, check_model, load_checkpoint, save_checkpoint
from dnc.runtime.data import Vocabulary
from dnc.runtime.initialize import generator, initial_values, initialize, load_weights
from dnc.runtime.tensors import read_tensors
from tests.support.models import rows_of, small_plan

PROGRAM = small_plan("treelstm").program
ROWS = rows_of(small_plan("treelstm"))
VALUES = initialize(PROGRAM, ROWS, 1)


def checkpoint():
    words = Vocabulary("vocab", ("<unk>", "good"), 2, True)
    state = {"squares": {name: value**2 for name, value in VALUES.items()}}
    place, hyper = Position(2, 3, 40), Hyper("adagrad", 0.1, 5.0)
    return Checkpoint(
        "TreeLSTM", "abc", VALUES, state, {"vocab": words}, 7, place, hyper, 3, Course(16, best=0.5)
    )


# ---- first values ----------------------------------------------------------------------------------


def test_the_order_of_declarations_does_not_matter():
    turned = attrs.evolve(PROGRAM, parameters=PROGRAM.parameters[::-1])
    found = initialize(turned, ROWS, 1)
    assert all(np.array_equal(found[name], value) for name, value in VALUES.items())
    other = initialize(PROGRAM, ROWS, 2)
    assert not np.array_equal(other["U"], VALUES["U"])


def test_a_larger_vocabulary_keeps_the_first_rows():
    grown = initialize(PROGRAM, {"E": 20}, 1)["E"]
    assert grown.shape == (20, 4) and np.array_equal(grown[: ROWS["E"]], VALUES["E"])


@pytest.mark.parametrize(
    "rule, shape, check",
    [
        (Initializer("zeros"), (3,), lambda v: not v.any()),
        (Initializer("constant", 2.5), (3, 2), lambda v: (v == 2.5).all()),
        (Initializer("uniform", 0.1), (50, 50), lambda v: 0.09 < abs(v).max() <= 0.1),
        (Initializer("normal", 0.1), (50, 50), lambda v: abs(v.std() - 0.1) < 0.01),
        (Initializer("xavier"), (40, 20), lambda v: 0.29 < abs(v).max() <= np.sqrt(6 / 60)),
        (Initializer("orthogonal"), (8, 5), lambda v: np.allclose(v.T @ v, np.eye(5), atol=1e-5)),
        (Initializer("orthogonal"), (5, 8), lambda v: np.allclose(v @ v.T, np.eye(5), atol=1e-5)),
        (Initializer("constant", 0, (0, 1)), (6,), lambda v: v.tolist() == [0, 0, 0, 1, 1, 1]),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_initializers(rule, shape, check):
    parameter = Parameter("P", "dense", tuple(Dimension(str(n), n) for n in shape), rule)
    values = initial_values(rule, shape, generator(1, parameter))
    assert values.shape == shape and values.dtype == np.float32 and check(values)


# ---- weights by name -------------------------------------------------------------------------------


def test_weights_by_name(tmp_path):
    save_file({"V": np.ones((5, 4), np.float32)}, tmp_path / "w.safetensors")
    values, names = load_weights(tmp_path / "w.safetensors", PROGRAM, ROWS, VALUES)
    assert names == ("V",) and (values["V"] == 1).all() and values["U"] is VALUES["U"]


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"V": np.ones((5, 3), np.float32)}, r"V is \[5, 3\], expected \[5, 4\]"),
        ({"v": np.ones((5, 4), np.float32)}, "no parameter is called v; known: E, W, b_w, U, b_u, V, b_v"),
        ({"V": np.full((5, 4), np.nan, np.float32)}, "V holds numbers that are not finite"),
        ({"V": np.full((5, 4), 1e300)}, "V holds numbers that a 32-bit float cannot hold"),
        ({"V": np.ones((5, 4), np.int8)}, "V holds int8, expected floats"),
        ({"V": np.ones((5, 4), np.bool_)}, "V holds bool, expected floats"),
        ({"optimizer/V": np.ones((5, 4), np.float32)}, "holds no weights"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(DiagnosticError, match=message):
        load_weights(tmp_path / "w.safetensors", PROGRAM, ROWS, VALUES)


# ---- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_reads_back(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, checkpoint())
    found = load_checkpoint(path)
    assert all(np.array_equal(found.weights[name], value) for name, value in VALUES.items())
    for name, value in checkpoint().optimizer_state["squares"].items():
        assert np.array_equal(found.optimizer_state["squares"][name], value)
    rest = [a.name for a in attrs.fields(Checkpoint) if a.name not in ("weights", "optimizer_state")]
    assert all(getattr(found, name) == getattr(checkpoint(), name) for name in rest)
    assert set(load_file(path)) == {*VALUES, *(f"optimizer/squares/{name}" for name in VALUES)}
    before = path.read_bytes()
    save_checkpoint(path, checkpoint())
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_bytes_of_floats_are_no_whole_numbers(tmp_path):
    """The header says what they are; it is no part of what the checksum is of."""
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, checkpoint())
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"', 1))
    with pytest.raises(DiagnosticError, match="holds int32, expected floats"):
        check_model(load_checkpoint(path), PROGRAM, "abc", ROWS, path)


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, checkpoint())
    before = path.read_bytes()
    broken = {**VALUES, "V": np.full((5, 4), np.nan, np.float32)}
    with pytest.raises(DiagnosticError, match="V holds numbers that are not finite"):
        save_checkpoint(path, attrs.evolve(checkpoint(), weights=broken))
    with pytest.raises(DiagnosticError, match="not written, the optimizer's squares: V holds numbers"):
        save_checkpoint(path, attrs.evolve(checkpoint(), optimizer_state={"squares": broken}))
    assert path.read_bytes() == before


def test_a_checkpoint_without_a_clip(tmp_path):
    plain = attrs.evolve(checkpoint(), hyper=Hyper("sgd", 0.1), course=Course(), optimizer_state={})
    save_checkpoint(tmp_path / "c", plain)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.safetensors").write_bytes(b"")
    with pytest.raises(DiagnosticError, match=r"run: is a directory, .* it holds last\.safetensors"):
        load_checkpoint(tmp_path / "run")
    found = load_checkpoint(tmp_path / "c")
    assert found.hyper == Hyper("sgd", 0.1) and found.course == Course() and found.optimizer_state == {}
    check_model(found, PROGRAM, "abc", ROWS, "c")


def test_every_setting_of_every_optimizer_reads_back(tmp_path):
    for entry in OPTIMIZERS.values():
        hyper = Hyper(entry.name, 0.3, 2.0, 1e-3, 0.1, 0.5, 0.6, 0.7)
        state = {each.name: {n: v**2 for n, v in VALUES.items()} for each in entry.states}
        made = attrs.evolve(checkpoint(), hyper=hyper, optimizer_state=state)
        save_checkpoint(tmp_path / "c", made)
        found = load_checkpoint(tmp_path / "c")
        assert (found.hyper, found.optimizer_steps) == (hyper, 3)
        assert set(found.optimizer_state) == set(state)
        check_model(found, PROGRAM, "abc", ROWS, "c")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "Other"}, "a checkpoint of model Other; this build is of TreeLSTM"),
        ({"weights": {**VALUES, "V": np.ones((2, 4))}}, r"V is \[2, 4\], expected \[5, 4\]"),
        ({"weights": {k: v for k, v in VALUES.items() if k != "V"}}, "V is missing"),
        ({"weights": {**VALUES, "X": np.ones(1)}}, "no parameter is called X"),
        ({"digest": "def"}, "another program called TreeLSTM, though the shapes agree"),
        (  # of a program that trains other parameters, say
            {"digest": "def", "optimizer_state": {"squares": {}}},
            "another program called TreeLSTM, though the shapes agree",
        ),
        ({"optimizer_state": {"squares": {}}}, "optimizer/squares/E is missing"),
        (
            {"optimizer_state": {"squares": {**VALUES, "V": np.ones((1, 1))}}},
            r"optimizer/squares/V is \[1, 1\], expected \[5, 4\]",
        ),
        (
            {"optimizer_state": {"squares": {**VALUES, "X": np.ones(1)}}},
            "no parameter is called optimizer/squares/X",
        ),
        ({"optimizer_state": {"squares": {}, "mean": {}}}, "adagrad keeps no 'mean'"),
        ({"weights": {**VALUES, "V": np.full((5, 4), np.nan)}}, "V holds numbers that are not finite"),
        ({"optimizer_state": {"squares": VALUES}}, "the optimizer's squares hold negative numbers"),
    ],
)
def test_checkpoints_of_another_model(changes, message):
    check_model(checkpoint(), PROGRAM, "abc", ROWS, "c")
    with pytest.raises(DiagnosticError, match=message):
        check_model(attrs.evolve(checkpoint(), **changes), PROGRAM, "abc", ROWS, "c")


def test_a_checkpoint_of_other_sizes_names_parameters_alone():
    other = {name: np.ones((value.shape[0] + 1, *value.shape[1:])) for name, value in VALUES.items()}
    changed = attrs.evolve(checkpoint(), weights=other, optimizer_state={"squares": other})
    with pytest.raises(DiagnosticError) as caught:
        check_model(changed, PROGRAM, "abc", ROWS, "c")
    assert len(caught.value.diagnostics) == len(VALUES) and "optimizer/" not in str(caught.value)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "there is no such file"),
        (b"", "not a safetensors file"),
        (b"{}" * 20, "not a safetensors file"),
        (b"PK\3\4" + b"." * 40, "not a safetensors file .*\n  from PyTorch: .*\n  then dnc import-weights"),
    ],
)
def test_files_that_are_no_checkpoints(tmp_path, content, message):
    if content is not None:
        (tmp_path / "c").write_bytes(content)
    with pytest.raises(DiagnosticError, match=message):
        load_checkpoint(tmp_path / "c")


def test_any_byte_counts(tmp_path):
    """Of the numbers, and of what stands beside them: a vocabulary, the place in training."""
    save_checkpoint(tmp_path / "c", checkpoint())
    whole = (tmp_path / "c").read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    load_checkpoint(tmp_path / "c")
    for at in (*range(8, begin, 7), *range(begin, len(whole), max(1, (len(whole) - begin) // 50))):
        (tmp_path / "c").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        message = "damaged: it does not hold what was written" if at >= begin else None
        with pytest.raises(DiagnosticError, match=message):
            load_checkpoint(tmp_path / "c")


def test_other_metadata(tmp_path):
    save_file(VALUES, tmp_path / "plain")
    with pytest.raises(DiagnosticError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "plain")
    for metadata, message in (
        ({"version": 9}, "a checkpoint of version 9, expected 2"),
        ({"version": 2}, "its metadata is broken"),
        (stored(seed=-1), r"its metadata is broken: .*seed"),
        (stored(epoch=-1), r"its metadata is broken: .*epoch"),
        (stored(step=10**30), r"its metadata is broken: .*step"),
        (stored(optimizer="adamax"), r"its metadata is broken: .*optimizer"),
        (stored(learning_rate=0), r"its metadata is broken: .*learning_rate"),
        (stored(vocabularies={"vocab": {"size": -1, "unknown": True}}), "not a vocabulary file: .*size"),
        (stored(checksum=None), "damaged: it does not hold what was written"),
    ):
        save_file(VALUES, tmp_path / "c", {"dnc": json.dumps(metadata)})
        with pytest.raises(DiagnosticError, match=message):
            load_checkpoint(tmp_path / "c")
    save_checkpoint(tmp_path / "c", checkpoint())
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-7])
    with pytest.raises(DiagnosticError, match="not a safetensors file"):
        load_checkpoint(tmp_path / "c")


def stored(**changes):
    """The metadata of a checkpoint, some changed."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "c", checkpoint())
        return {**read_tensors(Path(folder) / "c")[1], **changes}


# ---- builds ----------------------------------------------------------------------------------------


def build(path):
    return Build(
        path, "M", "abc", "m.dn", "model M()", {"hidden": 4}, "ir", {"cpu": Target("cpu", {}, "xyz")}
    )


def test_a_build_reads_back(tmp_path):
    write_build(build(tmp_path / "b"), {"cpu": {"kernel.txt": b"work"}})
    found = read_build(tmp_path / "b")
    assert found.kernels("cpu") == {"kernel.txt": b"work"}
    assert attrs.evolve(found, targets=build(tmp_path).targets) == build(tmp_path / "b")
    write_build(attrs.evolve(build(tmp_path / "b"), source="model M2()"), {})
    assert read_build(tmp_path / "b").source == "model M2()"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_build_is_written_where_a_link_leads(tmp_path):
    """Whoever serves what a link leads to gets the new build, and the link stays one."""
    write_build(build(tmp_path / "first"), {})
    (tmp_path / "current").symlink_to("first")
    write_build(attrs.evolve(build(tmp_path / "current"), source="model M2()"), {})
    assert (tmp_path / "current").is_symlink() and read_build(tmp_path / "first").source == "model M2()"
    (tmp_path / "next").symlink_to("second")
    write_build(build(tmp_path / "next"), {})
    assert (tmp_path / "next").is_symlink() and is_build(tmp_path / "second")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "first", "next", "second"]


def test_a_build_replaces_nothing_else(tmp_path):
    (tmp_path / "mine").mkdir()
    write_build(build(tmp_path / "mine"), {})  # an empty folder may be filled
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("x")
    with pytest.raises(DiagnosticError, match="exists and is not a build"):
        write_build(build(tmp_path / "work"), {})
    assert (tmp_path / "work" / "thesis.tex").read_text() == "x" and not is_build(tmp_path / "work")


@pytest.mark.parametrize("name, behind", [("b", False), ("b", True), (".b.", False), (".b.", True)])
def test_an_interrupt_while_a_build_is_replaced(tmp_path, monkeypatch, name, behind):
    """At either renaming, in front of it or behind: there is the old build or the new one, and no rest."""
    write_build(build(tmp_path / "b"), {})
    rename, struck = Path.rename, []

    def interrupted(path, target):
        if behind:
            rename(path, target)
        monkeypatch.undo()
        struck.append(path)
        raise KeyboardInterrupt

    def strikes(path, target):
        (interrupted if path.name.startswith(name) else rename)(path, target)

    monkeypatch.setattr(Path, "rename", strikes)
    with pytest.raises(KeyboardInterrupt):
        write_build(attrs.evolve(build(tmp_path / "b"), source="new"), {})
    assert struck and read_build(tmp_path / "b").source == ("new" if behind and name != "b" else "model M()")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_build_with_something_else_in_it_is_kept(tmp_path):
    write_build(build(tmp_path / "b"), {"cpu": {"kernel.txt": b"work"}})
    (tmp_path / "b" / "notes.txt").write_text("x")
    with pytest.raises(DiagnosticError, match=r"b: holds notes.txt beside the build, which would be lost"):
        write_build(build(tmp_path / "b"), {})
    assert (tmp_path / "b" / "notes.txt").read_text() == "x"
    for place in ("b/run/metrics.jsonl", "b/out"):
        with pytest.raises(DiagnosticError, match="lies in the build"):
            check_outside(tmp_path / place)
    check_outside(tmp_path / "b2")


def test_damaged_builds(tmp_path):
    write_build(build(tmp_path / "b"), {"cpu": {"kernel.txt": b"work"}})
    kernel, manifest = tmp_path / "b" / "cpu" / "kernel.txt", tmp_path / "b" / "manifest.json"
    kernel.write_bytes(b"wor")
    with pytest.raises(DiagnosticError, match=r"kernel.txt: the build is damaged here"):
        read_build(tmp_path / "b").kernels("cpu")
    kernel.unlink()
    with pytest.raises(DiagnosticError, match=r"kernel.txt: is missing from the build"):
        read_build(tmp_path / "b").kernels("cpu")
    (tmp_path / "b" / "program.ir").write_text("x")
    with pytest.raises(DiagnosticError, match=r"program.ir: the build is damaged here"):
        read_build(tmp_path / "b")
    whole = manifest.read_text()
    for text in (
        "{",
        "[]",
        "{}",
        whole.replace('"targets"', '"target"'),
        f'{{"format": {FORMAT}, "schedules": {VERSION}}}',
    ):
        manifest.write_text(text)
        with pytest.raises(DiagnosticError, match=r"manifest.json: the build is damaged here"):
            read_build(tmp_path / "b")
    values = json.loads(whole)
    own = values["targets"]["cpu"]
    for targets in ({}, {"cpu": {**own, "files": {"../../secret": "0"}}}, {"gpu": own}, {"cuda:sm_90a": own}):
        manifest.write_text(json.dumps({**values, "targets": targets}))
        with pytest.raises(DiagnosticError, match=r"manifest.json: the build is damaged here"):
            read_build(tmp_path / "b")
    manifest.write_text(whole.replace('"machine": "cpu"', '"machine": "sm_999"'))
    with pytest.raises(DiagnosticError, match=r"has kernels for sm_999, which this dnc .* does not know"):
        read_build(tmp_path / "b")
    manifest.write_text(whole.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    expected = rf"a build of format {FORMAT + 1} \(dnc .*\), expected {FORMAT}"
    with pytest.raises(DiagnosticError, match=expected):
        read_build(tmp_path / "b")
    manifest.write_text(whole.replace(f'"schedules": {VERSION}', f'"schedules": {VERSION - 1}'))
    expected = rf"its kernels read schedules of version {VERSION - 1} \(dnc .*\), .* writes version {VERSION}"
    with pytest.raises(DiagnosticError, match=expected):
        read_build(tmp_path / "b")
    manifest.unlink()
    with pytest.raises(DiagnosticError, match=r"not a build: manifest.json is missing"):
        read_build(tmp_path / "b")
