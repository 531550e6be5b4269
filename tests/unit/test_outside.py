"""Pulled vectors and pushed states: a Tree-LSTM between two NumPy nets, gradients through all three."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.data import describe
from tests.support.models import EXAMPLES, SUPPORT

LEAF: dict[str, Any] = {}
TREES = [
    LEAF,
    {"left": LEAF, "right": LEAF},
    {"left": {"left": LEAF, "right": LEAF}, "right": LEAF},
]
LEAVES = (1, 2, 3)
RATE, WIDTH, HIDDEN, INPUT = 0.5, 3, 4, 5


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    compile_model(
        EXAMPLES / "token_vectors.dn", tmp_path / "build", ("cpu",), {"width": WIDTH, "hidden": HIDDEN}
    )
    return tmp_path / "build"


@pytest.fixture
def model(build):
    found = dnc.load(build, "vm")
    found.attach(TREES)
    found.configure("sgd", RATE)
    return found


class Net:
    """x -> A x -> the Tree-LSTM -> |B h - y|², summed over the samples."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.a, self.b = random.normal(size=(WIDTH, INPUT)), random.normal(size=(2, HIDDEN))
        self.x = [random.normal(size=(leaves, INPUT)) for leaves in LEAVES]
        self.y = random.normal(size=(len(LEAVES), 2))

    def pulled(self) -> dict[str, list[Any]]:
        return {"Tree.x": [x @ self.a.T for x in self.x]}

    def loss(self, states: list[Any]) -> float:
        return float(sum(((self.b @ h - y) ** 2).sum() for h, y in zip(states, self.y, strict=True)))

    def pushed(self, states: list[Any]) -> dict[str, list[Any]]:
        return {"sentence": [2 * self.b.T @ (self.b @ h - y) for h, y in zip(states, self.y, strict=True)]}


def test_another_model_is_called_with_the_same_data_set(build, model):
    other, net = dnc.load(build, "vm"), Net()
    data = model.read(TREES)
    states = model.forward(data, net.pulled())["sentence"]
    own = other.forward(other.read(TREES), net.pulled())["sentence"]
    model.backward(net.pushed(states))
    other.backward(net.pushed(own))
    model.forward(data, net.pulled())
    states = other.forward(data, {"Tree.x": [2 * each for each in net.pulled()["Tree.x"]]})["sentence"]
    with pytest.raises(
        DiagnosticError, match="another model was handed vectors for it since; read it for each"
    ):
        model.backward(net.pushed(states))
    other.backward(net.pushed(states))


def test_gradients_through_three_nets(model):
    net = Net()
    before = {name: value.copy() for name, value in model.parameters().items()}
    states = model.forward([0, 1, 2], net.pulled())["sentence"]
    _, found = model.backward(net.pushed(states))
    by_a = sum(g.T @ x for g, x in zip(found["Tree.x"], net.x, strict=True))
    after = model.parameters()

    def loss() -> float:
        return net.loss(model.forward([0, 1, 2], net.pulled())["sentence"])

    model.session.write_arrays(before)
    for at in ((0, 0), (2, 4), (1, 3)):
        sides = []
        for step in (1e-2, -1e-2):
            net.a[at] += step
            sides.append(loss())
            net.a[at] -= step
        assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(by_a[at], rel=2e-3, abs=1e-3)
    for name, at in (("W", (1, 2)), ("U", (7, 3)), ("b_u", (5,)), ("b_w", (2,))):
        sides = []
        for step in (1e-2, -1e-2):
            moved = {key: value.copy() for key, value in before.items()}
            moved[name][at] += step
            model.session.write_arrays(moved)
            sides.append(loss())
        found_gradient = (before[name][at] - after[name][at]) / RATE
        assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(found_gradient, rel=2e-3, abs=1e-3)


