"""Parameters that lie in memory with gaps, and the optimizers that do not see these.

In: PyTorch's optimizers, before every step. Out: DiagnosticError for a fused one with such a parameter. Its
kernel for a CPU goes through memory number by number, as many as a parameter has, whatever the strides are:
where columns are padded it would change other numbers, with other gradients, without a word. On a GPU PyTorch
refuses such a parameter, in words that say nothing of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dnc.diagnostics import fail


@cache
def refuse_fused_steps_on_gaps() -> None:
    """From now on, in this process."""
    register_optimizer_step_pre_hook(_check)


def _check(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """DiagnosticError if an optimizer is fused and one of its parameters lies with gaps."""
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and has_gaps(parameter):
                raise fail(
                    f"a parameter of {list(parameter.shape)} lies in memory with gaps, as the kernel has it, "
                    "and PyTorch's fused optimizers allow for none",
                    "make the optimizer with foreach=True, or without fused=True",
                )


def has_gaps(tensor: Tensor) -> bool:
    """Whether there is memory between the elements that is none of theirs."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and last + 1 > tensor.numel()
