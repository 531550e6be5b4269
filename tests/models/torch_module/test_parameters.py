"""Parameters of a module: shared with the kernel, trained, stored, copied and put in place by PyTorch."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from dnc.compiler import PlanOptions, compile_model  # noqa: E402
from dnc.diagnostics import DiagnosticError  # noqa: E402
from tests.models import compare  # noqa: E402
from tests.models.references import DROPPED  # noqa: E402
from tests.models.sizes import SMALL, settings  # noqa: E402
from tests.models.torch_module.cases import BATCH, opened  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402


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


def test_parameters_that_are_none(tmp_path):
    """As in any module: one that was added, and one of the program's."""
    net, data, _ = opened("treelstm", tmp_path)
    net.register_parameter("extra", None)
    net.W = None
    assert list(net.state_dict()) == ["E", "b_w", "U", "b_u", "V", "b_v"]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.W is None and other.extra is None and list(other.state_dict()) == list(net.state_dict())
        assert torch.equal(other.U, net.U)
        with pytest.raises(DiagnosticError, match="parameter W is None, expected"):
            other.predict(data)


class Doubled(dnc.torch.Module):
    """With a layer and an attribute of its own, and other arguments."""

    def __init__(self, factor, build, data):
        super().__init__(build, data, device="vm", encoders=0, memory_bytes=1 << 24)
        self.factor, self.layer = factor, torch.nn.Linear(2, 2)
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, batch):
        return super().forward(batch)["loss"] * self.factor * self.weight.sum()


def noted(module, given, found):
    module.calls.append(found.item())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_have_what_was_added(tmp_path, copied):
    _, data, _ = opened("treelstm", tmp_path)
    net = Doubled(3.0, tmp_path / "build", data)
    net.calls = []
    net.register_forward_hook(noted)
    with torch.no_grad():
        net.weight.mul_(2.0)
    net.eval()
    other = copied(net)
    assert type(other) is Doubled and not other.training and not other.layer.training
    assert other.dnc.encoders == 0 and other.dnc.memory_words == 1 << 22
    assert other(data[:2]) == net(data[:2]) and other.calls == net.calls and len(net.calls) == 1
    before, after = net.state_dict(), other.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)
    with torch.no_grad():
        other.layer.weight.zero_()
        other.weight.zero_()
    assert net.layer.weight.any() and net.weight.any()


@pytest.mark.parametrize("first", [True, False])
def test_copies_share_what_is_shared(tmp_path, first):
    """A parameter that another module has too is one in a copy of both, whichever comes first."""
    net, data, _ = opened("treelstm", tmp_path)
    table = torch.nn.Embedding(*net.E.shape)
    table.weight = net.E
    whole = torch.nn.ModuleList([table, net] if first else [net, table])
    other = copy.deepcopy(whole)
    table, copied = other if first else reversed(other)
    assert table.weight is copied.E is not net.E
    with torch.no_grad():
        table.weight.zero_()
    assert net.E.any() and not copied.E.any()
    copied(data[:2])
    assert not copied.dnc.parameters()["E"].any()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_what_stands_for_a_parameter(tmp_path, copied):
    """Also a shallow copy, which shares it."""
    net, data, _ = opened("treelstm", tmp_path)
    torch.nn.utils.parametrizations.weight_norm(net, "U")
    other = copied(net)
    names = [name for name, _ in net.named_parameters()]
    assert [name for name, _ in other.named_parameters()] == names and "U" not in names
    before = net(data[:2])["loss"]
    assert other(data[:2])["loss"] == before
    with torch.no_grad():
        other.parametrizations.U.original0.zero_()
    loss = other(data[:2])["loss"]
    assert loss != before
    loss.backward()
    assert not other.dnc.parameters()["U"].any() and net.dnc.parameters()["U"].any()
    assert other.parametrizations.U.original0.grad is not None


def test_it_stays_where_it_runs(tmp_path):
    net, _, _ = opened("treelstm", tmp_path)
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2), net)
    whole.to("cpu").float().cpu()
    for move in (lambda: whole.double(), lambda: net.half(), lambda: net.to("meta")):
        with pytest.raises(DiagnosticError, match=r"computes in torch\.float32 on cpu, and"):
            move()
    with pytest.raises(DiagnosticError, match="cannot be shared with other processes"):
        whole.share_memory()


def test_what_was_added_goes_where_it_is_sent(tmp_path):
    """Modules, parameters and buffers beside those of the kernel, which stay."""
    net, data, _ = opened("treelstm", tmp_path)
    net.head = torch.nn.Linear(2, 2).double()
    net.scale = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    net.register_buffer("seen", torch.zeros(2, dtype=torch.float64))
    own, names = net.U.data_ptr(), [name for name, _ in net.named_parameters()]
    with pytest.raises(DiagnosticError, match=r"computes in torch\.float32 on cpu, and"):
        net.to("meta")
    assert net.head.weight.device.type == net.scale.device.type == net.seen.device.type == "cpu"
    assert net.float() is net
    assert net.head.weight.dtype == net.scale.dtype == net.seen.dtype == torch.float32
    assert [name for name, _ in net.named_parameters()] == names and net.U.data_ptr() == own
    whole = torch.nn.Sequential(net)
    net.head.double()
    whole.to(torch.float32)
    assert net.head.weight.dtype == torch.float32
    torch.nn.utils.parametrizations.weight_norm(net, "U")
    net.to("cpu").requires_grad_(False).float()
    assert net(data[:2])["loss"].isfinite()


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


def test_dropout_goes_on_where_it_was(tmp_path):
    """With `draws` a module that resumes draws what the other one would have drawn, also when pickled."""
    name = next(iter(DROPPED))
    net, data, _ = opened(name, tmp_path)
    for _ in range(3):
        net([0, 1])["loss"].backward()
    assert net.draws == 3
    again = dnc.torch.Module(tmp_path / "build", data, device="vm", seed=compare.SEED)
    others = [pickle.loads(pickle.dumps(net)), again]
    others[1].load_state_dict(net.state_dict())
    others[1].draws = 3
    others[0].attach(data)
    expected = net([0, 1])["loss"]
    assert all(torch.equal(other([0, 1])["loss"], expected) for other in others)
    net.draws = 0
    assert not torch.equal(net([0, 1])["loss"], expected)
    with pytest.raises(DiagnosticError, match="draws is -1"):
        net.draws = -1
