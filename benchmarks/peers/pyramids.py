"""Time-delay nets: neighbours are composed layer by layer until one vertex a sentence is left.

Samples are in the flat form of `benchmarks/model_data.py`: layer behind layer, words first. All layers of
a batch are made by one product each. Sentences stand in the order of their length, so that those that end
stand behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.peers.base import Batch, Peer, Sample, tree_leaf, tree_node, unique


@attrs.frozen(eq=False)
class Layers:
    """words: places of the words among the rows. pairs: a layer's left and right parts in turn, as rows
    of the layer below. ends: by layer how many of its last rows are tops. labels: in the order of tops.
    """

    words: Tensor
    pairs: tuple[Tensor, ...]
    ends: tuple[int, ...]
    labels: Tensor


class Pyramid(Peer):
    """See the module; subclasses say what a vertex computes."""

    def read(self, samples: Sequence[Sample]) -> None:
        """Words and label of every sentence."""
        self.words = [np.array([w for w in s["Span"]["word"] if w is not None]) for s in samples]
        self.labels = np.array([sample["Sentence"]["label"][0] for sample in samples])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Layers as long as one sentence is left."""
        order = sorted(numbers, key=lambda number: -len(self.words[number]))
        rows, words = unique(np.concatenate([self.words[number] for number in order]))
        counts = np.array([len(self.words[number]) for number in order])
        pairs, ends, tops = [], [int((counts == 1).sum())], [np.flatnonzero(counts == 1)]
        left, depth = np.flatnonzero(counts > 0), 1
        while (counts > depth).any():
            below = counts[left] - depth + 1
            first = np.cumsum(below) - below
            left = np.flatnonzero(counts > depth)
            starts = np.concatenate([first[s] + np.arange(counts[s] - depth) for s in range(len(left))])
            pairs.append(torch.from_numpy(np.stack([starts, starts + 1], 1).ravel()))
            depth += 1
            tops.append(np.flatnonzero(counts == depth))
            ends.append(len(tops[-1]))
        labels = torch.from_numpy(self.labels[order][np.concatenate(tops)])
        return Batch(len(order), {"E": rows}, Layers(words, tuple(pairs), tuple(ends), labels))

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of the tops."""
        given: Layers = batch.given
        state = self.word(rows["E"].index_select(0, given.words))
        tops = [state[len(state) - given.ends[0] :]]
        for pairs, ends in zip(given.pairs, given.ends[1:], strict=True):
            state = self.pair(state.index_select(0, pairs).view(len(pairs) // 2, 2, state.shape[1]))
            tops.append(state[len(state) - ends :])
        p = self.parameters
        h = torch.cat(tops)[:, : p["V"].shape[1]]
        logits = torch.addmm(p["b_v"], h, p["V"].t())
        return cross_entropy(logits, given.labels, reduction="sum") / batch.samples

    def word(self, x: Tensor) -> Tensor:
        """The states of words."""
        return x

    def pair(self, pairs: Tensor) -> Tensor:
        """The states of composed vertices; pairs: [vertices, 2, state]."""
        raise NotImplementedError


class TdRnn(Pyramid):
    """`examples/td_rnn.dn`."""

    def pair(self, pairs: Tensor) -> Tensor:
        """tanh of one product."""
        return torch.tanh(torch.addmm(self.parameters["b"], pairs.flatten(1), self.parameters["W"].t()))


class TdLstm(Pyramid):
    """`examples/td_lstm.dn`."""

    def word(self, x: Tensor) -> Tensor:
        """The cell of a leaf."""
        p = self.parameters
        return tree_leaf(torch.addmm(p["b_w"], x, p["W"].t()), p["V"].shape[1])

    def pair(self, pairs: Tensor) -> Tensor:
        """The cell of an inner vertex."""
        return tree_node(self.parameters["U"], self.parameters["b_u"], pairs)
