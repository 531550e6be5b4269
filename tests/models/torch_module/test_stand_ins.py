"""What stands in the place of parameters for a batch: it is asked for once, and backward computes with it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")


PUSHES = """model Square(d = 3)
struct T = T(x: pulled<d>)
param A: [d, d]
fn f(t: T) -> [d] = A @ (A @ t.x)
push y = f(root)
output z = f(root)
"""
LOSS = PUSHES.replace("push y = f(root)", "loss sum(t in root) sum(f(t))")


class Thinned(torch.nn.Module):
    """Weights of which others are dropped each time. last: those of the last time."""

    def forward(self, weights):
        self.last = torch.nn.functional.dropout(weights, 0.5)
        return self.last


@pytest.fixture
def opened(module_of):
    return lambda text=PUSHES: module_of(text)


def gradients(A, x):
    """Of the sum of A A x, by A and by x."""
    A, x = (each.detach().clone().requires_grad_() for each in (A, x))
    return torch.autograd.grad((x @ A.T @ A.T).sum(), (A, x))


@pytest.mark.parametrize("text", [PUSHES, LOSS])
def test_weights_that_are_others_each_time(opened, text):
    net = opened(text)
    weights = net.A.detach().clone()
    torch.nn.utils.parametrize.register_parametrization(net, "A", Thinned())
    thinned, batches = net.parametrizations.A[0], []
    for _ in range(3):
        x = torch.randn(1, 3, requires_grad=True)
        (value,) = net([{}], x).values()
        batches.append((x, value, thinned.last.detach().clone()))
    net.encoder(1)
    for x, value, A in batches:
        net.zero_grad()
        value.sum().backward()
        assert value.sum().item() == pytest.approx((x @ A.T @ A.T).sum().item(), rel=1e-4, abs=1e-5)
        by_A, by_x = gradients(A, x)
        torch.testing.assert_close(x.grad, by_x)
        torch.testing.assert_close(net.parametrizations.A.original.grad, by_A * 2.0 * (A != 0))
    assert torch.equal(net.parametrizations.A.original, weights)
    found = net.predict([{}], x)["z"]
    torch.testing.assert_close(found, (x @ thinned.last.T @ thinned.last.T).detach())


def test_a_spectral_norm_is_trained(opened):
    """It moves its own state whenever it is asked for."""
    net, alone = opened(), torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        alone.weight.copy_(net.A)
    torch.manual_seed(1)
    torch.nn.utils.parametrizations.spectral_norm(net, "A")
    torch.manual_seed(1)
    torch.nn.utils.parametrizations.spectral_norm(alone)
    for _ in range(3):
        x = torch.randn(1, 3)
        net([{}], x)["y"].sum().backward()
        with torch.nn.utils.parametrize.cached():
            alone(alone(x)).sum().backward()
        own, other = net.parametrizations.A.original, alone.parametrizations.weight.original
        torch.testing.assert_close(own.grad, other.grad)
        for optimizer in (torch.optim.SGD([own], 0.1), torch.optim.SGD([other], 0.1)):
            optimizer.step()


@pytest.mark.parametrize("are_parameters", [True, False])
def test_weights_of_a_function_that_goes_backward_later(opened, are_parameters):
    net = opened()
    own, other = net.A.detach().clone(), torch.randn(3, 3)
    weights = torch.nn.Parameter(other.clone()) if are_parameters else other.clone().requires_grad_()
    x, own_x = torch.randn(2, 1, 3).requires_grad_().unbind()
    y = torch.func.functional_call(net, {"A": weights}, ([{}], x))["y"]
    own_y = net([{}], own_x)["y"]
    found = torch.autograd.grad(y.sum(), (weights, x))
    own_found = torch.autograd.grad(own_y.sum(), (net.A, own_x))
    for each, want in zip((*found, *own_found), (*gradients(other, x), *gradients(own, own_x)), strict=True):
        torch.testing.assert_close(each, want)
    assert torch.equal(net.A, own) and torch.equal(weights, other)


def test_a_parameter_that_another_has_replaced(opened):
    net = opened()
    before, x = net.A, torch.randn(1, 3, requires_grad=True)
    old = before.detach().clone()
    y = net([{}], x)["y"]
    net.A = torch.nn.Parameter(torch.ones(3, 3))
    y.sum().backward()
    by_A, by_x = gradients(old, x)
    torch.testing.assert_close(x.grad, by_x)
    torch.testing.assert_close(before.grad, by_A)
    assert net.A.grad is None and (net.A == 1).all() and torch.equal(before, old)
    torch.testing.assert_close(net([{}], x)["y"].detach(), 3 * x.detach().sum().expand(1, 3))
