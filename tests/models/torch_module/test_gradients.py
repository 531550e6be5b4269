"""Gradients both ways between a module and what stands around it, and how often they may be asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.runtime.schedule import disassemble  # noqa: E402
from tests.models.cells import Parameters  # noqa: E402
from tests.models.differences import relative  # noqa: E402
from tests.models.test_against_torch import TOLERANCE  # noqa: E402
from tests.models.torch_module.cases import check_gradients, doubles, opened  # noqa: E402
from tests.models.torch_module.conftest import PUSHES  # noqa: E402
from tests.models.trees import leaves  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402


def tree_states(p, tree, xs):
    """States of all vertices, children before parents."""
    if "left" not in tree:
        return [torch.tanh(p.W @ xs.pop(0) + p.b)]
    left, right = tree_states(p, tree["left"], xs), tree_states(p, tree["right"], xs)
    return [*left, *right, torch.tanh(p.U @ torch.cat([left[-1], right[-1]]) + p.b)]


def labels(tree):
    below = [label for side in ("left", "right") if side in tree for label in labels(tree[side])]
    return [*below, tree["label"]]


def reference(p, data, x):
    """Loss, states and tops of the samples; x: vectors of their leaves."""
    found, losses = [], []
    at = 0
    for tree in data:
        own = [x[at + number] for number in range(len(leaves(tree)))]
        at += len(own)
        states = tree_states(p, tree, own)
        found.append(torch.stack(states))
        logits = found[-1] @ p.V.T
        target = torch.tensor(labels(tree))
        losses.append(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
    return torch.stack(losses).mean(), torch.cat(found), torch.stack([states[-1] for states in found])


@pytest.mark.parametrize("parts", ["loss", "states", "top", "loss states", "loss states top"])
def test_gradients_flow_both_ways(both, parts):
    net, data = both
    order = [2, 0, 1]
    x = torch.randn(6, 3, requires_grad=True)
    expected, wide = doubles(net), x.detach().double().requires_grad_()
    values = dict(
        zip(
            ("loss", "states", "top"),
            reference(Parameters(**expected), [data[number] for number in order], wide),
            strict=True,
        )
    )
    found = net(order, x)
    weights = {name: torch.randn(value.shape) for name, value in values.items()}
    for name in ("loss", "states", "top"):
        assert relative(found[name].detach(), values[name].detach()) < TOLERANCE
    sum((found[name] * weights[name]).sum() for name in parts.split()).backward()
    sum((values[name] * weights[name].double()).sum() for name in parts.split()).backward()
    assert relative(x.grad, wide.grad) < TOLERANCE
    check_gradients(net, expected)
    assert net.V.grad is None


def test_a_list_of_tensors_and_names(both):
    net, _ = both
    x = torch.randn(6, 3)
    one = net([2, 0, 1], x)["states"]
    pieces = list(x.split(net.sizes([2, 0, 1])["Tree.x"]))
    assert net.sizes([2, 0, 1]) == {
        "Tree.x": [3, 1, 2],
        "label": [1, 1, 1],
        "states": [5, 1, 3],
        "top": [1, 1, 1],
    }
    assert torch.equal(net([2, 0, 1], pieces)["states"], one)
    assert torch.equal(net([2, 0, 1], {"Tree.x": x})["states"], one)
    found = net.predict([2, 0, 1], x)
    assert torch.equal(found["states"], one) and found["label"].dtype == torch.int64


def test_two_batches_before_the_first_goes_backward(both, tmp_path):
    net, data = both
    a, b = torch.randn(1, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    first, second = net([0], a), net([1], b)
    (second["top"].sum() + first["top"].sum()).backward()
    expected = doubles(net)
    for number, x in ((0, a), (1, b)):
        wide = x.detach().double().requires_grad_()
        reference(Parameters(**expected), [data[number]], wide)[2].sum().backward()
        assert relative(x.grad, wide.grad) < TOLERANCE
    check_gradients(net, expected)


def test_two_losses_before_the_first_goes_backward(tmp_path):
    """Gradients that are made at once wait in the pool; they are copied before others overwrite them."""
    net, _, _ = opened("treelstm", tmp_path)
    separate = {}
    for number in (0, 1):
        net.zero_grad()
        net([number])["loss"].backward()
        separate[number] = {key: value.grad.clone() for key, value in net.named_parameters()}
    net.zero_grad()
    first, second = net([0])["loss"], net([1])["loss"]
    second.backward()
    first.backward()
    for key, value in net.named_parameters():
        torch.testing.assert_close(value.grad, separate[0][key] + separate[1][key])


def test_gradients_add_up_over_batches(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    net([0, 1])["loss"].backward()
    once = {key: value.grad.clone() for key, value in net.named_parameters()}
    net([0, 1])["loss"].backward()
    for key, value in net.named_parameters():
        torch.testing.assert_close(value.grad, 2 * once[key])


def test_backward_twice(both, tmp_path):
    net, _ = both
    top = net([1], torch.randn(2, 3))["top"].sum()
    top.backward(retain_graph=True)
    once = net.W.grad.clone()
    top.backward()
    torch.testing.assert_close(net.W.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        top.backward()
    alone, _, _ = opened("treelstm", tmp_path / "alone")
    loss = alone([0])["loss"]
    loss.backward(retain_graph=True)
    once = {name: value.grad.clone() for name, value in alone.named_parameters()}
    alone([1])["loss"].backward()
    alone.zero_grad()
    loss.backward()
    for name, value in alone.named_parameters():
        assert torch.equal(value.grad, once[name])
    loss = alone([0])["loss"]
    alone.dnc.predict([0])
    with pytest.raises(RuntimeError, match="the model ran outside of PyTorch since"):
        loss.backward()
    loss = alone([0])["loss"]
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("clears_first", [True, False])
def test_gradients_that_are_kept_stay_as_they_are(tmp_path, clears_first):
    """They are handed out where a launch left them, and no other one writes there while anybody looks."""
    net, _, _ = opened("treelstm", tmp_path)
    net.encoder(1)  # there is memory from here on
    pool = net._memory.floats.untyped_storage()
    begin, end = pool.data_ptr(), pool.data_ptr() + pool.nbytes()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kept, copies, in_pool = [], [], []
    for step in range(8):
        if clears_first:
            optimizer.zero_grad()
        loss = net([step % 7])["loss"]
        if not clears_first:
            optimizer.zero_grad()
        loss.backward()
        in_pool.append(begin <= net.b_u.grad.data_ptr() < end)
        if step in (2, 4):
            kept.append((net.U.grad, net.b_u.grad.detach().numpy()))
            copies.append((net.U.grad.clone(), net.b_u.grad.clone()))
        optimizer.step()
        if step == 6:
            del kept[0], copies[0]
    # There are two such places, and where both are seen when a launch starts its gradients are copied.
    copied = [5, 6] if clears_first else [4, 6]
    assert in_pool == [step not in copied for step in range(8)]
    for (matrix, vector), expected in zip(kept, copies, strict=True):
        assert torch.equal(matrix, expected[0]) and torch.equal(torch.from_numpy(vector), expected[1])


def test_gradients_that_are_changed_do_not_come_back(tmp_path):
    """What is asked for twice is handed out once; where no launch writes gradients they are zero again."""
    text = """model Two(hidden = 4)
