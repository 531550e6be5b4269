"""A backward that uses a part of what a program pushes: what is not used has no gradient."""

from __future__ import annotations

from itertools import combinations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from tests.models.cells import Parameters  # noqa: E402
from tests.models.differences import relative  # noqa: E402
from tests.models.test_against_torch import TOLERANCE  # noqa: E402
from tests.models.torch_module.cases import check_gradients, doubles  # noqa: E402
from tests.models.torch_module.test_gradients import reference  # noqa: E402

TWO = """model Two(d = 2)
struct T = T(x: pulled<d>)
push a = f(root), b = g(root)
param A: [d, d], B: [d, d]
fn f(t: T) -> [d] = A @ t.x
fn g(t: T) -> [d] = B @ t.x
"""
OUTPUTS = ("loss", "states", "top")
ORDER = [2, 0, 1]


def poison(net):
    """Where launches leave what no other one should read there is nothing but NaN."""
    net._memory.floats[net._launches.pool.words * 4 :] = float("nan")


def given(net, data, how):
    if how == "batches":
        return next(iter(net.batches([ORDER])))
    return {"numbers": ORDER, "samples": [data[n] for n in ORDER], "encoder": net.encoder(3)(ORDER)}[how]


def test_the_gradient_of_before_is_not_there(tmp_path):
    (tmp_path / "two.dn").write_text(TWO)
    compile_model(tmp_path / "two.dn", tmp_path / "build", ("cpu",))
    net = dnc.torch.Module(tmp_path / "build", device="vm")
    for parts in ("ab", "a", "ab", "b", "a"):
        net.zero_grad()
        x = torch.randn(2, 2, requires_grad=True)
        found = net([{}, {}], x)
        sum(found[name].sum() for name in parts).backward()
        for name, matrix in (("a", net.A), ("b", net.B)):
            expected = x.detach().sum(0).expand(2, 2) if name in parts else torch.zeros(2, 2)
            torch.testing.assert_close(matrix.grad, expected)
        used = [matrix.detach().sum(0) for name, matrix in (("a", net.A), ("b", net.B)) if name in parts]
        torch.testing.assert_close(x.grad, sum(used).expand(2, 2))


@pytest.mark.parametrize("how", ["numbers", "samples", "encoder", "batches"])
def test_every_part_of_a_loss_and_pushed_values(both, how):
    net, data = both
    batch = given(net, data, how)
    x = torch.randn(6, 3, requires_grad=True)
    for parts in [each for size in (3, 1, 2) for each in combinations(OUTPUTS, size)]:
        net.zero_grad()
        x.grad = None
        expected, wide = doubles(net), x.detach().double().requires_grad_()
        values = reference(Parameters(**expected), [data[number] for number in ORDER], wide)
        sum(value.sum() for name, value in zip(OUTPUTS, values, strict=True) if name in parts).backward()
        found = net(batch, x)
        poison(net)
        sum(found[name].sum() for name in parts).backward()
        assert relative(x.grad, wide.grad) < TOLERANCE, parts
        check_gradients(net, expected)


def test_parts_of_a_graph_that_is_retained(both):
    net, _ = both
    x = torch.randn(6, 3, requires_grad=True)
    whole = net(ORDER, x)
    separate = {name: torch.autograd.grad(net(ORDER, x)[name].sum(), (x, net.W)) for name in OUTPUTS}
    for name in (*OUTPUTS, *reversed(OUTPUTS)):
        poison(net)
        found = torch.autograd.grad(whole[name].sum(), (x, net.W), retain_graph=True)
        assert all(map(torch.equal, found, separate[name])), name
    together = torch.autograd.grad(sum(whole[name].sum() for name in OUTPUTS), (x, net.W))
    for found, *apart in zip(together, *separate.values(), strict=True):
        torch.testing.assert_close(found, sum(apart))
