"""Running statistics of a program that pushes: gradients are those of the statistics that forward used."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from tests.models.differences import relative  # noqa: E402
from tests.models.test_against_torch import TOLERANCE  # noqa: E402

SCALE = """model R(d = 2)
struct T = T(x: pulled<d>)
param A: [d, d]
running param m: [d] = constant(1)
fn f(t: T) -> [d] = t.x * follow(m, t.x, 0.5) + 0 * (A @ t.x)
push y = f(root)
"""
CHAIN = """model Norm(kinds = 2, width = 3)
struct Cell = Cell(kind: index<kinds>, x: pulled<width>, before: Cell?)
param W: [width, width]
running param mean: [width], spread: stack[kinds, width] = constant(1)
fn f(c: Cell) -> [width]:
    a = c.x + W @ f(c.before)
    d = a - follow(mean, a, 0.5)
    tanh(d / sqrt(follow(spread[c.kind], d * d, 0.25) + 0.1))
loss sum(c in root) sum(f(c))
push states = [f(c) for c in all(Cell)]
"""
CHAINS = [
    {"kind": 0, "before": {"kind": 1, "before": {"kind": 0}}},
    {"kind": 1},
    {"kind": 0, "before": {"kind": 0}},
]


@pytest.fixture
def opened(module_of):
    return lambda text=CHAIN: module_of(text)


def kinds(chain):
    """Of the vertices of a chain, children before parents."""
    return [*(kinds(chain["before"]) if "before" in chain else ()), chain["kind"]]


def reference(W, chain, x, mean, spread):
    """The states, and the statistics moved."""
    state, states, sums, squares = torch.zeros(3), [], [], {}
    for kind, own in zip(kinds(chain), x, strict=True):
        a = own + W @ state.to(own)
        d = a - mean
        sums.append(a.detach())
        squares.setdefault(kind, []).append((d * d).detach())
        state = torch.tanh(d / torch.sqrt(spread[kind] + 0.1))
        states.append(state)
    moved = spread.clone()
    for kind, values in squares.items():
        moved[kind] += 0.25 * (torch.stack(values).mean(0) - spread[kind])
    return torch.stack(states), mean + 0.5 * (torch.stack(sums).mean(0) - mean), moved


def vectors():
    return [torch.randn(len(kinds(chain)), 3, requires_grad=True) for chain in CHAINS]


def statistics(net):
    return net.mean.detach().clone(), net.spread.detach().clone()


def one_by_one(net, batches):
    """Gradients and statistics of batches that go forward and backward before the next one."""
    found = []
    for chain, x in batches:
        states = net([chain], x)["states"]
        found.append((*torch.autograd.grad(states.sum(), (x, net.W)), *statistics(net)))
    return found


@pytest.mark.parametrize("together", [True, False])
def test_both_batches_saw_the_first_statistic(opened, together):
    net = opened(SCALE)
    a, b = (torch.full((1, 2), value, requires_grad=True) for value in (3.0, 5.0))
    ya, yb = (net([{}], x)["y"] for x in (a, b))
    if together:
        (ya.sum() + yb.sum()).backward()
    else:
        ya.sum().backward()
        torch.testing.assert_close(net.m.detach(), torch.full((2,), 2.0))
        yb.sum().backward()
    assert torch.equal(a.grad, torch.ones(1, 2)) and torch.equal(b.grad, torch.ones(1, 2))
    # The last one forward is the first one backward where the sum is asked for.
    torch.testing.assert_close(net.m.detach(), torch.full((2,), 3.0 if together else 3.5))


def test_gradients_and_statistics_of_batches_in_flight(opened):
    net, xs = opened(), vectors()
    W = net.W.detach().double().requires_grad_()
    mean, spread = (each.double() for each in statistics(net))
    found = [net([chain], x)["states"] for chain, x in zip(CHAINS, xs, strict=True)]
    for states, chain, x in zip(found, CHAINS, xs, strict=True):
        wide = x.detach().double().requires_grad_()
        expected, _, _ = reference(W, chain, wide, torch.zeros(3).double(), torch.ones(2, 3).double())
        assert relative(states.detach(), expected.detach()) < TOLERANCE
        gradients = torch.autograd.grad(states.sum(), (x, net.W))
        for gradient, want in zip(gradients, torch.autograd.grad(expected.sum(), (wide, W)), strict=True):
            assert relative(gradient, want) < TOLERANCE
        # Each batch moves them once, from where they are.
        _, mean, spread = reference(W, chain, wide, mean, spread)
        for own, want in zip(statistics(net), (mean, spread), strict=True):
            assert relative(own, want) < TOLERANCE


def test_statistics_move_as_one_batch_after_another(opened):
    """To the bit, in the order of backward, whether batches were encoded ahead or not."""
    xs = vectors()
    alone = one_by_one(opened(), zip(CHAINS, xs, strict=True))
    for ahead in (False, True):
        net = opened()
        encode = net.encoder(1) if ahead else list
        found = [net(encode([chain]), x)["states"] for chain, x in zip(CHAINS, xs, strict=True)]
        for states, (*_, mean, spread) in zip(found, alone, strict=True):
            states.sum().backward()
            assert torch.equal(net.mean, mean) and torch.equal(net.spread, spread)


def test_a_graph_that_is_retained_moves_them_once(opened):
    net, xs = opened(), vectors()
    found = net([CHAINS[0]], xs[0])
    first = torch.autograd.grad(found["loss"], (xs[0], net.W), retain_graph=True)
    moved = statistics(net)
    again = torch.autograd.grad(found["loss"], (xs[0], net.W), retain_graph=True)
    found["states"].sum().backward()
    assert all(map(torch.equal, again, first)) and all(map(torch.equal, statistics(net), moved))
    with torch.no_grad():
        net.mean.zero_()
        net.spread.fill_(1.0)
    ((gradient, *_),) = one_by_one(net, [(CHAINS[0], xs[0])])
    assert torch.equal(xs[0].grad, gradient)


def test_a_batch_of_evaluation_in_flight(opened):
    net, xs = opened(), vectors()
    net.eval()
    expected = torch.autograd.grad(net([CHAINS[0]], xs[0])["states"].sum(), (xs[0], net.W))
    waiting = net([CHAINS[0]], xs[0])["states"].sum()
    net.train()
    net([CHAINS[2]], xs[2])["states"].sum().backward()
    moved = statistics(net)
    assert moved[0].any()
    found = torch.autograd.grad(waiting, (xs[0], net.W))
    assert all(map(torch.equal, found, expected)) and all(map(torch.equal, statistics(net), moved))


def test_memory_that_grows_between(opened):
    xs = vectors()
    (gradient, *_), (*_, mean, spread) = one_by_one(opened(), [(CHAINS[0], xs[0]), (CHAINS[2], xs[2])])
    net = opened()
    first, second = (net([CHAINS[n]], xs[n])["states"].sum() for n in (0, 2))
    words = net.dnc.session.memory.words
    net.eval()
    long = [{"kind": 0, "before": {"kind": 1}} for _ in range(400)]
    net(long, torch.randn(800, 3, requires_grad=True))["states"].sum().backward()
    assert net.dnc.session.memory.words > words
    (own,) = torch.autograd.grad(first, xs[0])
    second.backward()
    assert torch.equal(own, gradient)
    assert torch.equal(net.mean, mean) and torch.equal(net.spread, spread)


def test_a_statistic_that_is_changed_in_place(opened):
    net, xs = opened(), vectors()
    found = net([CHAINS[0]], xs[0])["loss"]
    with torch.no_grad():
        net.mean.fill_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()
