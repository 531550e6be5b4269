"""A program inside PyTorch: values, gradients both ways, and what a user may do with an `nn.Module`."""

from __future__ import annotations

import copy
import gc
import json
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.kernel_cache  # noqa: E402
import dnc.torch  # noqa: E402
from benchmarks import model_data  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.diagnostics import DiagnosticError  # noqa: E402
from tests.models import compare  # noqa: E402
from tests.models.cells import Parameters, nothing_dropped  # noqa: E402
from tests.models.differences import output_differences, relative  # noqa: E402
from tests.models.references import DROPPED, REFERENCES  # noqa: E402
from tests.models.sizes import SIZES, SMALL, settings  # noqa: E402
from tests.models.test_against_torch import NAMES, TOLERANCE  # noqa: E402
from tests.models.trees import leaves  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402

BATCH = [5, 0, 6, 2]
PUSHES = """model Both(width = 3, hidden = 4, classes = 5)
struct Tree = Leaf(x: pulled<width>, label: class<classes>)
            | Node(left: Tree, right: Tree, label: class<classes>)
param W: [hidden, width]
param U: [hidden, 2 * hidden], b: [hidden] = constant(0.1)
frozen param V: [classes, hidden]
fn encode(t: Tree) -> [hidden] = match t:
    Leaf(x, ...) -> tanh(W @ x + b)
    Node(left, right, ...) -> tanh(U @ concat(encode(left), encode(right)) + b)
fn logits(t: Tree) = V @ encode(t)
loss sum(t in all(Tree)) cross_entropy(logits(t), t.label)
output label = argmax(logits(root))
push states = [encode(t) for t in all(Tree)]
push top = encode(root)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(3)


def opened(name, folder, device="vm", samples=7, **options):
    """A small example as a module with random weights, its data, and the data with numbers for words."""
    build = folder / "build"
    compile_model(EXAMPLES / f"{model_data.program_of(name)}.dn", build, ("cpu",), settings(name, SMALL))
    program = dnc.load(build, "vm").program
    data = model_data.samples(name, program, samples, SIZES)
    net = dnc.torch.Module(build, data, device=device, seed=compare.SEED, **options)
    with torch.no_grad():
        for key, value in compare._parameters(net.dnc).items():
            getattr(net, key).copy_(torch.from_numpy(value))
    return net, data, compare._numbered(net.dnc, data)


def doubles(net):
    """The parameters in double precision, for a reference."""
    return {
        key: value.detach().double().clone().requires_grad_(value.requires_grad)
        for key, value in net.named_parameters()
    }


def check_gradients(net, expected):
    for key, value in net.named_parameters():
        if value.requires_grad:
            want = expected[key].grad
            found = torch.zeros_like(value) if value.grad is None else value.grad.to_dense()
            want = torch.zeros_like(value) if want is None else want
            assert relative(found, want) < TOLERANCE, key


@pytest.mark.parametrize("name", [name for name in NAMES if name != "token_vectors"])
def test_every_example_learns_what_pytorch_learns(name, tmp_path):
    net, _, numbered = opened(name, tmp_path)
    batch = [numbered[number] for number in BATCH]
    net.eval()
    expected = doubles(net)
    results = [REFERENCES[name](Parameters(**expected), sample, nothing_dropped) for sample in batch]
    with torch.no_grad():
        loss = net(BATCH)["loss"]
        assert relative(loss, compare._mean_loss(results)) < TOLERANCE and not loss.requires_grad
    found = net.predict(BATCH)
    sizes = net.sizes(BATCH)
    spaces = {name: net.dnc.program.space(_result(net, name).space) for name in found}
    by_sample = {
        name: [each[0] if spaces[name].selection == "root" else each for each in rows]
        for name, rows in ((key, [t.numpy() for t in found[key].split(sizes[key])]) for key in found)
    }
    assert max(output_differences(by_sample, results)) < TOLERANCE
    net.train()
    vertices = [v for sample in numbered for v in DROPPED[name](sample)] if name in DROPPED else []
    dropout = compare._dropout(vertices) if name in DROPPED else nothing_dropped
    results = [REFERENCES[name](Parameters(**expected), sample, dropout) for sample in batch]
    want = compare._mean_loss(results)
    (3.5 * want).backward()
    net._launches._draws = 0
    loss = net(BATCH)["loss"]
    assert relative(loss.detach(), want) < TOLERANCE
    (3.5 * loss).backward()
    check_gradients(net, expected)


def _result(net, name):
    return next(result for result in net.dnc.plan.results if result.name == name)


# ---- gradients both ways ------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path):
    """A program that pulls, pushes, and has a loss of its own; trees; a reference in PyTorch."""
    (tmp_path / "both.dn").write_text(PUSHES)
    compile_model(tmp_path / "both.dn", tmp_path / "build", ("cpu",))
    leaf = {"label": 1}
    small = {"left": leaf, "right": {"label": 4}, "label": 0}
    data = [leaf, small, {"left": small, "right": leaf, "label": 3}]
    return dnc.torch.Module(tmp_path / "build", data, device="vm"), data


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
    alone([1])
    with pytest.raises(RuntimeError, match="another batch has run since"):
        loss.backward()


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


# ---- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_optimizers_of_pytorch_train(tmp_path, sparse):
    """Three steps of SGD, as dnc itself makes them."""
    net, data, _ = opened("treelstm", tmp_path, sparse=sparse)
    native = dnc.load(tmp_path / "build", "vm", seed=compare.SEED)
    native.attach(data)
    native.set_parameters(dict(net.state_dict()))
    native.configure("sgd", 0.3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for batch in ([0, 1], [2, 3, 4], [0, 5]):
        optimizer.zero_grad()
        loss = net(batch)["loss"]
        loss.backward()
        assert net.E.grad.is_sparse == sparse
        optimizer.step()
        native.step(batch)
        assert loss.item() == pytest.approx(native.sync(), rel=1e-5)
    for key, value in native.parameters().items():
        np.testing.assert_allclose(getattr(net, key).detach(), value, rtol=1e-5, atol=1e-6)


def test_parameters_are_the_memory_of_the_kernel(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    assert all(place.shared for place in net._memory.places.values())
    with torch.no_grad():
        net.W.fill_(0.25)
        torch.from_dlpack(net.b_w.detach()).fill_(0.5)
    assert (net.dnc.parameters()["W"] == 0.25).all() and (net.dnc.parameters()["b_w"] == 0.5).all()
    net.dnc.set_parameters({"U": np.ones((25, 10))})
    assert (net.U == 1).all()


def test_the_pool_grows_and_the_parameters_move_with_it(tmp_path):
    net, _, _ = opened("lstm_classifier", tmp_path, samples=60)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    before, words = net.W.data_ptr(), net.dnc.session.memory.words
    value = net.W.detach().clone()
    loss = net(list(range(60)))["loss"]
    assert net.dnc.session.memory.words > words and net.W.data_ptr() != before
    assert torch.equal(net.W, value)
    loss.backward()
    optimizer.step()
    np.testing.assert_array_equal(net.dnc.parameters()["W"], net.W.detach())
    assert not torch.equal(net.W, value)


def test_state_dict_there_and_back(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    state = net.state_dict()
    assert state["W"].untyped_storage().nbytes() == state["W"].numel() * 4  # not the whole pool
    with torch.no_grad():
        net.W.zero_()
    assert state["W"].abs().sum() > 0
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.dnc.parameters()["W"], state["W"])
    net.load_state_dict({key: value + 1 for key, value in state.items()}, assign=True)
    net.eval()(BATCH)  # other tensors were put in place; the next batch takes them in
    np.testing.assert_array_equal(net.dnc.parameters()["W"], state["W"] + 1)
    with pytest.raises(RuntimeError, match="size mismatch for W"):
        net.load_state_dict({**state, "W": torch.zeros(2, 2)})
    net.W.data = net.W.data.double()
    with pytest.raises(DiagnosticError, match=r"parameter W is \[15, 6\] of torch.float64 on cpu, expected"):
        net(BATCH)


def test_weights_in_the_place_of_parameters(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    torch.nn.utils.parametrizations.weight_norm(net, "U")
    net(BATCH)["loss"].backward()
    np.testing.assert_allclose(net.dnc.parameters()["U"], net.U.detach(), rtol=1e-5)
    assert net.parametrizations.U.original1.grad.abs().sum() > 0


def test_weights_of_a_function(tmp_path):
    """torch.func puts other tensors in the place of parameters for one call: these stay as they are."""
    net, data, _ = opened("treelstm", tmp_path)
    net.eval()
    state, want = net.state_dict(), net.predict(data)["p"]
    other = {key: torch.zeros_like(value).requires_grad_() for key, value in state.items()}
    loss = torch.func.functional_call(net, other, (BATCH,))["loss"]
    loss.backward()
    assert other["b_v"].grad.abs().sum() > 0 and net.b_v.grad is None
    assert all(torch.equal(getattr(net, key), value) for key, value in state.items())
    assert torch.equal(net.predict(data)["p"], want)
    net(BATCH)["loss"].backward()
    assert net.b_v.grad.abs().sum() > 0
    with torch.no_grad():
        net.W.zero_()
    assert not net.dnc.parameters()["W"].any()  # shared again


def test_copies_and_pickles(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    net.V.requires_grad_(False)
    net.eval()
    want = net.predict(data)["p"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other.predict(data)["p"], want) and not other.training
        assert not other.V.requires_grad and other.W.requires_grad
        with torch.no_grad():
            other.W.zero_()
        assert not torch.equal(other.predict(data)["p"], want)
    assert torch.equal(net.predict(data)["p"], want)
    stored = pickle.dumps(net)
    compile_model(EXAMPLES / "rvnn.dn", tmp_path / "build", ("cpu",), settings("rvnn", SMALL))
    with pytest.raises(DiagnosticError, match="holds another program"):
        pickle.loads(stored)


def test_it_stays_where_it_runs(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2), net)
    whole.to("cpu").float().cpu()
    for move in (lambda: whole.double(), lambda: net.half(), lambda: net.to("meta")):
        with pytest.raises(DiagnosticError, match=r"computes in torch\.float32 on cpu, and"):
            move()


def test_checkpoints_both_ways(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    net.save(tmp_path / "weights.safetensors")
    native = dnc.load(tmp_path / "build", "vm", checkpoint=tmp_path / "weights.safetensors")
    again = dnc.torch.Module(tmp_path / "build", device="vm", checkpoint=tmp_path / "weights.safetensors")
    want = np.stack(native.predict(data)["p"])
    again.dnc.restore(tmp_path / "weights.safetensors")
    with pytest.raises(DiagnosticError, match="was restored under its module"):
        again.predict(data)
    again = dnc.torch.Module(tmp_path / "build", device="vm", checkpoint=tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(again.predict(data)["p"], want)
    np.testing.assert_array_equal(net.predict(data)["p"], want)


def test_frozen_for_a_while(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    net.requires_grad_(False)
    loss = net(BATCH)["loss"]
    assert not loss.requires_grad
    net.V.requires_grad_(True)
    net(BATCH)["loss"].backward()
    assert net.V.grad is not None and net.W.grad is None and net.E.grad is None


def test_a_build_for_inference(tmp_path):
    from dnc.compiler import PlanOptions

    compile_model(
        EXAMPLES / "treelstm.dn",
        tmp_path / "infer",
        ("cpu",),
        settings("treelstm", SMALL),
        PlanOptions(mode="infer"),
    )
    net, data, _ = opened("treelstm", tmp_path)
    net.save(tmp_path / "w.safetensors")
    small = dnc.torch.Module(tmp_path / "infer", device="vm", checkpoint=tmp_path / "w.safetensors")
    torch.testing.assert_close(small.predict(data)["p"], net.predict(data)["p"])
    assert not any(value.requires_grad for value in small.parameters())
    small.requires_grad_(True)
    with pytest.raises(DiagnosticError, match="was compiled with --mode infer"):
        small(data)


def test_nothing_is_left_behind(tmp_path):
    """Batches of samples in memory are forgotten when their graph is."""
    net, data, _ = opened("treelstm", tmp_path)
    for _ in range(3):
        net(data[:2])["loss"].backward()
    gc.collect()
    assert len(net._launches._sharings) <= 2


# ---- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pulled", "message"),
    [
        (None, "the pulled vector 'Tree.x' is missing; the program has: Tree.x"),
        ({"Tree.y": torch.zeros(3, 3)}, "the pulled vector 'Tree.y' is unknown; the program has: Tree.x"),
        (
            torch.zeros(3, 2),
            r"the pulled vector 'Tree.x' is \[3, 2\], expected \[3, 3\]: the 2 samples of the batch",
        ),
        (torch.zeros(3, 3).double(), "the pulled vector 'Tree.x' is torch.float64, expected torch.float32"),
        (torch.zeros(3, 3, device="meta"), "the pulled vector 'Tree.x' is on meta, expected cpu"),
        ([torch.zeros(1, 3)], "the pulled vector 'Tree.x' has 1 tensors, expected one for each of 2"),
        (
            [torch.zeros(1, 3), torch.zeros(1, 3)],
            r"the pulled vector 'Tree.x' of sample 2 is \[1, 3\], expected \[2, 3\]",
        ),
        ([torch.zeros(1, 3), [1.0]], "the pulled vector 'Tree.x' of sample 2 is list, expected a tensor"),
        (3, "the pulled vector 'Tree.x' is int, expected a tensor or a list of them"),
    ],
)
def test_wrong_vectors(both, pulled, message):
    net, _ = both
    with pytest.raises(DiagnosticError, match=message):
        net([0, 1], pulled)


def test_wrong_batches(both):
    net, _ = both
    x = torch.zeros(2, 3)
    for batch, message in (
        ([0, 0], "a sample occurs twice in the batch"),
        ([7], r"a batch holds sample 7; the data have 0\.\.2"),
        ([], "a batch holds no samples"),
        ([{"label": 9}, {"label": 1}], "is 9, but class<classes> has 0"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            net(batch, torch.zeros(0, 3) if not batch else x)


def test_wrong_modules(tmp_path):
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 4, "hidden": 4})
    with pytest.raises(DiagnosticError, match="the words of model TreeLSTM are not known"):
        dnc.torch.Module(tmp_path / "build", device="vm")
    with pytest.raises(DiagnosticError, match="there is no such build"):
        dnc.torch.Module(tmp_path / "none")
    with pytest.raises(DiagnosticError, match="has no kernels for a GPU"):
        dnc.torch.Module(tmp_path / "build", device="cuda")
    text = "model M\nstruct A = A(x: pulled<2>)\nparam {}: [2, 2]\npush y = {} @ root.x\n"
    (tmp_path / "m.dn").write_text(text.format("training", "training"))
    compile_model(tmp_path / "m.dn", tmp_path / "m", ("cpu",))
    with pytest.raises(DiagnosticError, match="cannot be called 'training'; rename it"):
        dnc.torch.Module(tmp_path / "m", device="vm")


def test_data_are_read_as_anywhere(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in data[:3]))
    net.eval()
    with torch.no_grad():
        losses = [net(data[:3])["loss"], net([0, 1, 2])["loss"], net(tmp_path / "dev.jsonl")["loss"]]
    assert losses[0] == losses[1] == losses[2]
    assert net.attach(tmp_path / "dev.jsonl").samples == 3
    with pytest.raises(DiagnosticError, match=r"sample 3; the data have 0\.\.2"):
        net([3])


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