struct One = One(x: vector<hidden>)
param W: [hidden, hidden], unused: [3] = constant(0.5), V: [2, hidden]
loss sum(t in all(One)) sum(V @ tanh(W @ t.x))
output y = unused
"""
    (tmp_path / "two.dn").write_text(text)
    compile_model(tmp_path / "two.dn", tmp_path / "build", ("cpu",), {})
    data = [{"x": [0.1, 0.2, 0.3, 0.4]}, {"x": [1.0, -0.5, 0.25, 0.0]}]
    net = dnc.torch.Module(tmp_path / "build", data, device="vm")
    net([0])["loss"].backward()
    expected = {name: value.grad.clone() for name, value in net.named_parameters()}
    assert expected["W"].any() and not expected["unused"].any()
    for value in net.parameters():
        value.grad.fill_(7.0)
    net.zero_grad()
    loss = net([0])["loss"]
    loss.backward(retain_graph=True)
    for name, value in net.named_parameters():
        assert torch.equal(value.grad, expected[name]), name
        value.grad.fill_(1.0)
    loss.backward()
    for name, value in net.named_parameters():
        assert torch.equal(value.grad, expected[name] + 1.0), name
    del net, loss, value  # tensors outlive the module
    assert expected["W"].any()


def test_double_backward_is_refused(both):
    net, _ = both
    x = torch.randn(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(net([1], x)["top"].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


def test_weights_changed_between_forward_and_backward(both):
    net, _ = both
    top = net([1], torch.randn(2, 3))["top"].sum()
    with torch.no_grad():
        net.U.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        top.backward()


def test_dropout_is_the_same_in_both_directions_and_off_in_evaluation(tmp_path):
    text = (
        PUSHES.replace("tanh(W @ x + b)", "dropout(tanh(W @ x + b), 0.5)")
        .replace("loss sum(t in all(Tree)) cross_entropy(logits(t), t.label)\n", "")
        .replace("output label = argmax(logits(root))\n", "")
        .replace("fn logits(t: Tree) = V @ encode(t)\n", "")
        .replace("frozen param V: [classes, hidden]\n", "")
    )
    (tmp_path / "drop.dn").write_text(text)
    compile_model(tmp_path / "drop.dn", tmp_path / "build", ("cpu",))
    net = dnc.torch.Module(tmp_path / "build", [{"label": 1}], device="vm")
    x = torch.randn(1, 3, requires_grad=True)
    found = [net([0], x)["top"] for _ in range(8)]
    assert len({tuple(each.tolist()[0]) for each in found}) > 1
    for each in found:  # what is dropped has no gradient
        (gradient,) = torch.autograd.grad(each.sum(), net.W)
        kept = each[0] != 0
        assert torch.equal(gradient.abs().sum(1) > 0, kept)
    net.eval()
    assert torch.equal(net([0], x)["top"], net([0], x)["top"]) and (net([0], x)["top"] != 0).all()


def test_running_statistics_move_in_training_alone(tmp_path):
    (tmp_path / "m.dn").write_text(
        "model M(width = 3)\nstruct A = A(x: vector<width>)\nrunning param m: [width]\n"
        "param w: [width] = constant(1)\nfn f(a: A) = sum(w * (a.x - follow(m, a.x, 0.5)))\n"
        "loss sum(a in root) f(a) * f(a)\n"
    )
    compile_model(tmp_path / "m.dn", tmp_path / "build", ("cpu",))
    net = dnc.torch.Module(tmp_path / "build", [{"x": [1, 2, 3]}, {"x": [3, 2, 1]}], device="vm")
    assert not net.m.requires_grad
    net([0, 1])["loss"].backward()
    np.testing.assert_allclose(net.m.detach(), [1, 1, 1])
    net.eval()
    net([0])["loss"].backward()
    np.testing.assert_allclose(net.m.detach(), [1, 1, 1])
    net.train()
    net([0])["loss"].backward()
    np.testing.assert_allclose(net.m.detach(), [1, 1.5, 2])
    assert net.w.grad.abs().sum() > 0 and net.m.grad is None


STACK = """model Grid(layers = 3, hidden = 70)
struct Cell = Cell(layer: index<layers>, x: vector<hidden>, before: Cell?)
param W: stack[layers, hidden, hidden], b: stack[layers, hidden] = uniform(0.1), V: [2, hidden]
fn f(c: Cell) -> [hidden] = tanh(W[c.layer] @ f(c.before) + b[c.layer] + c.x)
loss sum(c in all(Cell)) sum(V @ f(c))
"""


def test_stacks_have_the_gradients_of_a_step(tmp_path):
    (tmp_path / "grid.dn").write_text(STACK)
    compile_model(tmp_path / "grid.dn", tmp_path / "build", ("cpu",), {})
    x = np.random.default_rng(2).normal(size=(4, 70)).tolist()
    data = [{"layer": n % 3, "x": x[n], "before": {"layer": 0, "x": x[n - 1]}} for n in range(4)]
    net = dnc.torch.Module(tmp_path / "build", data, device="vm", seed=2)
    alone = dnc.load(tmp_path / "build", "vm", seed=2)
    alone.attach(data)
    before = alone.parameters()
    net(range(4))["loss"].backward()
    alone.configure("sgd", 1.0)
    alone.step(range(4))
    alone.sync()
    for name, value in alone.parameters().items():
        found = getattr(net, name)
        assert torch.equal(found.detach(), torch.from_numpy(before[name]))
        np.testing.assert_allclose(found.grad.numpy(), before[name] - value, rtol=1e-4, atol=1e-5)


def test_a_launch_makes_gradients_and_no_update(tmp_path, monkeypatch):
    """Where many rows are summed in chunks these are added up still, as in a step."""
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cuda",), {"embed": 4, "hidden": 4})
    data = [json.loads(line) for line in (EXAMPLES / "data/sentiment-train.jsonl").open()][:60]
    net = dnc.torch.Module(tmp_path / "build", data, device="vm", seed=2)
    alone = dnc.load(tmp_path / "build", "vm", seed=2)
    alone.attach(data)
    for samples in ([0, 1], range(60)):
        net.zero_grad()
        before = alone.parameters()
        net.load_state_dict({name: torch.from_numpy(value) for name, value in before.items()})
        launched = list[str]()
        run = net.dnc.session.run

        def noted(schedule, *arguments, launched=launched, run=run):
            launched.append(disassemble(schedule.words, schedule.plan))
            return run(schedule, *arguments)

        monkeypatch.setattr(net.dnc.session, "run", noted)
        net(samples)["loss"].backward()
        monkeypatch.undo()
        (words,) = launched
        assert "sgd first" not in words
        assert ("chunks=10" in words) == ("norm first=0" in words) == (len(samples) == 60)
        alone.configure("sgd", 1.0)
        alone.step(samples)
        alone.sync()
        for name, value in alone.parameters().items():
            np.testing.assert_allclose(
                getattr(net, name).grad.numpy(), before[name] - value, rtol=1e-4, atol=1e-5
            )


MEASURED = """model Measured(words = 9, width = 3)
struct A = A(form: token<words>, x: vector<width>, y: pulled<width>, z: pulled<width>)
param E: table[words, width] = normal(1), F: table[words, width] = normal(1), W: [width, width]
fn f(a: A) -> [width] = tanh(W @ (E[a.form] + a.x))
fn g(a: A) -> [width] = F[a.form] * a.y
loss sum(a in root) sum(f(a) * f(a))
metric m = mean(a in root) sum(g(a))
output o = g(root)
"""


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("more", ["", "push top = f(root)\n"])
def test_what_nothing_learned_from_depends_on_has_zeros(tmp_path, more, sparse):
    """A table that a metric reads alone, a vector that an output reads alone, one that nothing reads."""
    (tmp_path / "m.dn").write_text(MEASURED + more)
    compile_model(tmp_path / "m.dn", tmp_path / "build", ("cpu",))
    data = [{"form": 4, "x": [1, 0, 2]}, {"form": 8, "x": [0, 1, 0]}]
    net = dnc.torch.Module(tmp_path / "build", data, device="vm", sparse=sparse)
    for late in (False, True):
        net.zero_grad()
        vectors = {name: torch.randn(2, 3, requires_grad=True) for name in ("A.y", "A.z")}
        found = net([0, 1], vectors)
        if late:  # gradients that wait are copied before another launch
            net([1], {name: torch.randn(1, 3) for name in vectors})
        sum(each.sum() for each in found.values()).backward()
        assert all(torch.equal(each.grad, torch.zeros(2, 3)) for each in vectors.values())
        assert net.F.grad.is_sparse == sparse and not net.F.grad.to_dense().any()
        assert net.F.grad.shape == net.F.shape
        assert net.E.grad.to_dense()[[4, 8]].all() and net.W.grad.any()


def test_the_compiler_of_torch_leaves_a_module_alone(both):
    """What stands around it is compiled, and gradients flow through."""
    net, data = both
    head, whole = torch.nn.Linear(4, 2), torch.compile(net, backend="eager")
    x = torch.randn(6, 3, requires_grad=True)

    def loss(of):
        return head(of(data, x)["top"]).square().sum()

    found = []
    for function, of in ((loss, net), (torch.compile(loss, backend="eager"), net), (loss, whole)):
        value = function(of)
        value.backward()
        found.append((value, x.grad, net.U.grad))
        x.grad = net.U.grad = None
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    labels = torch.compile(lambda: net.predict(data, x), backend="eager")()
    assert torch.equal(labels["label"], net.predict(data, x)["label"])