def test_a_batch_in_another_order_and_again(model):
    net = Net()
    pulled = net.pulled()["Tree.x"]
    first = model.forward([0, 1, 2], {"Tree.x": pulled})["sentence"]
    turned = model.forward([2, 0], {"Tree.x": [pulled[2], pulled[0]]})["sentence"]
    assert np.array_equal(turned[0], first[2]) and np.array_equal(turned[1], first[0])


def test_a_sample_that_repeats_has_vectors_of_its_own(model):
    random = np.random.default_rng(1)
    pulled = {"Tree.x": [random.normal(size=(2, WIDTH)) for _ in range(2)]}
    found = []
    start = model.parameters()
    for batch in ([1, 1], [TREES[1], TREES[1]]):
        model.set_parameters(start)
        states = model.forward(batch, pulled)["sentence"]
        gradients = model.backward({"sentence": [np.ones(HIDDEN), np.full(HIDDEN, 2.0)]})[1]["Tree.x"]
        found.append([*states, *gradients, *model.parameters().values()])
    assert not np.array_equal(found[0][0], found[0][1])
    for numbered, listed in zip(*found, strict=True):
        assert np.array_equal(numbered, listed)


@pytest.mark.parametrize("name", ["predict", "evaluate", "step", "steps", "predictions", "train"])
def test_what_hands_in_nothing_is_refused(tmp_path, name):
    """It computed with zeros, or with what the last forward had been handed."""
    text = (EXAMPLES / "token_vectors.dn").read_text() + "\nloss sum(t in root) sum(encode(t).h)\n"
    (tmp_path / "own_loss.dn").write_text(text)
    sizes = {"width": WIDTH, "hidden": HIDDEN}
    compile_model(tmp_path / "own_loss.dn", tmp_path / "build", ("cpu",), sizes)
    model = dnc.load(tmp_path / "build", "vm")
    model.attach(TREES)
    calls = {
        "steps": lambda: list(model.steps([[0, 1]])),
        "predictions": lambda: list(model.predictions([[0, 1]])),
        "train": lambda: model.train(TREES),
    }
    model.forward([0, 1, 2], Net().pulled())
    with pytest.raises(DiagnosticError) as caught:
        calls.get(name, lambda: getattr(model, name)([0, 1]))()
    assert str(caught.value) == (
        f"error: {name}: the program pulls Tree.x, which is not in the data\n"
        "  vectors are handed in with Model.forward, and trained on with Model.backward behind it"
    )


def test_data_that_have_what_is_pulled(model):
    told = describe(model.program)
    assert "Tree (root) = Leaf() | Node(" in told and "not in the data: Tree.x" in told
    for sample in ({"x": [1, 2, 3]}, {"Tree": {"arm": ["Leaf"], "x": [[1, 2, 3]]}, "root": 0}):
        with pytest.raises(
            DiagnosticError, match=r"'x' of (Leaf|Tree) is pulled: it is handed in with every"
        ):
            model.read([sample])


@pytest.mark.parametrize(
    ("pulled", "message"),
    [
        (3, "found int, expected a pulled vector by name"),
        ({}, "the pulled vector 'Tree.x' is missing; the program has: Tree.x"),
        ({"Tree.y": []}, "the pulled vector 'Tree.y' is unknown; the program has: Tree.x"),
        (
            {"Tree.x": [np.zeros((1, 3))]},
            "the pulled vector 'Tree.x' has 1 array, expected 2, one a sample",
        ),
        (
            {"Tree.x": [np.zeros((1, 3)), np.zeros((2, 4))]},
            r"the pulled vector 'Tree.x' of sample 2 is \[2, 4\], expected \[2, 3\]",
        ),
        (
            {"Tree.x": [np.zeros((1, 3)), np.full((2, 3), np.nan)]},
            "the pulled vector 'Tree.x' of sample 2 has numbers that are not finite",
        ),
        (
            {"Tree.x": [np.zeros((1, 3)), [[1, 2, 3], [4]]]},
            "the pulled vector 'Tree.x' of sample 2 is no array of numbers: setting an array",
        ),
        (
            {"Tree.x": [[["a", "b", "c"]], np.zeros((2, 3))]},
            "the pulled vector 'Tree.x' of sample 1 is no array of numbers: could not convert",
        ),
        ({"Tree.x": 3}, "the pulled vector 'Tree.x' is int, expected a list of arrays"),
    ],
)
def test_what_does_not_fit_is_refused(model, pulled, message):
    with pytest.raises(DiagnosticError, match=message):
        model.forward([0, 1], pulled)


