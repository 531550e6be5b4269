"""Trees level by level: what waits for its sibling is carried along, and a level is one product.

The indices are those of `tests/support/torch_treelstm.py`, whose Tree-LSTM is the peer of that model. A
complete tree needs no indices: two neighbours of a level are one row of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.peers.base import Batch, Peer, Sample, unique
from tests.support.torch_treelstm import Batch as Levels
from tests.support.torch_treelstm import Trees, level_logits

Node = Callable[[Tensor], Tensor]


class Labelled(Peer):
    """A class at every vertex of a binary tree."""

    def read(self, samples: Sequence[Sample]) -> None:
        """Trees as flat arrays; words are numbers already."""
        rows = len(self.parameters["E"])
        self.trees = Trees(samples, {number: number for number in range(rows)})  # type: ignore[misc]

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The levels of a batch."""
        levels = self.trees.batch(numbers)
        return Batch(levels.samples, {"E": levels.rows}, levels)

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of all vertices."""
        logits = self.logits(rows["E"], batch.given)
        return cross_entropy(logits, batch.given.labels, reduction="sum") / batch.samples

    def logits(self, x: Tensor, levels: Levels) -> Tensor:
        """In the order of the labels; x: embeddings of `levels.rows`."""
        raise NotImplementedError


class TreeLstm(Labelled):
    """`examples/treelstm.dn`."""

    def logits(self, x: Tensor, levels: Levels) -> Tensor:
        """All gates of a level in one product."""
        return level_logits(self.parameters, x, levels)


class Rvnn(Labelled):
    """`examples/rvnn.dn`."""

    def logits(self, x: Tensor, levels: Levels) -> Tensor:
        """Both children of a level in one product."""
        p = self.parameters
        both, b = torch.cat([p["L"], p["R"]], 1).t(), p["b"]
        leaves = torch.relu(torch.addmm(p["b_w"], x.index_select(0, levels.words), p["W"].t()))
        states = states_of(leaves, levels, lambda pairs: torch.relu(torch.addmm(b, pairs, both)))
        return torch.addmm(p["b_v"], states, p["V"].t())


def states_of(leaves: Tensor, levels: Levels, node: Node) -> Tensor:
    """The states of all vertices, level by level; node: from two children side by side to a parent."""
    outputs = [leaves]
    arriving = leaves.split([*(level.leaves for level in levels.levels), levels.alone])
    waiting: Tensor | None = None
    for level, arrived in zip(levels.levels, arriving, strict=False):
        states = arrived if waiting is None else torch.cat([arrived, waiting])
        taken = states.index_select(0, level.gather)
        below, rest = taken.split([2 * level.count, len(taken) - 2 * level.count])
        h = node(below.view(level.count, 2 * leaves.shape[1]))
        outputs.append(h)
        waiting = torch.cat([rest, h[: level.live]])
    return torch.cat(outputs)


class TreeFc(Peer):
    """`examples/tree_fc.dn` on complete trees of one size."""

    def read(self, samples: Sequence[Sample]) -> None:
        """The leaves from left to right."""
        self.leaves = np.array([_leaves(sample["tree"]) for sample in samples])
        self.labels = np.array([sample["label"] for sample in samples])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Words of all leaves, labels of the roots."""
        rows, words = unique(self.leaves[numbers].ravel())
        return Batch(len(numbers), {"E": rows}, (words, torch.from_numpy(self.labels[numbers])))

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """A product a level, as long as more than one vertex a tree is left."""
        p, (words, labels) = self.parameters, batch.given
        states = rows["E"].index_select(0, words)
        while len(states) > batch.samples:
            pairs = states.view(len(states) // 2, 2 * states.shape[1])
            states = torch.relu(torch.addmm(p["b"], pairs, p["W"].t()))
        logits = torch.addmm(p["b_v"], states, p["V"].t())
        return cross_entropy(logits, labels, reduction="sum") / batch.samples


def _leaves(tree: Sample) -> list[int]:
    if "word" in tree:
        return [tree["word"]]
    return [word for side in ("left", "right") for word in _leaves(tree[side])]
