"""What all peers share: parameters on a device, and a step of SGD.

In: parameters by name as NumPy arrays, samples as decoded JSON with numbers for words and labels. Out:
losses, updates. The loss is the mean over the samples of the sum over what a sample predicts. Of a table
only the rows that a batch reads are touched, as an engineer would do it who trains embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, sigmoid, tanh

Sample = Mapping[str, Any]
Arrays = Mapping[str, NDArray[np.float32]]


@attrs.frozen(eq=False)
class Batch:
    """samples: how many. tables: by table the rows that occur, each once. given: what else a peer needs.

    Tensors in `given` go to the device; `lengths` of packed sequences stay on the host, where PyTorch
    wants them.
    """

    samples: int
    tables: dict[str, Tensor]
    given: Any

    def to(self, device: str) -> Batch:
        """The same batch on a device."""
        tables = {name: rows.to(device) for name, rows in self.tables.items()}
        return Batch(self.samples, tables, _moved(self.given, device))


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_moved(each, device) for each in value)
    if hasattr(value, "to"):
        return value.to(device)
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        return attrs.evolve(value, **{name: _moved(each, device) for name, each in fields.items()})
    return value


class Peer:
    """See the module. TABLES: parameters of which rows are read."""

    TABLES: tuple[str, ...] = ("E",)

    def __init__(self, parameters: Arrays, device: str, learning_rate: float) -> None:
        self.device, self.learning_rate = device, learning_rate
        self.parameters = {name: torch.tensor(value, device=device) for name, value in parameters.items()}
        self.dense = [value for name, value in self.parameters.items() if name not in self.TABLES]
        self.start()
        for value in self.dense:
            value.requires_grad_()

    def start(self) -> None:
        """What a peer makes of its parameters; it may replace some in `dense`."""

    def read(self, samples: Sequence[Sample]) -> None:
        """Takes the data set, from which `batch` chooses."""
        self.samples = samples

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The indices of a batch, on the host."""
        raise NotImplementedError

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The loss; rows: by table the rows that the batch reads."""
        raise NotImplementedError

    def step(self, batch: Batch) -> Tensor:
        """One update; the loss before it, still on the device."""
        loss, rows, gradients = self._gradients(batch)
        with torch.no_grad():
            dense, of_rows = gradients[: len(self.dense)], gradients[len(self.dense) :]
            torch._foreach_add_(self.dense, dense, alpha=-self.learning_rate)
            for (name, values), gradient in zip(rows.items(), of_rows, strict=True):
                changed = values - self.learning_rate * gradient
                self.parameters[name].index_copy_(0, batch.tables[name], changed)
        return loss.detach()

    def slope(self, batch: Batch) -> tuple[float, float]:
        """The loss, and by how much it falls with the learning rate: the square of its gradient's norm."""
        loss, _, gradients = self._gradients(batch)
        return float(loss.detach()), sum(float((each * each).sum()) for each in gradients)

    def _gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor, ...]]:
        """The loss, the rows it was computed from, gradients of `dense` and of those rows."""
        rows = {
            name: self.parameters[name].index_select(0, chosen).requires_grad_()
            for name, chosen in batch.tables.items()
        }
        loss = self.loss(batch, rows)
        # A batch may leave a matrix out: of single words, or without a rare one.
        wanted = [*self.dense, *rows.values()]
        return loss, rows, torch.autograd.grad(loss, wanted, materialize_grads=True)


def unique(numbers: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Tensor, Tensor]:
    """The rows that occur, each once, and for every number its place among them."""
    rows, places = np.unique(np.asarray(numbers, np.int64), return_inverse=True)
    return torch.from_numpy(rows), torch.from_numpy(places.ravel())


def tree_leaf(z: Tensor, hidden: int) -> Tensor:
    """h and c side by side of leaves of a Tree-LSTM; z: i, o, u."""
    io, u = sigmoid(z[:, : 2 * hidden]), tanh(z[:, 2 * hidden :])
    c = io[:, :hidden] * u
    return torch.cat([io[:, hidden:] * tanh(c), c], 1)


def tree_node(W: Tensor, b: Tensor, pairs: Tensor) -> Tensor:
    """h and c side by side of inner vertices of a Tree-LSTM; pairs: [vertices, 2, 2 * hidden]."""
    count, hidden = len(pairs), pairs.shape[2] // 2
    z = torch.addmm(b, pairs[:, :, :hidden].reshape(count, 2 * hidden), W.t())
    io, u, forget = z.split([2 * hidden, hidden, 2 * hidden], 1)
    io = sigmoid(io)
    kept = sigmoid(forget).view(count, 2, hidden) * pairs[:, :, hidden:]
    c = io[:, :hidden] * tanh(u) + kept[:, 0] + kept[:, 1]
    return torch.cat([io[:, hidden:] * tanh(c), c], 1)
