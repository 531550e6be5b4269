"""Random numbers of dropout and draws: spread evenly, and different for every seed, step, vertex and site."""

import numpy as np

from dnc.ir.noise import DROPS, NONE, drawing_noise, step_noise, uniform, vertex_keys
from dnc.ir.ops import OPS


def test_uniform_is_uniform():
    keys = vertex_keys(np.asarray(step_noise(1, 1)), np.arange(400))
    found = uniform(keys[:, None], np.arange(256)[None, :])
    assert found.min() >= 0 and found.max() < 1
    counts = np.bincount((found.ravel() * 64).astype(int), minlength=64)
    expected = found.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-square of 63: 1 in 5,000
    for a, b in ((found[:-1], found[1:]), (found[:, :-1], found[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015


def test_keys_differ():
    steps = {step_noise(seed, step) for seed in range(40) for step in range(40)}
    assert len(steps) > 1590 and NONE not in steps
    assert len(np.unique(vertex_keys(np.asarray(7), np.arange(10_000)))) > 9_990


def test_without_noise_nothing_drops():
    assert not vertex_keys(np.asarray(NONE), np.arange(9)).any()
    x = np.linspace(-1, 1, 50)
    same = OPS["dropout"].evaluate([x, np.asarray(0)], {"rate": 0.9, "site": 3})
    assert (same == x).all()


def test_dropout_keeps_the_mean_and_tells_sites_apart():
    key, x = vertex_keys(np.asarray(5), np.arange(1))[0], np.ones(20_000)
    masks = [OPS["dropout"].evaluate([x, key], {"rate": 0.25, "site": site}) for site in (0, 1)]
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, 4 / 3}
        assert abs(mask.mean() - 1) < 0.02
    assert abs(np.corrcoef(*masks)[0, 1]) < 0.03
    part = OPS["dropout"].evaluate([x[:5], key], {"rate": 0.25, "site": 0, "index": np.arange(100, 105)})
    assert (part == masks[0][100:105]).all()


def test_draws_have_noise_of_their_own():
    """A call that draws drops nothing; a training step does both, by keys that differ."""
    vertices, step = np.arange(50), step_noise(2, 3)
    drawing = drawing_noise(2, 3)
    assert drawing_noise(None) == NONE and drawing != NONE
    assert not vertex_keys(np.asarray(drawing), vertices).any()
    assert not vertex_keys(np.asarray(NONE), vertices, draws=True).any()
    drawn, dropped = (
        vertex_keys(np.asarray(step), vertices, draws=True),
        vertex_keys(np.asarray(step), vertices),
    )
    assert (drawn != dropped).all() and drawn.all() and dropped.all()
    assert (vertex_keys(np.asarray(step & ~DROPS), vertices, draws=True) == drawn).all()
    assert len({drawing_noise(seed, call) for seed in range(40) for call in range(40)}) > 1590


def test_the_largest_behind_gumbel_noise_is_drawn_from_softmax():
    """Chi-square of every class, of 20,000 draws; another site draws on its own."""
    x = np.array([0.3, -1.2, 2.0, 0.0, 1.1, -0.4])
    keys = vertex_keys(np.asarray(drawing_noise(4)), np.arange(20_000), draws=True)
    gumbel = OPS["gumbel"]
    draws = [
        np.array([np.argmax(gumbel.evaluate([x, key], {"site": site})) for key in keys]) for site in (0, 1)
    ]
    expected = np.exp(x) / np.exp(x).sum()
    for found in draws:
        counts = np.bincount(found, minlength=len(x))
        assert ((counts - len(keys) * expected) ** 2 / (len(keys) * expected)).sum() < 20.5  # 1 in 1,000
    both = np.zeros((len(x), len(x)))
    np.add.at(both, tuple(draws), 1)
    apart = len(keys) * np.outer(expected, expected)
    assert ((both - apart) ** 2 / apart).sum() < 75  # chi-square of 35: 1 in 10,000
    assert (gumbel.evaluate([x, np.asarray(0)], {"site": 3}) == x).all()
    assert np.isfinite(gumbel.evaluate([np.zeros(100_000), keys[0]], {"site": 0})).all()
