"""A batch as a node of PyTorch's graph.

In: what a batch pulls, and the parameters. Out: its loss and its pushed values, with their gradients.
Guaranteed: a program that pushes nothing takes one launch for forward and backward, any other one
two, or three where running statistics have moved between; several batches may be forward before the first
goes backward, and gradients are those of the statistics that forward used; a tensor that was changed between
is an error of PyTorch, and so is differentiating twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from dnc.runtime.phases import BOTH, FORWARD_ONLY, TRAIN
from dnc.torch.launches import BatchOf, Gradients, Launches, Statistics

LOSS = "loss"
NOTHING = torch.empty(0)  # saved where nothing else is
# Whether the backward() that runs retains its graph; a PyTorch that does not tell may.
_graph_is_kept: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)


@attrs.define(eq=False)
class Call:
    """One batch. pulled, weights: its tensors, in order, of which the weights are known. outputs: what comes
    out, in order.

    statistics: what forward computed with, where backward computes it again.
    """

    launches: Launches
    batch: BatchOf
    pulled: tuple[str, ...]
    weights: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    sparse: bool
    statistics: Statistics | None = attrs.field(default=None, init=False)

    @property
    def at_once(self) -> bool:
        """Whether gradients are made before they are asked for: nothing but the loss comes out."""
        return self.outputs == (LOSS,)

    def _vectors(self, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return dict(zip(self.pulled, tensors, strict=False))

    def forward(self, tensors: tuple[Tensor, ...], learns: bool) -> tuple[Tensor, ...]:
        """Loss and pushed values, without gradients. learns: whether `backward` may follow: then the batch is
        encoded for it as well, once."""
        mode = BOTH if learns else FORWARD_ONLY
        launched = self.launches.run(self.batch, mode, self._vectors(tensors), self.weights)
        pushed = [name for name in self.outputs if name != LOSS]
        found = self.launches.values(launched, pushed)
        if LOSS in self.outputs:
            found[LOSS] = self.launches.loss(launched)
        return tuple(found[name] for name in self.outputs)

    def forward_and_backward(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Gradients]:
        """The loss, and its gradients."""
        launched = self.launches.run(self.batch, TRAIN, self._vectors(tensors), self.weights)
        return self.launches.loss(launched), self.launches.gradients(launched)

    def backward(self, tensors: tuple[Tensor, ...], incoming: tuple[Tensor | None, ...]) -> Gradients:
        """The gradients, given those of what came out. The first time running statistics move."""
        launches, seen = self.launches, self.statistics
        pushed = dict(zip(self.outputs, incoming, strict=True))
        loss = pushed.pop(LOSS, None)
        given = self._vectors(tensors), self.weights, pushed, loss
        still = attrs.evolve(self.batch, moves=False)
        if seen is None or seen.moves == launches.moves:
            launched = launches.run(self.batch, BOTH, *given)
        else:
            # From where they are now they move by a launch of their own, in front of that of the gradients.
            if self.batch.moves:
                launches.run(self.batch, BOTH, *given)
            launched = launches.run(still, BOTH, *given, seen.values)
        self.batch = still
        return launches.gradients(launched)

    def sort(
        self, gradients: Gradients, needed: tuple[bool, ...], scale: Tensor | None, once: bool
    ) -> list[Tensor | None]:
        """The gradients of those tensors that need one, in order. once: whether nobody can ask again."""
        names = (*self.pulled, *self.weights)
        wanted = {name for name, needs in zip(names, needed, strict=True) if needs}
        found = gradients.of(
            [name for name in self.weights if name in wanted],
            [name for name in self.pulled if name in wanted],
            scale,
            self.sparse,
            once,
        )
        return [found.get(name) for name in names]


class Batch(torch.autograd.Function):
    """The node. Its inputs are a `Call`, pulled vectors, parameters."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Starts the launch, one for both directions where that is possible."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        if call.at_once:
            loss, ctx.gradients = call.forward_and_backward(tensors)
            ctx.save_for_backward(NOTHING)
            return (loss,)
        ctx.save_for_backward(*tensors)
        found = call.forward(tensors, True)
        call.statistics = call.launches.statistics()
        return found

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of pulled vectors and parameters."""
        call, needed = ctx.call, ctx.needs_input_grad[1:]
        if all(each is None for each in incoming):
            return (None,) * (1 + len(needed))
        saved = ctx.saved_tensors  # PyTorch's error where the graph was freed by another backward()
        with torch.no_grad(), call.launches.model.turn.lock:
            if call.at_once:
                found = call.sort(ctx.gradients, needed, incoming[0], not _graph_is_kept())
            else:
                found = call.sort(call.backward(saved, incoming), needed, None, True)
                if not _graph_is_kept():
                    call.batch.made.forget()
        if torch.is_grad_enabled():  # create_graph=True
            found = [None if each is None else Once.apply(each.requires_grad_()) for each in found]
        return (None, *found)


class Once(torch.autograd.Function):
    """A gradient that has none of its own."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Tensor:
        """RuntimeError."""
        raise RuntimeError("a program of dnc can be differentiated once; its gradients have no graph")
