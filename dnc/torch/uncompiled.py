"""Methods that `torch.compile` leaves alone: it compiles what stands around them.

In: a method. Out: the same, which the compiler does not look into. Guaranteed: nothing of the compiler is
imported, which takes seconds, unless somebody has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(method: Callable[P, T]) -> Callable[P, T]:
    """A method that runs as it is, with all that it calls."""
    disabled: list[Callable[P, T]] = []

    @wraps(method)
    def called(*arguments: P.args, **options: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return method(*arguments, **options)
        if not disabled:
            from torch.compiler import disable

            disabled.append(disable(method))
        return disabled[0](*arguments, **options)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]  # what `disable` sets
    return called
