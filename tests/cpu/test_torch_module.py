"""A program inside PyTorch on the CPU kernel: matrices by columns, and an optimizer that trains all of it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from benchmarks import model_data  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.torch.gaps import has_gaps  # noqa: E402
from tests.models import compare  # noqa: E402
from tests.models.cells import Parameters, nothing_dropped  # noqa: E402
from tests.models.differences import relative  # noqa: E402
from tests.models.references import REFERENCES  # noqa: E402
from tests.models.trees import leaves, token_vectors  # noqa: E402
from tests.support.models import EXAMPLES, SUPPORT  # noqa: E402

TOLERANCE = 1e-4
SIZES = model_data.Sizes(leaves=(1, 9))


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Matrices of several blocks of rows, the last one narrower; vectors that no register divides."""
    folder = tmp_path_factory.mktemp("builds")
    torch.set_num_threads(1)
    compile_model(EXAMPLES / "treelstm.dn", folder / "treelstm", ("cpu",), {"embed": 9, "hidden": 30})
    compile_model(
        EXAMPLES / "token_vectors.dn", folder / "token_vectors", ("cpu",), {"width": 7, "hidden": 30}
    )
    return folder


def randomized(net):
    with torch.no_grad():
        for key, value in compare._parameters(net.dnc).items():
            getattr(net, key).copy_(torch.from_numpy(value))
    return {key: value.detach().double().clone().requires_grad_() for key, value in net.named_parameters()}


@pytest.mark.parametrize("batch", [[0], [3, 1], list(range(12))])
def test_losses_and_gradients(builds, batch):
    program = dnc.load(builds / "treelstm", "cpu").program
    data = model_data.samples("treelstm", program, 12, SIZES)
    net = dnc.torch.Module(builds / "treelstm", data, device="cpu")
    expected = randomized(net)
    numbered = model_data.numbered(net.dnc.program, net.dnc.vocabularies, data)
    run = REFERENCES["treelstm"]
    want = compare._mean_loss(
        [run(Parameters(**expected), numbered[number], nothing_dropped) for number in batch]
    )
    want.backward()
    loss = net(batch)["loss"]
    loss.backward()
    assert relative(loss.detach(), want) < TOLERANCE
    for key, value in net.named_parameters():
        grad = expected[key].grad
        assert relative(value.grad, torch.zeros_like(value) if grad is None else grad) < TOLERANCE, key
    np.testing.assert_array_equal(net.dnc.parameters()["U"], net.U.detach())
    torch.from_dlpack(net.U.detach()).fill_(0.5)
    assert (net.dnc.parameters()["U"] == 0.5).all()


def test_what_numbers_of_predictions_are_called(tmp_path):
    compile_model(EXAMPLES / "lstm_classifier.dn", tmp_path / "build", ("cpu",), {"embed": 4, "hidden": 4})
    data = [{"words": [{"form": word}], "label": word.upper()} for word in ("a", "b")]
    net = dnc.torch.Module(tmp_path / "build", data, device="cpu")
    vocabularies = net.vocabularies
    assert vocabularies["classes"].words == ("A", "B") and vocabularies["vocab"].words == ("<unk>", "a", "b")
    with torch.no_grad():
        net.V.zero_()
        net.b_v.copy_(torch.tensor([0.0, 1.0]))
    assert [vocabularies["classes"].words[at] for at in net.predict(data)["label"]] == ["B", "B"]
    numbered = dnc.torch.Module(tmp_path / "build", [{"words": [{"form": 1}], "label": 0}], device="cpu")
    assert numbered.vocabularies["vocab"].words is None


def test_gradients_are_scaled_as_copies(builds):
    """Once, three times, once: the same bits, three times them; the first gradients stay as they were."""
    program = dnc.load(builds / "treelstm", "cpu").program
    data = model_data.samples("treelstm", program, 5, SIZES)
    net = dnc.torch.Module(builds / "treelstm", data, device="cpu")
    randomized(net)
    found = []
    for scale in (1.0, 3.0, 1.0):
        net.zero_grad()
        (net(range(5))["loss"] * scale).backward()
        found.append({key: value.grad for key, value in net.named_parameters()})
    for key, value in found[0].items():
        assert value.count_nonzero() and torch.equal(found[1][key], value * 3), key
        assert torch.equal(found[2][key], value), key


def test_a_stack_of_matrices(tmp_path):
    """Every matrix of the stack by columns, all of them seen as one tensor."""
    settings = {"layers": 2, "hidden": 70}
    compile_model(EXAMPLES / "rnn_stack.dn", tmp_path / "build", ("cpu",), settings)
    program = dnc.load(tmp_path / "build", "cpu").program
    data = model_data.samples("rnn_stack", program, 4, SIZES)
    net = dnc.torch.Module(tmp_path / "build", data, device="cpu")
    assert any(
        place.parameter.kind == "stack" and len(place.shape) == 3 for place in net._memory.places.values()
    )
    randomized(net)
    first = net.state_dict()  # running statistics move with the batch
    net([0, 1, 2, 3])["loss"].backward()
    native = dnc.load(tmp_path / "build", "cpu")
    native.attach(data)
    native.set_parameters(first)
    native.configure("sgd", 64.0)
    native.step([0, 1, 2, 3])
    native.sync()
    for name, value in native.parameters().items():
        own = getattr(net, name)
        if own.requires_grad:
            expected = torch.from_numpy((own.detach().numpy() - value) / 64)
            assert relative(own.grad, expected) < TOLERANCE, name


