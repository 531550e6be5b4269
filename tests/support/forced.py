"""What an encoder decides by the sizes of batches, forced: for tests of all that it may choose.

In: decisions. Out: a context in which every encoder takes them. A decision is a truth value, or a function
from how many rows the batches have, [batches], to one for each; None leaves it to the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from dnc.passes.share import Share
from dnc.runtime.encoder.early import EarlyChoice
from dnc.runtime.encoder.parts import PartBurdens
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.scopes import Scopes, Sharing
from dnc.runtime.encoder.shares import Shapes
from dnc.runtime.encoder.tail import Tail

Numbers = np.ndarray[Any, Any]
Decision = bool | Callable[[Numbers], Numbers] | None


@contextmanager
def forced(
    few: Decision = None,
    apart: Decision = None,
    alike: bool | None = None,
    added: bool | None = None,
    shared: Decision = None,
    groups: int | None = None,
    parts: bool | None = None,
    early: bool | tuple[int, ...] | None = None,
) -> Iterator[None]:
    """few: whether weight gradients are `outer` instructions. apart: whether the deltas of tokens are added
    up before products (`dnc/passes/reassociate.py`). alike: whether leaves of one word share a row. added:
    whether workers add up partial sums before they write them (`dnc/passes/plan_reductions.py`). shared:
    whether the grid shares out all phases that it can (`dnc/runtime/encoder/scopes.py`). groups: of tokens in
    tiles of products, for encoders that are made meanwhile. parts: whether parts of the recursion have
    replicas of their own (`dnc/runtime/encoder/parts.py`). early: whether replicas without rows add up weight
    gradients of levels that have ended, where they can (`dnc/runtime/encoder/early.py`); or the last level
    behind every post."""

    def decide(decision: Decision, rows: Numbers) -> Numbers:
        return decision(rows) if callable(decision) else np.full(len(rows), decision)

    def few_rows(shapes: Shapes, rows: Numbers, products: Numbers, most: int, grid: int) -> Numbers:
        return decide(few, rows.sum(axis=1))

    def added_apart(tail: Tail, batches: int, rows: dict[str, Rows], touched: object) -> Numbers:
        return decide(apart, sum((found.spread.counts for found in rows.values()), np.zeros(batches)))

    def share(sharing: Sharing, rows: dict[str, Rows], replicas: int) -> Scopes | None:
        if not rows or replicas == 1:
            return None
        counts = np.sum([found.spread.counts for found in rows.values()], axis=0)
        found = np.zeros((len(counts), sharing.count), bool)
        found[:, sharing.phases] = decide(shared, counts)[:, None]
        return found if found.any() else None

    with ExitStack() as stack:
        if few is not None:
            stack.enter_context(patch.object(Shapes, "few", few_rows))
        if apart is not None:
            stack.enter_context(patch.object(Tail, "apart", added_apart))
        if alike is not None:
            fewest = 0 if alike else 1 << 30
            stack.enter_context(patch("dnc.runtime.encoder.alike.FEWEST", fewest))
        if shared is not None:
            stack.enter_context(patch.object(Sharing, "choose", share))
        if added is not None:
            stack.enter_context(patch("dnc.runtime.encoder.runs.WIDE", 0 if added else 1 << 30))
        if added:  # which lean kernels cannot do
            stack.enter_context(patch("dnc.ir.lean.MOST_ROWS", -1))
        if parts is not None:
            wins = lambda own, together, apart: np.full(len(apart), parts)  # noqa: E731
            stack.enter_context(patch.object(PartBurdens, "wins", wins))
        if early is not None:
            least = -(1 << 30) if early else 1 << 30
            stack.enter_context(patch("dnc.runtime.encoder.early.LEAST", least))
        if isinstance(early, tuple):
            levels = lambda own, counts, idle: np.array([early] * len(idle))  # noqa: E731
            stack.enter_context(patch.object(EarlyChoice, "_levels", levels))
        if groups is not None:
            stack.enter_context(patch("dnc.ir.isa.token_groups", lambda plan: (groups,)))
        yield


@contextmanager
def narrow_vectors(elements: int) -> Iterator[None]:
    """Vectors of more elements are shared out by units wherever they can be (`dnc/passes/distribute.py`)."""
    with patch("dnc.passes.distribute.NARROW", elements):
        yield


@contextmanager
def shared_products() -> Iterator[None]:
    """What stages have in common is shared however small its products are (`dnc/passes/share.py`)."""
    with patch("dnc.compiler.Share", partial(Share, vertex_floats=0)):
        yield
