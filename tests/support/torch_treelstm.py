"""The model of `examples/treelstm.dn` in PyTorch, written without anything of dnc.

In: nested trees as decoded JSON (`{"left", "right", "label"}`, `{"word", "label"}`), the numbers of
the words, and parameters by name (those of the program: E, W, b_w, U, b_u, V, b_v). Out: losses,
updates and hits. The loss is the mean over trees of the sum over all vertices of the cross entropy.

Three ways to run it, with one result: `recursive_loss` follows the definition vertex by vertex;
`Twin.step` runs a batch level by level, with indices made ahead by `Trees.batch`; `Graph` replays one
fixed batch as a CUDA graph. AdaGrad (Duchi et al. 2011) starts at zero and adds its epsilon of 1e-10
to the root. Of the table only the rows that occur are touched: the others have no gradient.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

Ints = NDArray[np.int64]
Tree = Mapping[str, Any]

TABLE = "E"
DENSE = ("W", "b_w", "U", "b_u", "V", "b_v")
EPSILON = 1e-10
WARM_UP = 3


def read_trees(path: str | Path) -> list[Tree]:
    """The trees of a JSONL file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


# ---- the definition -----------------------------------------------------------------------------


def encode(parameters: Mapping[str, Tensor], words: Mapping[str, int], tree: Tree) -> tuple[Tensor, Tensor]:
    """h and c of a vertex (Tai et al. 2015, section 3.2)."""
    if "word" in tree:
        x = parameters["E"][words.get(tree["word"], 0)]
        i, o, u = (parameters["W"] @ x + parameters["b_w"]).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
    else:
        (left, left_c), (right, right_c) = (
            encode(parameters, words, tree[side]) for side in ("left", "right")
        )
        gates = parameters["U"] @ torch.cat([left, right]) + parameters["b_u"]
        i, o, u, fl, fr = gates.chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(fl) * left_c + torch.sigmoid(fr) * right_c
    return torch.sigmoid(o) * torch.tanh(c), c


def vertices(tree: Tree) -> Iterable[Tree]:
    """All vertices below and with `tree`."""
    if "left" in tree:
        yield from vertices(tree["left"])
        yield from vertices(tree["right"])
    yield tree


def recursive_loss(
    parameters: Mapping[str, Tensor], words: Mapping[str, int], trees: Sequence[Tree]
) -> Tensor:
    """The loss of a batch by its definition: slow, and every vertex is encoded for itself."""
    total = torch.zeros(())
    for tree in trees:
        for vertex in vertices(tree):
            logits = parameters["V"] @ encode(parameters, words, vertex)[0] + parameters["b_v"]
            total = total + cross_entropy(logits, torch.tensor(vertex["label"]))
    return total / len(trees)


# ---- trees as arrays, batches as indices --------------------------------------------------------


@attrs.frozen(eq=False)
class Level:
    """The inner vertices of one height.

    leaves: states of leaves that come in here. gather: rows of (those leaves, waiting states) in a
    new order: left and right child in turn of each of `count` vertices, then what waits on.
    live: vertices with a parent; they stand before the others and wait for it.
    """

    leaves: int
    count: int
    live: int
    gather: Tensor


@attrs.frozen(eq=False)
class Batch:
    """A batch with all indices.

    rows: the table's rows that occur, each once. words: int64[leaves], numbers in `rows`.
    labels: of leaves, then of each level's vertices. roots: numbers in that order.
    """

    samples: int
    rows: Tensor
    words: Tensor
    levels: tuple[Level, ...]
    alone: int
    labels: Tensor
    roots: Tensor

    def to(self, device: str) -> Batch:
        """The same batch on a device."""
        levels = (attrs.evolve(level, gather=level.gather.to(device)) for level in self.levels)
        return attrs.evolve(
            self,
            rows=self.rows.to(device),
            words=self.words.to(device),
            levels=tuple(levels),
            labels=self.labels.to(device),
            roots=self.roots.to(device),
        )


