"""Models as people write them in PyTorch, whose weights the maps in examples/weights name.

Each takes one sample with numbers for words, and gives the logits that the example's outputs come
from: of the root, or [words, tags].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Sample = Mapping[str, Any]
Sizes = Mapping[str, int]


class Recurrent(nn.Module):
    """A layer of PyTorch over the words; its last state is classified."""

    def __init__(self, kind: str, layer: nn.Module, sizes: Sizes) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.add_module(kind, layer)
        self.output = nn.Linear(sizes["hidden"], sizes["classes"])

    def forward(self, sample: Sample) -> Tensor:
        words = torch.tensor([[word["form"] for word in sample["words"]]])
        states, _ = getattr(self, self.kind)(self.embedding(words))
        return self.output(states[0, -1])


class Tagger(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.lstm = nn.LSTM(sizes["embed"], sizes["hidden"], bidirectional=True, batch_first=True)
        self.output = nn.Linear(2 * sizes["hidden"], sizes["tags"])

    def forward(self, sample: Sample) -> Tensor:
        words = torch.tensor([[word["form"] for word in sample["words"]]])
        return self.output(self.lstm(self.embedding(words))[0][0])


class ChoGru(nn.Module):
    """The reset gate before the product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.embedding = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.inputs = nn.Linear(sizes["embed"], 3 * hidden)
        self.states = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, sizes["classes"])

    def forward(self, sample: Sample) -> Tensor:
        of_r, of_z, of_n = self.states.weight.chunk(3)
        h = torch.zeros(of_r.shape[0])
        for word in sample["words"]:
            xr, xz, xn = self.inputs(self.embedding.weight[word["form"]]).chunk(3)
            r, z = torch.sigmoid(xr + of_r @ h), torch.sigmoid(xz + of_z @ h)
            h = (1 - z) * torch.tanh(xn + of_n @ (r * h)) + z * h
        return self.output(h)


class TreeLstm(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.embedding = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.leaf = nn.Linear(sizes["embed"], 3 * hidden)
        self.node = nn.Linear(2 * hidden, 5 * hidden)
        self.output = nn.Linear(hidden, sizes["classes"])

    def forward(self, sample: Sample) -> Tensor:
        return self.output(self.encode(sample)[0])

    def encode(self, tree: Sample) -> tuple[Tensor, Tensor]:
        if "word" in tree:
            i, o, u = self.leaf(self.embedding.weight[tree["word"]]).chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
        else:
            left, right = self.encode(tree["left"]), self.encode(tree["right"])
            i, o, u, fl, fr = self.node(torch.cat([left[0], right[0]])).chunk(5)
            c = torch.sigmoid(i) * torch.tanh(u)
            c = c + torch.sigmoid(fl) * left[1] + torch.sigmoid(fr) * right[1]
        return torch.sigmoid(o) * torch.tanh(c), c


class DglCell(nn.Module):
    """`TreeLSTMCell` of the examples of DGL, vertex by vertex."""

    def __init__(self, x_size: int, h_size: int) -> None:
        super().__init__()
        self.W_iou = nn.Linear(x_size, 3 * h_size, bias=False)
        self.U_iou = nn.Linear(2 * h_size, 3 * h_size, bias=False)
        self.b_iou = nn.Parameter(torch.randn(1, 3 * h_size) / 4)
        self.U_f = nn.Linear(2 * h_size, 2 * h_size)

    def apply_gates(self, iou: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = (iou + self.b_iou).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + c
        return torch.sigmoid(o) * torch.tanh(c), c


class DglTreeLstm(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.cell = DglCell(sizes["embed"], sizes["hidden"])
        self.linear = nn.Linear(sizes["hidden"], sizes["classes"])

    def forward(self, sample: Sample) -> Tensor:
        return self.linear(self.encode(sample)[0])[0]

    def encode(self, tree: Sample) -> tuple[Tensor, Tensor]:
        if "word" in tree:
            iou = self.cell.W_iou(self.embedding.weight[tree["word"]][None])
            return self.cell.apply_gates(iou, torch.zeros(()))
        children = [self.encode(tree[side]) for side in ("left", "right")]
        h = torch.cat([state for state, _ in children], 1)
        forget = torch.sigmoid(self.cell.U_f(h)).chunk(2, 1)
        c = sum(gate * own for gate, (_, own) in zip(forget, children, strict=True))
        return self.cell.apply_gates(self.cell.U_iou(h), c)


FOREIGN: dict[str, tuple[str, Callable[[Sizes], nn.Module]]] = {
    "lstm_classifier": (
        "lstm_classifier",
        lambda s: Recurrent("lstm", nn.LSTM(s["embed"], s["hidden"], batch_first=True), s),
    ),
    "lstm2": ("lstm2", lambda s: Recurrent("lstm", nn.LSTM(s["embed"], s["hidden"], 2, batch_first=True), s)),
    "torch_gru": (
        "torch_gru",
        lambda s: Recurrent("gru", nn.GRU(s["embed"], s["hidden"], batch_first=True), s),
    ),
    "bilstm_tagger": ("bilstm_tagger", Tagger),
    "gru_classifier": ("gru_classifier", ChoGru),
    "treelstm": ("treelstm", TreeLstm),
    "treelstm_dgl": ("treelstm", DglTreeLstm),
}
"""By map: the example it is for, and the model whose names it has."""
