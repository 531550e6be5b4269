"""Trees: every vertex or the root is classified."""

from __future__ import annotations

import torch
from torch import Tensor, sigmoid, softmax, tanh

from tests.models.cells import (
    Choice,
    Dropout,
    Parameters,
    Result,
    Sample,
    State,
    child_sum,
    postorder,
    surprise,
    total,
    tree_leaf,
    tree_node,
    zeros,
)


def _labelled(p: Parameters, pairs, distribution: bool = True) -> Result:
    """Loss at every vertex, outputs of the root. pairs: vertex and its hidden state, the root last."""
    found = [(p.V @ h + p.b_v, vertex["label"]) for vertex, h in pairs]
    root = found[-1][0]
    outputs = {"label": Choice(root), "p": softmax(root, 0)}
    return Result(
        total(surprise(logits, label) for logits, label in found),
        outputs if distribution else {"label": outputs["label"]},
    )


def treelstm(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The binary Tree-LSTM over a constituency tree."""
    pairs: list[tuple[Sample, Tensor]] = []

    def encode(tree: Sample) -> State:
        if "word" in tree:
            state = tree_leaf(p.W, p.b_w, p.E[tree["word"]])
        else:
            state = tree_node(p.U, p.b_u, encode(tree["left"]), encode(tree["right"]))
        pairs.append((tree, state[0]))
        return state

    encode(sample)
    return _labelled(p, pairs)


def leaves(tree: Sample) -> list[Sample]:
    """The leaves of a binary tree, from left to right."""
    return [leaf for side in ("left", "right") for leaf in leaves(tree[side])] if "left" in tree else [tree]


def token_vectors(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The binary Tree-LSTM over vectors from elsewhere; the root's state is handed on, there is no loss."""

    def encode(tree: Sample) -> State:
        if "left" in tree:
            return tree_node(p.U, p.b_u, encode(tree["left"]), encode(tree["right"]))
        return tree_leaf(p.W, p.b_w, tree["x"])

    return Result(zeros(), {"sentence": encode(sample)[0]})


def rvnn(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """A recursive net with other weights for leaves (Socher et al. 2011; Irsoy and Cardie 2014)."""
    pairs: list[tuple[Sample, Tensor]] = []

    def encode(tree: Sample) -> Tensor:
        if "word" in tree:
            h = torch.relu(p.W @ p.E[tree["word"]] + p.b_w)
        else:
            h = torch.relu(p.L @ encode(tree["left"]) + p.R @ encode(tree["right"]) + p.b)
        pairs.append((tree, h))
        return h

    encode(sample)
    return _labelled(p, pairs)


def mvrnn(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Matrix and vector of a vertex (Socher et al. 2012, equations 2 to 4)."""
    pairs: list[tuple[Sample, Tensor]] = []

    def encode(tree: Sample) -> tuple[Tensor, Tensor]:
        if "word" in tree:
            v, m = p.E[tree["word"]], p.A[tree["word"]]
        else:
            (a, of_a), (b, of_b) = encode(tree["left"]), encode(tree["right"])
            v = tanh(p.W @ torch.cat([of_b @ a, of_a @ b]))
            m = p.M @ torch.cat([of_a, of_b], 0)
        pairs.append((tree, v))
        return v, m

    encode(sample)
    return _labelled(p, pairs, distribution=False)


def nary_treelstm(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Tai et al. 2015, equations 9 to 14 with N = 3: a forget gate for each child sees all children."""
    pairs: list[tuple[Sample, Tensor]] = []
    hidden = p.bf.shape[0]

    def encode(tree: Sample | None) -> State:
        if tree is None:
            return zeros(hidden), zeros(hidden)
        x, children = p.E[tree["word"]], [encode(tree.get(field)) for field in "abc"]
        hs = torch.cat([h for h, _ in children])
        i, o, u = (p.W @ x + p.U @ hs + p.b).chunk(3)
        c = sigmoid(i) * tanh(u)
        for Uf, (_, child_c) in zip(p.Uf.chunk(3), children, strict=True):
            c = c + sigmoid(p.Wf @ x + Uf @ hs + p.bf) * child_c
        h = sigmoid(o) * tanh(c)
        pairs.append((tree, h))
        return h, c

    encode(sample)
    return _labelled(p, pairs)


def childsum(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The child-sum Tree-LSTM over a dependency tree."""
    found: dict[int, Tensor] = {}
    child_sum(p, sample, found)
    return _labelled(p, [(vertex, found[id(vertex)]) for vertex in postorder(sample, "children")])


def top_down(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """A pass up, then one down that starts at zero (as in Irsoy and Cardie 2013)."""
    above, down = {}, {}

    def up(tree: Sample) -> Tensor:
        below = sum((up(child) for child in tree["children"]), zeros(p.b.shape[0]))
        above[id(tree)] = tanh(p.W @ p.E[tree["word"]] + p.U @ below + p.b)
        return above[id(tree)]

    def hand_down(tree: Sample, given: Tensor) -> None:
        down[id(tree)] = tanh(p.D @ torch.cat([above[id(tree)], given]) + p.b_d)
        for child in tree["children"]:
            hand_down(child, down[id(tree)])

    up(sample)
    hand_down(sample, zeros(p.b_d.shape[0]))
    found = [(p.V @ down[id(v)] + p.b_v, v["label"]) for v in postorder(sample, "children")]
    loss = total(surprise(logits, label) for logits, label in found)
    return Result(loss, {"labels": [Choice(logits) for logits, _ in found]})


def tree_fc(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Looks et al. 2017, section 3.5: only the root is classified."""

    def encode(tree: Sample) -> Tensor:
        if "word" in tree:
            return p.E[tree["word"]]
        return torch.relu(p.W @ torch.cat([encode(tree["left"]), encode(tree["right"])]) + p.b)

    logits = p.V @ encode(sample["tree"]) + p.b_v
    return Result(surprise(logits, sample["label"]), {"label": Choice(logits)})