class Trees:
    """Trees as flat arrays over all vertices, children before parents."""

    def __init__(self, trees: Sequence[Tree], words: Mapping[str, int]) -> None:
        self.samples = len(trees)
        token: list[int] = []
        label: list[int] = []
        left: list[int] = []
        right: list[int] = []
        height: list[int] = []

        def add(tree: Tree) -> int:
            below = (-1, -1)
            if "left" in tree:
                below = (add(tree["left"]), add(tree["right"]))
            left.append(below[0])
            right.append(below[1])
            height.append(1 + max(height[below[0]], height[below[1]]) if "left" in tree else 0)
            token.append(-1 if "left" in tree else words.get(tree["word"], 0))
            label.append(tree["label"])
            return len(label) - 1

        ends = [add(tree) + 1 for tree in trees]
        self.begin = np.array([0, *ends])
        self.token, self.label, self.left = np.array(token), np.array(label), np.array(left)
        self.right, self.height = np.array(right), np.array(height)
        # The height at which a vertex is consumed: its parent's; for a root one that no vertex has.
        self.consumed = np.full(len(label), np.iinfo(np.int64).max)
        inner = np.flatnonzero(self.left >= 0)
        self.consumed[self.left[inner]] = self.consumed[self.right[inner]] = self.height[inner]

    def batch(self, samples: Sequence[int] | Ints) -> Batch:
        """The indices of a batch."""
        spans = [np.arange(self.begin[sample], self.begin[sample + 1]) for sample in samples]
        rows = np.concatenate(spans)
        # By height; among equals what is consumed first, and roots last.
        rows = rows[np.lexsort((self.consumed[rows], self.height[rows]))]
        heights = self.height[rows]
        bounds = np.searchsorted(heights, np.arange(heights[-1] + 2))
        leaves = rows[: bounds[1]]
        arrivals = np.searchsorted(self.consumed[leaves], np.arange(heights[-1] + 2))
        place = np.full(len(self.label), -1)
        waiting = np.zeros(0, np.int64)
        levels = []
        for level in range(1, heights[-1] + 1):
            new = rows[bounds[level] : bounds[level + 1]]
            arrived = leaves[arrivals[level] : arrivals[level + 1]]
            here = np.concatenate([arrived, waiting])
            place[here] = np.arange(len(here))
            children = np.stack([self.left[new], self.right[new]], 1).ravel()
            waiting = waiting[self.consumed[waiting] != level]
            gather = place[np.concatenate([children, waiting])]
            live = new[self.consumed[new] < np.iinfo(np.int64).max]
            waiting = np.concatenate([waiting, live])
            levels.append(Level(len(arrived), len(new), len(live), torch.from_numpy(gather)))
        place[rows] = np.arange(len(rows))
        unique, words = np.unique(self.token[leaves], return_inverse=True)
        return Batch(
            len(samples),
            torch.from_numpy(unique),
            torch.from_numpy(words.ravel()),
            tuple(levels),
            len(leaves) - int(arrivals[-1]),
            torch.from_numpy(self.label[rows]),
            torch.from_numpy(place[np.array([span[-1] for span in spans])]),
        )


# ---- level by level -----------------------------------------------------------------------------


def level_logits(parameters: Mapping[str, Tensor], x: Tensor, batch: Batch) -> Tensor:
    """Logits of all vertices in the order of `batch.labels`; x: the embeddings of `batch.rows`.

    One product for all gates of a level. A state is h and c side by side.
    """
    hidden = parameters["V"].shape[1]
    z = torch.addmm(parameters["b_w"], x.index_select(0, batch.words), parameters["W"].t())
    io, u = torch.sigmoid(z[:, : 2 * hidden]), torch.tanh(z[:, 2 * hidden :])
    c = io[:, :hidden] * u
    h = io[:, hidden:] * torch.tanh(c)
    outputs = [h]
    arriving = torch.cat([h, c], 1).split([*(level.leaves for level in batch.levels), batch.alone])
    waiting: Tensor | None = None
    for level, leaves in zip(batch.levels, arriving, strict=False):
        states = leaves if waiting is None else torch.cat([leaves, waiting])
        taken = states.index_select(0, level.gather)
        below, rest = taken.split([2 * level.count, len(taken) - 2 * level.count])
        pairs = below.view(level.count, 2, 2 * hidden)
        both = pairs[:, :, :hidden].reshape(level.count, 2 * hidden)
        z = torch.addmm(parameters["b_u"], both, parameters["U"].t())
        io, u, forget = z.split([2 * hidden, hidden, 2 * hidden], 1)
        io = torch.sigmoid(io)
        kept = torch.sigmoid(forget).view(level.count, 2, hidden) * pairs[:, :, hidden:]
        c = io[:, :hidden] * torch.tanh(u) + kept[:, 0] + kept[:, 1]
        h = io[:, hidden:] * torch.tanh(c)
        outputs.append(h)
        waiting = torch.cat([rest, torch.cat([h, c], 1)[: level.live]])
    return torch.addmm(parameters["b_v"], torch.cat(outputs), parameters["V"].t())


