"""Sequences of one length, on cuDNN where it can: classifiers by the last state, and a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn, sigmoid, tanh
from torch.nn.functional import cross_entropy, layer_norm

from benchmarks.peers.base import Batch, Peer, Sample, unique


def cudnn_gates(value: Tensor) -> Tensor:
    """Rows i, o, u, f of a program in PyTorch's order i, f, g, o."""
    i, o, u, f = value.chunk(4)
    return torch.cat([i, f, u, o])


def take_weights(net: nn.RNNBase, suffix: str, W: Tensor, U: Tensor, b: Tensor) -> list[Tensor]:
    """Fills a layer; what is trained of it: its second bias stays zero, for a program has one."""
    names = {f"weight_ih_l0{suffix}": W, f"weight_hh_l0{suffix}": U, f"bias_ih_l0{suffix}": b}
    second = getattr(net, f"bias_hh_l0{suffix}").requires_grad_(False)
    with torch.no_grad():
        second.zero_()
        for name, value in names.items():
            getattr(net, name).copy_(value)
    return [getattr(net, name) for name in names]


class Sequences(Peer):
    """Sentences of one length; time is the first dimension."""

    def start(self) -> None:
        """The layer on cuDNN in place of its matrices."""
        p = self.parameters
        W, U, b = (self.gates(p[name]) for name in "WUb")
        self.net = self.layer(W.shape[1], U.shape[1]).to(self.device)
        own = take_weights(self.net, "", W, U, b)
        self.dense = [*own, p["V"], p["b_v"]]

    def gates(self, value: Tensor) -> Tensor:
        """Rows in PyTorch's order."""
        return cudnn_gates(value)

    def layer(self, inputs: int, hidden: int) -> nn.RNNBase:
        """What runs along the sentence."""
        return nn.LSTM(inputs, hidden)

    def read(self, samples: Sequence[Sample]) -> None:
        """Words, and labels where there are some."""
        self.words = np.array([[word["form"] for word in sample["words"]] for sample in samples])
        self.labels = np.array([sample.get("label", 0) for sample in samples])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Words of the batch, step by step."""
        words = np.ascontiguousarray(self.words[numbers].T)
        rows, places = unique(words.ravel())
        given = places.view(words.shape), torch.from_numpy(self.labels[numbers]), torch.from_numpy(words)
        return Batch(len(numbers), {"E": rows}, given)

    def states(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """[steps, samples, hidden]"""
        places = batch.given[0]
        x = rows["E"].index_select(0, places.reshape(-1)).view(*places.shape, -1)
        return self.net(x)[0]

    def logits(self, states: Tensor) -> Tensor:
        """Of states [.., hidden]."""
        return torch.addmm(self.parameters["b_v"], states, self.parameters["V"].t())


class LstmClassifier(Sequences):
    """`examples/lstm_classifier.dn`."""

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """Of the last state."""
        logits = self.logits(self.states(batch, rows)[-1])
        return cross_entropy(logits, batch.given[1], reduction="sum") / batch.samples


class RnnClassifier(LstmClassifier):
    """`benchmarks/applications/rnn.dn`."""

    def gates(self, value: Tensor) -> Tensor:
        """There is one."""
        return value

    def layer(self, inputs: int, hidden: int) -> nn.RNNBase:
        """A vanilla RNN."""
        return nn.RNN(inputs, hidden)


class LayerNormLstm(LstmClassifier):
    """`examples/layer_norm_lstm.dn`, step by step: cuDNN has no such layer."""

    def start(self) -> None:
        """All parameters as they are."""

    def states(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The last one, [1, samples, hidden]."""
        p, places = self.parameters, batch.given[0]

        def normal(x: Tensor, gain: Tensor) -> Tensor:
            return layer_norm(x, gain.shape, gain, eps=1e-5)

        by_words = normal(rows["E"] @ p["W"].t(), p["gain_w"]) + p["b"]
        h = c = by_words.new_zeros(places.shape[1], p["b_c"].shape[0])
        for step in by_words.index_select(0, places.reshape(-1)).view(*places.shape, -1):
            i, o, u, f = (step + normal(h @ p["U"].t(), p["gain_u"])).chunk(4, 1)
            c = sigmoid(i) * tanh(u) + sigmoid(f) * c
            h = sigmoid(o) * tanh(normal(c, p["gain_c"]) + p["b_c"])
        return h[None]


class LanguageModel(Sequences):
    """`examples/language_model.dn`: every word but the last predicts the next one."""

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """All words but the first."""
        logits = self.logits(self.states(batch, rows)[:-1].flatten(0, 1))
        return cross_entropy(logits, batch.given[2][1:].reshape(-1), reduction="sum") / batch.samples
