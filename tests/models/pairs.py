"""Two structures a sample: similarity of trees, a sequence decoded from another."""

from __future__ import annotations

import torch
from torch import Tensor, sigmoid, softmax, tanh
from torch.nn.functional import log_softmax

from tests.models.cells import (
    Choice,
    Dropout,
    Parameters,
    Result,
    Sample,
    State,
    child_sum,
    lstm_run,
    surprise,
    total,
    tree_leaf,
    tree_node,
    zeros,
)


def similarity(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Tai et al. 2015, equations 15 to 17: KL divergence from the target, expected score as output."""
    left, right = (child_sum(p, sample[side])[0] for side in ("left", "right"))
    hidden = sigmoid(p.M @ (left * right) + p.N @ (left - right).abs() + p.b_m)
    logits = p.V @ hidden + p.b_v
    target = torch.tensor(sample["target"], dtype=torch.float64)
    loss = torch.special.xlogy(target, target).sum() - (target * log_softmax(logits, 0)).sum()
    return Result(loss, {"score": p.levels @ softmax(logits, 0)})


def tree_to_sequence(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Eriguchi et al. 2016, equations 8 to 10, over given trees and without attention."""

    def encode(tree: Sample) -> State:
        if "word" in tree:
            return tree_leaf(p.W, p.b_w, p.E[tree["word"]])
        return tree_node(p.U, p.b_u, encode(tree["left"]), encode(tree["right"]))

    states = lstm_run(p.Wt, p.Ut, p.bt, _before(p, sample), encode(sample["tree"]))
    return _decoded(p, sample, [h for h, _ in states])


def _before(p: Parameters, sample: Sample) -> list[Tensor]:
    """The words before those that are decoded (teacher forcing)."""
    return [zeros(p.F.shape[1]), *(p.F[word["form"]] for word in sample["target"][:-1])]


def _translate(p: Parameters, sample: Sample):
    """States of the encoder, and of the decoder that starts at the last of them."""
    source = lstm_run(p.Ws, p.Us, p.bs, [p.E[word["form"]] for word in sample["source"]])
    return source, lstm_run(p.Wt, p.Ut, p.bt, _before(p, sample), source[-1])


def _decoded(p: Parameters, sample: Sample, tops) -> Result:
    logits = [p.V @ h + p.b_v for h in tops]
    pairs = zip(logits, sample["target"], strict=True)
    loss = total(surprise(each, word["form"]) for each, word in pairs)
    return Result(loss, {"words": [Choice(each) for each in logits]})


def encoder_decoder(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Sutskever et al. 2014."""
    return _decoded(p, sample, [h for h, _ in _translate(p, sample)[1]])


def attention(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Luong et al. 2015, equations 5 to 8 with the score "general"."""
    source, target = _translate(p, sample)
    states = torch.stack([h for h, _ in source])

    def attended(h: Tensor) -> Tensor:
        weights = softmax(states @ (p.Q @ h), 0)
        return tanh(p.C @ torch.cat([h, weights @ states]))

    return _decoded(p, sample, [attended(h) for h, _ in target])


def additive_attention(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Bahdanau et al. 2015, appendix A.1.2, with the cells of LSTMs."""
    words = [p.E[word["form"]] for word in sample["source"]]
    forward = lstm_run(p.Wf, p.Uf, p.bf, words)
    backward = lstm_run(p.Wb, p.Ub, p.bb, words[::-1])[::-1]
    both = torch.stack([torch.cat([one[0], other[0]]) for one, other in zip(forward, backward, strict=True)])
    keys, state, tops = both @ p.K.T, backward[0], []
    gates = torch.cat([p.Wt, p.Ct], 1)
    for word in _before(p, sample):
        scores = tanh(p.Q @ state[0] + keys) @ p.v
        (state,) = lstm_run(gates, p.Ut, p.bt, [torch.cat([word, softmax(scores, 0) @ both])], state)
        tops.append(state[0])
    return _decoded(p, sample, tops)