class Twin:
    """Parameters, optimizer state and updates. optimizer: "sgd" or "adagrad"."""

    def __init__(
        self,
        parameters: Mapping[str, NDArray[np.float32]],
        optimizer: str,
        learning_rate: float,
        device: str = "cpu",
    ) -> None:
        if optimizer not in ("sgd", "adagrad"):
            raise ValueError(f"unknown optimizer {optimizer}")
        self.parameters = {
            name: torch.tensor(value, dtype=torch.float32, device=device)
            for name, value in parameters.items()
        }
        self.dense = [self.parameters[name].requires_grad_() for name in DENSE]
        self.squares = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.optimizer, self.learning_rate, self.device = optimizer, learning_rate, device

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and the embeddings it was computed from."""
        x = self.parameters[TABLE].index_select(0, batch.rows).requires_grad_()
        logits = level_logits(self.parameters, x, batch)
        return cross_entropy(logits, batch.labels, reduction="sum") / batch.samples, x

    def step(self, batch: Batch) -> Tensor:
        """One update; the loss before it, still on the device."""
        loss, x = self.loss(batch)
        *dense, rows = torch.autograd.grad(loss, [*self.dense, x])
        with torch.no_grad():
            self._update(dense, rows, x, batch.rows)
        return loss.detach()

    def _update(self, dense: list[Tensor], gradient: Tensor, x: Tensor, rows: Tensor) -> None:
        table, rate = self.parameters[TABLE], self.learning_rate
        if self.optimizer == "sgd":
            torch._foreach_add_(self.dense, dense, alpha=-rate)
            table.index_copy_(0, rows, x - rate * gradient)
            return
        squares = [self.squares[name] for name in DENSE]
        torch._foreach_addcmul_(squares, dense, dense, 1.0)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(self.dense, dense, roots, -rate)
        sums = self.squares[TABLE].index_select(0, rows) + gradient * gradient
        self.squares[TABLE].index_copy_(0, rows, sums)
        table.index_copy_(0, rows, x - rate * gradient / (sums.sqrt() + EPSILON))

    def root_hits(self, batch: Batch) -> int:
        """How many roots are classified right."""
        with torch.no_grad():
            x = self.parameters[TABLE].index_select(0, batch.rows)
            logits = level_logits(self.parameters, x, batch).index_select(0, batch.roots)
            return int((logits.argmax(1) == batch.labels.index_select(0, batch.roots)).sum())

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The parameters by name."""
        return {name: value.detach().cpu().numpy() for name, value in self.parameters.items()}


# ---- one fixed batch as a CUDA graph ------------------------------------------------------------


class Graph:
    """Forward, backward and update of one fixed batch, replayed without the host; CUDA only."""

    def __init__(self, twin: Twin, batch: Batch) -> None:
        self._kept = twin, batch  # a replay reads their memory
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
            for _ in range(WARM_UP):
                twin.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.loss = twin.step(batch)

    def step(self) -> None:
        """One update with the fixed batch, asynchronously; its loss comes to be in `loss`."""
        self._graph.replay()


def shuffled_batches(samples: int, size: int, seed: int) -> list[Ints]:
    """Sample numbers of an epoch's batches."""
    order = np.random.default_rng(seed).permutation(samples)
    return [order[begin : begin + size] for begin in range(0, samples, size)]
