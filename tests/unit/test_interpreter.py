"""The interpreter against the same models written out in plain NumPy."""

import numpy as np
import pytest

from dnc.compiler import make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.interpreter import interpret
from dnc.runtime.backend import VMBackend
from tests.support.executors import Bench, check_evaluation
from tests.support.forests import ForestGrower
from tests.support.ir_models import HIDDEN, MODELS, instance, sequence_forest
from tests.support.models import EXAMPLES, VOCABULARY


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_softmax(x):
    return x - np.log(np.exp(x).sum())


def test_tree_lstm_written_out():
    program, forest, w = instance("tree", seed=3)
    found = interpret(program, forest, w)
    table, states, loss, hits = forest.tables["Tree"], {}, 0.0, []

    def visit(v):
        if v not in states:
            if table.arm[v] == 0:
                token = table.data["word"][v]
                x = w["E"][token] if token >= 0 else np.zeros(4)
                i, o, u = np.split(w["W"] @ x + w["b_w"], 3)
                c = sigmoid(i) * np.tanh(u)
            else:
                (lh, lc), (rh, rc) = visit(table.children["left"][v]), visit(table.children["right"][v])
                i, o, u, fl, fr = np.split(w["U"] @ np.concatenate([lh, rh]) + w["b_u"], 5)
                c = sigmoid(i) * np.tanh(u) + sigmoid(fl) * lc + sigmoid(fr) * rc
            states[v] = sigmoid(o) * np.tanh(c), c
        return states[v]

    for v in range(len(table)):
        h, c = visit(v)
        np.testing.assert_allclose(found.states["encode", "h"][v], h)
        np.testing.assert_allclose(found.states["encode", "c"][v], c)
        logits, label = w["V"] @ h + w["b_v"], table.data["label"][v]
        loss += -0.5 * log_softmax(logits)[label] if label >= 0 else 0
        hits.append(float(np.argmax(logits) == label))
        np.testing.assert_allclose(found.outputs["p"][v], np.exp(log_softmax(logits)))
    assert found.loss == pytest.approx(loss / forest.samples)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(hits))


def test_a_metric_of_no_rows_is_what_a_launch_measures():
    """Samples of one leaf: no vertex is a `Node`."""
    text = (EXAMPLES / "treelstm.dn").read_text().replace("mean(t in root)", "mean(t in all(Tree.Node))")
    settings = {"vocab": VOCABULARY, "hidden": 2, "embed": 2}
    program = transform(load_program(Source("leaves.dn", text), settings)[0])
    plan = make_plan(program, "cpu")
    forest = ForestGrower(program, 1).grow(3, 1, "single")
    bench = Bench(program, plan, VMBackend(plan, 1, 1), forest)
    assert np.isnan(interpret(program, forest, bench.values).metrics["accuracy"])
    check_evaluation(bench)


def test_backward_direction_reads_next():
    program, forest, w = instance("bilstm")
    found = interpret(program, forest, w)
    last = int(forest.tables["Word"].begin[1]) - 1
    table, name = forest.tables["Word"], "backward"
    token = table.data["word"][last]
    x = np.concatenate([w["E"][token] if token >= 0 else np.zeros(4), table.data["extra"][last]])
    i, o, u, _ = np.split(w[f"W_{name}"] @ x * table.data["weight"][last, 0] + w["b"], 4)
    np.testing.assert_allclose(
        found.states[name, "h"][last], sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(u)), rtol=1e-6
    )


def test_a_long_chain():
    program, _, w = instance("bilstm")
    forest = sequence_forest(program, np.random.default_rng(0), lengths=(5000,))
    assert np.isfinite(interpret(program, forest, w).states["forward", "h"]).all()


def test_batches_are_means_of_samples():
    for name in MODELS:
        program, forest, w = instance(name)
        whole = interpret(program, forest, w).loss
        each = [interpret(program, forest.select([i]), w).loss for i in range(forest.samples)]
        assert whole == pytest.approx(np.mean(each))


def test_an_empty_forest():
    program, forest, w = instance("tree")
    found = interpret(program, forest.select(np.zeros(0, np.int32)), w)
    assert found.loss == 0 and found.states["encode", "h"].shape == (0, HIDDEN)


def test_a_cycle_is_named():
    program, forest, w = instance("tree")
    forest.tables["Tree"].children["left"][forest.roots[0]] = forest.roots[0]
    nodes = forest.tables["Tree"].arm[forest.roots[0]]
    if nodes == 0:
        pytest.skip("the first tree is a leaf")
    with pytest.raises(DiagnosticError, match="wait for each other: the structure has a cycle"):
        interpret(program, forest, w)
