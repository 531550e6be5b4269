"""Data that were read without what is to be predicted: outputs can be made of them, and nothing else."""

import pytest

import dnc
from dnc.compiler import PlanOptions, compile_model, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import read_samples
from tests.support.models import without_kernels

TEXT = """model M(classes = 3, d = 2)
struct W = W(x: vector<d>, tag: class<classes>, goal: vector<d>)
struct T = T(ws: [W])
running param m: [d]
param V: [classes, d], U: [d, d]
fn f(w: W) -> [d] = tanh(U @ w.x + f(w.prev))
loss sum(w in all(W)) cross_entropy(V @ f(w), w.tag) + LOSS
output o = [argmax(V @ f(w)) for w in all(W)]
"""
PLAIN = "squared_error(f(w), w.goal) + 0 * sum(follow(m, f(w), 0.1))"
LOSSES = (PLAIN, "squared_error(U @ w.goal, f(w))", "sum(sigmoid(follow(m, f(w), 0.1) - w.goal))")
BARE = {"ws": [{"x": [1, 2]}, {"x": [3, 4]}]}
PART = {"ws": [{"x": [1, 2], "tag": 1, "goal": [0, 1]}, {"x": [3, 4], "goal": [0, 1]}]}
WHOLE = {"ws": [{"x": [1, 2], "tag": 1, "goal": [0, 1]}, {"x": [3, 4], "tag": 2, "goal": [1, 1]}]}


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("loss", LOSSES)
def test_targets_of_losses_may_be_missing_whatever_losses_keep_for_gradients(loss, mode):
    text = TEXT.replace("LOSS", loss).replace("running param m: [d]\n" * ("m" not in loss), "")
    source, _ = load_program(Source("m.dn", text), {})
    program = transform(source, PlanOptions(mode=mode))
    assert read_samples([BARE], program, labels_required=False).samples == 1
    with pytest.raises(DiagnosticError, match="is missing"):
        read_samples([BARE], program)


def test_nothing_is_learned_from_or_measured_without_labels(tmp_path):
    (tmp_path / "m.dn").write_text(TEXT.replace("LOSS", PLAIN))
    with without_kernels(tmp_path / "cache"):
        compile_model(tmp_path / "m.dn", tmp_path / "build")
    model = dnc.load(tmp_path / "build", "vm")
    for sample, missing in ((BARE, "goal"), (PART, "tag"), (WHOLE, "")):
        data = model.read([sample], labels_required=False)
        model.attach(data)
        assert len(model.predict()["o"][0]) == 2 and len(list(model.predictions([[0], [0]]))) == 2
        calls = (
            lambda: model.evaluate(),
            lambda data=data: model.evaluate(data),
            lambda: model.step([0]),
            lambda: model.sync(),
            lambda: list(model.steps([[0]])),
            lambda data=data: model.evaluate(data.select([0, 0])),
            lambda data=data: model.train(data, epochs=1, run_dir=tmp_path / "run"),
        )
        for number, call in enumerate(calls):
            if not missing or number == 3:
                call()
                continue
            with pytest.raises(DiagnosticError) as caught:
                call()
            assert str(caught.value) == (
                f"error: samples: was read without labels, and W: field '{missing}' is missing"
            )


def test_a_batch_that_goes_backward_has_labels_for_a_loss_of_its_own(tmp_path):
    (tmp_path / "m.dn").write_text(TEXT.replace("LOSS", PLAIN) + "push s = [f(w) for w in all(W)]\n")
    with without_kernels(tmp_path / "cache"):
        compile_model(tmp_path / "m.dn", tmp_path / "build")
    model = dnc.load(tmp_path / "build", "vm")
    model.read([WHOLE])
    for sample in (BARE, WHOLE):
        given = model.forward([sample])["s"]
        if sample is BARE:
            with pytest.raises(DiagnosticError, match="was read without labels, and W: field 'goal'"):
                model.backward({"s": given})
        else:
            model.backward({"s": given})


ENDS = """model M(classes = 3, d = 2)
struct W = W(x: vector<d>, tag: class<classes>, goal: vector<d>)
struct T = T(ws: [W])
param V: [classes, d], U: [d, d]
fn f(w: W) -> [d] = tanh(U @ w.x + f(w.prev))
fn part(w: W) = cross_entropy(V @ f(w), w.tag) + squared_error(f(w), w.goal)
loss sum(t in root) sum(part(w) for w in t.ws) + sum(f(t.ws.last))
output o = [argmax(V @ f(w)) for w in all(W)]
"""
EMPTY = {"ws": []}


def test_a_list_is_empty_only_where_outputs_do_not_start_at_its_ends(tmp_path):
    (tmp_path / "m.dn").write_text(ENDS)
    for mode in ("train", "infer"):
        with without_kernels(tmp_path / "cache"):
            compile_model(tmp_path / "m.dn", tmp_path / mode, options=PlanOptions(mode=mode))
        model = dnc.load(tmp_path / mode, "vm")
        data = model.read([WHOLE, EMPTY], labels_required=False)
        assert [len(tags) for tags in model.predict(data)["o"]] == [2, 0]
        with pytest.raises(DiagnosticError, match="was read without labels, and T: list 'ws' is empty"):
            model.evaluate(data)
        with pytest.raises(DiagnosticError, match="list 'ws' is empty, but the program reads its first"):
            model.read([WHOLE, EMPTY])
    source, _ = load_program(Source("m.dn", ENDS + "output p = argmax(V @ f(root.ws.first))\n"), {})
    for required in (False, True):
        with pytest.raises(DiagnosticError, match="list 'ws' is empty, but the program reads its first"):
            read_samples([WHOLE, EMPTY], source, labels_required=required)
        flat = {"W": {"x": [], "tag": [], "goal": []}, "T": {"ws": [[]]}, "root": 0}
        with pytest.raises(DiagnosticError, match=r"T\[0\].ws is empty, but the program reads its first"):
            read_samples([flat], source, labels_required=required)