def test_pulled_and_pushed(builds):
    data = model_data.samples("token_vectors", dnc.load(builds / "token_vectors", "cpu").program, 6, SIZES)
    net = dnc.torch.Module(builds / "token_vectors", data, device="cpu")
    expected = randomized(net)
    sizes = net.sizes(None)["Tree.x"]
    x = torch.randn(sum(sizes), 7, requires_grad=True)
    weight = torch.randn(6, 30)
    (net(list(range(6)), x)["sentence"] * weight).sum().backward()
    wide = x.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for tree, own, row in zip(data, wide.split(sizes), weight, strict=True):
        for leaf, vector in zip(leaves(tree), own, strict=True):
            leaf["x"] = vector
        result = token_vectors(Parameters(**expected), tree, nothing_dropped)
        total = total + (result.outputs["sentence"] * row.double()).sum()
    total.backward()
    assert relative(x.grad, wide.grad) < TOLERANCE
    for key, value in net.named_parameters():
        assert relative(value.grad, expected[key].grad) < TOLERANCE, key


def test_memory_that_grows_while_somebody_measures(builds):
    """What is seen of memory that grew in inference mode is trained on afterwards."""
    net = dnc.torch.Module(builds / "token_vectors", device="cpu")
    one, x = [{"left": {}, "right": {}}], torch.randn(2, 7)
    before = net(one, x)["sentence"]
    words = net.dnc.session.memory.words
    with torch.inference_mode():
        net(one * 4000, torch.randn(8000, 7))
    assert net.dnc.session.memory.words > words and not net.W.is_inference()
    after = net(one, x)["sentence"]
    assert torch.equal(before, after)
    after.sum().backward()
    assert net.W.grad.any()
    old, net.W = net.W, torch.nn.Parameter(net.W.detach().clone())
    with torch.inference_mode():  # another parameter comes to its place
        net(one, x)
    (old * old).sum().backward()
    assert not old.is_inference()


def test_a_pushed_value_may_be_changed_in_place(builds):
    net = dnc.torch.Module(builds / "token_vectors", device="cpu")
    one, x = [{"left": {}, "right": {}}], torch.randn(2, 7)
    torch.relu(net(one, x)["sentence"]).sum().backward()
    expected, net.W.grad = net.W.grad.clone(), None
    torch.nn.functional.relu(net(one, x)["sentence"], inplace=True).sum().backward()
    assert torch.equal(net.W.grad, expected)


def test_a_field_of_several_arms(tmp_path):
    """Each arm has a result of its own; a vertex that nothing depends on gets zeros."""
    compile_model(SUPPORT / "arms.dn", tmp_path / "build", ("cpu",))
    leaf, other = {"arm": "Leaf"}, {"arm": "Other"}
    tree = {"arm": "Node", "left": leaf, "right": {"arm": "Node", "left": leaf, "right": other}}
    net = dnc.torch.Module(tmp_path / "build", [tree, leaf, other], device="cpu")
    randomized(net)
    for samples in ([1, 0], [1], [2, 1]):  # also batches in which no vertex is of some arm
        sizes = [net.sizes(None)["Tree.x"][number] for number in samples]
        x = torch.ones(sum(sizes), 2, requires_grad=True)
        net(samples, x)["loss"].backward()
        native = dnc.load(tmp_path / "build", "cpu")
        native.attach([tree, leaf, other])
        native.set_parameters(net.state_dict())
        native.forward(samples, {"Tree.x": [np.ones((size, 2)) for size in sizes]})
        _, found = native.backward({})
        assert np.array_equal(x.grad, np.concatenate(found["Tree.x"]))
        assert x.grad.any()


def test_an_optimizer_trains(builds):
    program = dnc.load(builds / "treelstm", "cpu").program
    data = model_data.samples("treelstm", program, 12, SIZES)
    net = dnc.torch.Module(builds / "treelstm", data, device="cpu")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(70):
        optimizer.zero_grad()
        loss = net(list(range(12)))["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    net.eval()
    right = net.predict(data)["label"] == torch.tensor([sample["label"] for sample in data])
    assert right.float().mean() > 0.9


def test_gaps_between_columns(builds):
    """PyTorch's fused optimizers allow for none; what is saved has none."""
    data = [{"word": "good", "label": 3}, {"word": "bad", "label": 0}]
    net = dnc.torch.Module(builds / "treelstm", data, device="cpu:0")
    assert has_gaps(net.V) and not has_gaps(net.V.detach().clone())
    net([0, 1])["loss"].backward()
    before, gradient = net.V.detach().clone(), net.V.grad.clone()
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        with pytest.raises(dnc.DiagnosticError, match=r"a parameter of \[.*\] lies in memory with gaps"):
            optimizer(net.parameters(), lr=0.1, fused=True).step()
    assert torch.equal(net.V, before)
    torch.optim.SGD(net.parameters(), lr=0.1, foreach=True).step()
    assert torch.allclose(net.V, before - 0.1 * gradient, atol=1e-7)
    assert all(value.is_contiguous() for value in net.state_dict().values())
    assert torch.equal(net.state_dict()["V"], net.V)
