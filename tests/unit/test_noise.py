"""Random numbers of dropout: spread evenly, and different for every seed, step, vertex and site."""

import numpy as np

from dnc.ir.noise import NONE, step_noise, uniform, vertex_keys
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