def test_a_batch_holds_samples(model):
    with pytest.raises(DiagnosticError, match="a batch holds no samples"):
        model.forward([], {"Tree.x": []})


def test_backward_needs_a_forward(model):
    with pytest.raises(DiagnosticError, match="backward needs a batch: call forward first"):
        model.backward({})
    model.forward([0], {"Tree.x": [np.zeros((1, WIDTH))]})
    with pytest.raises(DiagnosticError, match="the gradient of 'sentence' is missing"):
        model.backward({})


def test_it_has_nothing_to_train_or_evaluate_alone(model, tmp_path):
    with pytest.raises(DiagnosticError, match="nothing to evaluate"):
        model.evaluate([0])
    with pytest.raises(DiagnosticError, match="no loss of its own"):
        model.train(TREES, run_dir=tmp_path / "run")


def test_a_field_of_several_arms_gets_a_gradient_at_each(tmp_path, monkeypatch):
    """Every arm has a stage of its own; a vertex that nothing depends on gets zeros."""
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    compile_model(SUPPORT / "arms.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "vm")
    leaf, other = {"arm": "Leaf"}, {"arm": "Other"}
    model.attach(
        [{"arm": "Node", "left": leaf, "right": {"arm": "Node", "left": leaf, "right": other}}, leaf]
    )
    a = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    model.set_parameters({"A": a})
    model.forward([1, 0], {"Tree.x": [np.ones((1, 2)), np.ones((5, 2))]})
    _, found = model.backward({})
    half, by_leaf = 0.5, a.sum(axis=0)  # the loss is the mean over two samples
    assert np.allclose(found["Tree.x"][0], [half * by_leaf])
    # Children before parents: leaf, leaf, other, inner node, root.
    expected = [half * by_leaf, half * by_leaf, np.zeros(2), np.full(2, 1.5), np.full(2, 1.5)]
    assert np.allclose(found["Tree.x"][1], expected)


DROPPING = """
model Dropping(width = 6)
struct Word = Word(x: pulled<width>)
struct Text = Text(words: [Word])
param A: [width, width]
push states = [dropout(A @ t.x, 0.5) for t in all(Word)]
"""


@pytest.mark.parametrize("training", [False, True])
def test_backward_drops_what_forward_has_dropped(training, tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "dropping.dn").write_text(DROPPING)
    compile_model(tmp_path / "dropping.dn", tmp_path / "build", ("cpu",))
    model = dnc.load(tmp_path / "build", "vm")
    model.attach([{"words": [{}, {}]}, {"words": [{}, {}, {}]}])
    a = np.diag(np.arange(1.0, 7.0)).astype(np.float32)
    kept = []
    for _ in range(2):
        model.set_parameters({"A": a})
        pulled = {"Word.x": [np.ones((3, 6)), np.ones((2, 6))]}
        found = model.forward([1, 0], pulled, training=training)["states"]
        again = model.forward([1, 0], pulled, training=training)["states"]
        assert all(np.array_equal(*pair) for pair in zip(found, again, strict=True)), "of one step"
        ones = [np.ones_like(each) for each in found]
        _, gradients = model.backward({"states": ones})
        # A is diagonal and x is one, so the gradient by x is what came out.
        for gradient, state in zip(gradients["Word.x"], found, strict=True):
            assert np.allclose(gradient, state)
        kept.append(np.concatenate([each.ravel() for each in found]) != 0)
    assert kept[0].all() == (not training) and (kept[0] == kept[1]).all() == (not training)
