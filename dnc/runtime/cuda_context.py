"""Methods that call the driver: within them the GPU's context is current in whatever thread calls.

In: methods of something with a `device`. Out: the same methods. Guaranteed: behind them the thread has
the context that it had, that of another GPU perhaps, as PyTorch chose it, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from dnc.runtime.cuda_driver import Device


class OnDevice(Protocol):
    """What calls the driver."""

    @property
    def device(self) -> Device:
        """Where its memory is."""


P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=OnDevice)


def in_context(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], T]:
    """See the module."""

    @wraps(method)
    def inside(self: D, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.device.inside():
            return method(self, *arguments, **options)

    return inside
