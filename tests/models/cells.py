"""What the references share: cells of the papers in PyTorch, and the form of a result.

Written from the equations of the papers, vertex by vertex, without anything of dnc. Parameters are
those of the program, by name; the parts of a matrix with several gates stand in the order i, o, u, f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from torch import Tensor, sigmoid, tanh
from torch.nn.functional import log_softmax

Parameters = SimpleNamespace
Sample = Mapping[str, Any]
State = tuple[Tensor, Tensor]
Dropout = Callable[[Sample, int, Tensor, float], Tensor]
"""A vertex, the number of the dropout in the program, what may be dropped, how probably."""


@attrs.frozen
class Choice:
    """An output that is the class with the largest of these logits."""

    logits: Tensor


@attrs.frozen
class Result:
    """What a model says about a sample. outputs: by name a tensor, a choice, or one for every vertex.

    followed: by running parameter the rate and what it follows: (number in its stack, a value).
    """

    loss: Tensor
    outputs: Mapping[str, Tensor | Choice | Sequence[Tensor | Choice]]
    followed: Mapping[str, tuple[float, Sequence[tuple[int, Tensor]]]] = attrs.field(factory=dict)


def nothing_dropped(vertex: Sample, site: int, x: Tensor, rate: float) -> Tensor:
    """Dropout in evaluation."""
    return x


def zeros(*shape: int) -> Tensor:
    """What an absent vertex gives."""
    return torch.zeros(shape, dtype=torch.float64)


def total(terms: Iterable[Tensor]) -> Tensor:
    """Their sum; zero if there are none."""
    return sum(terms, zeros())


def surprise(logits: Tensor, label: int | None) -> Tensor:
    """The cross-entropy; nothing where there is no label."""
    return zeros() if label is None else -log_softmax(logits, 0)[label]


def lstm(W: Tensor, U: Tensor, b: Tensor, x: Tensor, state: State) -> State:
    """Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000)."""
    h, c = state
    i, o, u, f = (W @ x + U @ h + b).chunk(4)
    c = sigmoid(i) * tanh(u) + sigmoid(f) * c
    return sigmoid(o) * tanh(c), c


def lstm_run(W: Tensor, U: Tensor, b: Tensor, inputs: Iterable[Tensor], first: State | None = None) -> Any:
    """The states after each of the inputs; it starts at zero unless `first` is given."""
    state, states = first or (zeros(U.shape[1]), zeros(U.shape[1])), []
    for x in inputs:
        state = lstm(W, U, b, x, state)
        states.append(state)
    return states


def gru(W: Tensor, U: Tensor, C: Tensor, b: Tensor, x: Tensor, h: Tensor) -> Tensor:
    """Cho et al. (2014), equations 5 to 8; z keeps the old state. W holds r, z, n; U holds r, z."""
    wr, wz, wn = (W @ x + b).chunk(3)
    ur, uz = (U @ h).chunk(2)
    r, z = sigmoid(wr + ur), sigmoid(wz + uz)
    return z * h + (1 - z) * tanh(wn + C @ (r * h))


def torch_gru(W: Tensor, U: Tensor, b: Tensor, d: Tensor, x: Tensor, h: Tensor) -> Tensor:
    """The equations in the documentation of nn.GRU; all have the gates r, z, n."""
    (xr, xz, xn), (hr, hz, hn) = (W @ x + b).chunk(3), (U @ h + d).chunk(3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    return (1 - z) * tanh(xn + r * hn) + z * h


def tree_leaf(W: Tensor, b: Tensor, x: Tensor) -> State:
    """A leaf of a binary Tree-LSTM: it has no children, thus no forget gates."""
    i, o, u = (W @ x + b).chunk(3)
    c = sigmoid(i) * tanh(u)
    return sigmoid(o) * tanh(c), c


def tree_node(U: Tensor, b: Tensor, left: State, right: State) -> State:
    """An inner vertex without a word (Tai et al. 2015, equations 9 to 14, N = 2)."""
    i, o, u, by_left, by_right = (U @ torch.cat([left[0], right[0]]) + b).chunk(5)
    c = sigmoid(i) * tanh(u) + sigmoid(by_left) * left[1] + sigmoid(by_right) * right[1]
    return sigmoid(o) * tanh(c), c


def child_sum(p: Parameters, tree: Sample, found: dict[int, Tensor] | None = None) -> State:
    """A child-sum Tree-LSTM (Tai et al. 2015, equations 2 to 8) with the parameters W, U, b, Wf, Uf, bf.

    found: gets h of every vertex by the vertex's id.
    """
    x = p.E[tree["word"]]
    children = [child_sum(p, child, found) for child in tree["children"]]
    h_sum = sum((h for h, _ in children), zeros(p.U.shape[1]))
    i, o, u = (p.W @ x + p.U @ h_sum + p.b).chunk(3)
    c = sigmoid(i) * tanh(u)
    for child_h, child_c in children:
        c = c + sigmoid(p.Wf @ x + p.Uf @ child_h + p.bf) * child_c
    h = sigmoid(o) * tanh(c)
    if found is not None:
        found[id(tree)] = h
    return h, c


def postorder(tree: Sample, *fields: str) -> list[Sample]:
    """All vertices, children before parents; `fields` hold a child, a list of them, or nothing."""
    below = [child for field in fields for child in _children(tree.get(field))]
    return [vertex for child in below for vertex in postorder(child, *fields)] + [tree]


def _children(value: Any) -> Sequence[Sample]:
    return value if isinstance(value, list) else [] if value is None else [value]
