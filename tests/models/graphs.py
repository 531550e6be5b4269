"""Graphs with shared vertices, in flat form: time-delay nets, a DAG. Every vertex is computed once."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, softmax, tanh

from tests.models.cells import (
    Choice,
    Dropout,
    Parameters,
    Result,
    Sample,
    surprise,
    total,
    tree_leaf,
    tree_node,
    zeros,
)


def _top(p: Parameters, sample: Sample, leaf, pair) -> Result:
    """The last vertex of a pyramid is classified. leaf: of an embedding; pair: of two neighbours."""
    words = [word for word in sample["Span"]["word"] if word is not None]
    layer = [leaf(p.E[word]) for word in words]
    while len(layer) > 1:
        layer = [pair(a, b) for a, b in pairwise(layer)]
    top = layer[0] if isinstance(layer[0], Tensor) else layer[0][0]
    logits = p.V @ top + p.b_v
    label = sample["Sentence"]["label"][0]
    return Result(surprise(logits, label), {"label": Choice(logits), "p": softmax(logits, 0)})


def td_rnn(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Khorasani et al. 2018, section 4.1: neighbouring vectors are composed until one is left."""
    return _top(p, sample, lambda x: x, lambda a, b: tanh(p.W @ torch.cat([a, b]) + p.b))


def td_lstm(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The same with the cell of the binary Tree-LSTM."""
    return _top(p, sample, lambda x: tree_leaf(p.W, p.b_w, x), lambda a, b: tree_node(p.U, p.b_u, a, b))


def rnn_stack(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Diamos et al. 2016: a vanilla RNN a layer. W x is normalised as Laurent et al. 2016 do, by running
    statistics; residuals skip the recurrence (He et al. 2016)."""
    units, states, means, variances = sample["Unit"], [], [], []
    W, U = p.W.unbind(), p.U.unbind()  # once: the gradient of p.W[layer] would be as large as p.W
    for number, arm in enumerate(units["arm"]):
        if arm == "Input":
            states.append((p.E[units["char"][number]],) * 2)
            continue
        layer, below, before, skip = (units[name][number] for name in ("layer", "below", "before", "skip"))
        a = W[layer] @ states[below][1]
        difference = a - p.mean[layer]
        means.append((layer, a))
        variances.append((layer, difference**2))
        normal = difference / torch.sqrt(p.variance[layer] + 1e-5)
        x = p.scale[layer] * normal + p.shift[layer]
        if before is not None:
            x = x + U[layer] @ states[before][0]
        h = tanh(x)
        states.append((h, h if skip is None else h + states[skip][1]))
    steps = sample["Step"]
    logits = [p.V @ states[top][1] + p.b_v for top in steps["top"]]
    loss = total(surprise(each, target) for each, target in zip(logits, steps["target"], strict=True))
    followed = {"mean": (0.1, means), "variance": (0.1, variances)}
    return Result(loss, {"next": [Choice(each) for each in logits]}, followed)


def dag(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """A vertex sees its own vector and what it refers to; a child that is missing is zero."""
    gates, states = sample["Gate"], []
    for arm, x, a, b in zip(gates["arm"], gates["x"], gates["a"], gates["b"], strict=True):
        h = p.A @ torch.tensor(x, dtype=torch.float64) + p.b
        if arm == "Join":
            right = zeros(p.b.shape[0]) if b is None else states[b]
            h = h + p.B @ torch.cat([states[a], right])
        states.append(tanh(h))
    value = (p.v @ states[sample["root"]] + p.b_v).sum()
    return Result((value - gates["target"][sample["root"]]) ** 2, {"value": value, "states": states})
