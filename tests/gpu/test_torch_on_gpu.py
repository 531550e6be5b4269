"""A program inside PyTorch on a GPU, against PyTorch in float64.

Needs a GPU, PyTorch, and a folder of builds, made where TVM is:

    dnc compile examples/treelstm.dn -o gpu/treelstm --target cuda:sm_90a
    dnc compile examples/token_vectors.dn -o gpu/token_vectors --target cuda:sm_90a --set width=256,hidden=256
    DNC_TORCH_BUILDS=gpu pytest tests/gpu/test_torch_on_gpu.py
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from benchmarks.torch_module import Between, Labelled  # noqa: E402

FOLDER = Path(os.environ.get("DNC_TORCH_BUILDS", "/nonexistent"))
DATA = Path(__file__).parents[2] / "examples" / "data" / "sentiment-train.jsonl"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def options():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if not FOLDER.exists():
        pytest.skip("no builds: set DNC_TORCH_BUILDS to a folder of them")
    return argparse.Namespace(
        treelstm=FOLDER / "treelstm",
        token_vectors=FOLDER / "token_vectors",
        device="cuda",
        optimizer="fused",
        workers=2,
        encoders=2,
    )


@pytest.fixture(scope="module")
def trees():
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def labelled(options, trees):
    return Labelled(options, trees)


@pytest.fixture(scope="module")
def between(options, trees):
    return Between(options, trees)


def test_values_and_gradients(labelled, between):
    for program in (labelled, between):
        found = program.check()
        assert max(found.values()) < TOLERANCE, found


def test_training_on_batches_ahead(labelled):
    """Groups of batches, in other processes: the losses of batches that are encoded when they come."""
    net = labelled.nets["dense"]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    numbers = [list(range(at, at + 4)) for at in range(0, 400, 4)] * 3

    def losses(batches):
        net.load_state_dict(state)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        found = []
        for batch in batches:
            loss = net(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        net.zero_grad()
        return torch.stack(found)

    assert torch.equal(losses(net.batches(numbers)), losses(numbers))


def test_on_another_stream(labelled, between):
    """The launches follow PyTorch's stream, and the streams wait for each other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for program in (labelled, between):
            found = program.check()
            assert max(found.values()) < TOLERANCE, found
            handle = int(
                program.nets["dense"].dnc.backend.device.stream.handle
                if program is labelled
                else program.net.dnc.backend.device.stream.handle
            )
            assert handle == stream.cuda_stream
    torch.cuda.current_stream().wait_stream(stream)
    assert max(labelled.check().values()) < TOLERANCE


def test_parameters_are_the_memory_of_the_kernel(labelled):
    net = labelled.nets["dense"]
    with torch.no_grad():
        net.b_u.fill_(0.25)
    assert (net.dnc.parameters()["b_u"] == 0.25).all()
    first, pool = net._memory.floats.data_ptr(), net.dnc.session.memory.words * 4
    assert all(first <= value.data_ptr() < first + pool for value in net.parameters())


def test_training_keeps_up_with_dnc(labelled, trees):
    """Steps of SGD on both sides, and memory that grows on the way."""
    import numpy as np

    net, native = labelled.nets["dense"], labelled.native
    native.set_parameters({name: value.cpu() for name, value in net.state_dict().items()})
    native.configure("sgd", 0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for size in (1, 8, 64, 200, 400):
        batch = list(range(size))
        optimizer.zero_grad()
        loss = net(batch)["loss"]
        loss.backward()
        optimizer.step()
        native.step(batch)
        assert loss.item() == pytest.approx(native.sync(), rel=1e-4)
    for name, value in native.parameters().items():
        found = getattr(net, name).detach().cpu().numpy()
        np.testing.assert_allclose(found, value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_optimizers(labelled, kind):
    net = labelled.nets["dense"]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, **{kind: True})
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = net(list(range(64)))["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert losses[-1].item() < 0.8 * losses[0].item()


def test_two_batches_before_the_first_goes_backward(labelled, between):
    net = labelled.nets["dense"]
    separate = []
    for batch in ([0, 1], [2, 3, 4]):
        net.zero_grad()
        net(batch)["loss"].backward()
        separate.append(net.U.grad.clone())
    net.zero_grad()
    first, second = net([0, 1])["loss"], net([2, 3, 4])["loss"]
    second.backward()
    first.backward()
    torch.testing.assert_close(net.U.grad, separate[0] + separate[1])


def test_wrong_devices(between):
    from dnc.diagnostics import DiagnosticError

    x = torch.zeros(int(between.sizes[0]), between.width)
    with pytest.raises(DiagnosticError, match="is on cpu, expected cuda:0"):
        between.net([0], x)
    with pytest.raises(DiagnosticError, match=r"computes in torch\.float32 on cuda:0, and cannot be"):
        between.net.cpu()
    between.net.cuda()
