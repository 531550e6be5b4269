"""What an encoder needs of a plan, whatever the data: worked out once a session, not once a data set.

In: a plan. Out: the layout of its schedules, what rows and levels cost, and per mode the steps, spaces,
buffers and lists. Guaranteed: nothing here depends on data, so encoders of one plan share it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import isa, lean
from dnc.ir.early import early
from dnc.ir.plan import Buffer, IndexList, OperandList, Plan, Result, SlotList
from dnc.runtime.encoder.assign import prices
from dnc.runtime.encoder.early import EarlyChoice, EarlyQueues, Posts
from dnc.runtime.encoder.parts import Parts, parts_of
from dnc.runtime.encoder.queues import Columns
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.scopes import Scopes, Sharing
from dnc.runtime.encoder.tail import Tail
from dnc.runtime.phases import BOTH, FORWARD_ONLY, Step, results_of, sequence, trains

BY_ROW = ("output", "column")  # kinds of results that the host reads as they are


@attrs.frozen(eq=False)
class Mode:
    """What training, evaluation or prediction needs of a plan.

    columns: of what it runs, of BOTH training. common: of that what all launches of its schedules run.
    Of BOTH these are two, and all else is of both, so what is decided once for a batch suits either one.
    buffers: those that the host reads come first, so that one copy brings them; inner: without what it reads
    row by row, which are the `values`. parts: see `parts_of`. has_slots: whether there are lists of slots.
    products: see `lean.product_spaces`; None if the plan has no lean kernel. early: None where no weight
    gradient can be made early.
    """

    columns: Columns
    common: tuple[Step, ...]
    sharing: Sharing
    parts: Parts | None
    spaces: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    lists: tuple[IndexList, ...]
    inner: tuple[Buffer, ...]
    values: tuple[Result, ...]
    has_slots: bool
    products: tuple[tuple[str, bool], ...] | None
    early: EarlyChoice | None

    def scopes(
        self, rows: Mapping[str, Rows], replicas: int, apart: NDArray[np.bool_] | None
    ) -> Scopes | None:
        """The phases that the grid shares out: those that pay, and where parts that are apart meet."""
        found = self.sharing.choose(rows, replicas)
        if apart is None or self.parts is None or not self.parts.meets:
            return found
        found = np.zeros((len(apart), self.sharing.count), np.bool_) if found is None else found
        for phase in self.parts.meets:
            found[apart, phase] = True
        return found

    def posts(
        self, rows: Mapping[str, Rows], replicas: int, workers: int, scopes: Scopes | None, most: int
    ) -> Posts | None:
        """As `EarlyChoice.choose`."""
        return None if self.early is None else self.early.choose(rows, replicas, workers, scopes, most)

    def early_queues(
        self, posts: Posts | None, rows: Mapping[str, Rows], replicas: int, workers: int, accumulate: bool
    ) -> EarlyQueues | None:
        """As `EarlyChoice.encode`."""
        if self.early is None or posts is None:
            return None
        return self.early.encode(posts, rows, replicas, workers, accumulate)


class Modes:
    """The layout of a plan's schedules, what follows the recursion, and its modes, by need."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layout = isa.layout(plan)
        self.tail = Tail(plan)
        self.prices = prices(plan)
        self._has_lean, self.lean_needs_few = lean.has_lean(plan), bool(lean.left_out(plan))
        self._modes: dict[str, Mode] = {}

    def mode(self, name: str) -> Mode:
        """What a mode runs, writes and reads."""
        if name not in self._modes:
            self._modes[name] = self._make(name)
        return self._modes[name]

    def _make(self, name: str) -> Mode:
        own = sequence(self.plan, name)
        launches = (own, sequence(self.plan, FORWARD_ONLY)) if name == BOTH else (own,)
        runs, also = ({step.segment.name for step in launch} for launch in (own, launches[-1]))
        steps = *own, *(step for step in launches[-1] if step.segment.name not in runs)
        written = {s.buffer for step in steps for s in step.segment.stores}
        written |= {s.buffer for step in steps for s in step.segment.scratch}
        written |= {name for step in steps for name in step.segment.summed}
        used = {item for step in steps for item in _lists_of(step)}
        if trains(name):
            for gradient in self.plan.dense_gradients:
                used |= {getattr(p.address, "list", "") for p in gradient.pieces}
                used |= {getattr(p.address, "select", "") for p in gradient.pieces}
            used |= {item.list for item in self.plan.lists if isinstance(item, OperandList)}
        read = {result.buffer for result in results_of(self.plan, name)}
        values = [result for result in results_of(self.plan, name) if result.kind in BY_ROW]
        buffers = [buffer for buffer in self.plan.buffers if buffer.name in written]
        buffers.sort(key=lambda buffer: buffer.name not in read)
        elsewhere = {result.buffer for result in values}
        lists = [item for item in self.plan.lists if item.name in used]
        sharing, may = Sharing(self.plan, steps), early(self.plan) if trains(name) else None
        return Mode(
            Columns(self.plan, own),
            tuple(step for step in own if step.segment.name in also),
            sharing,
            parts_of(self.plan, launches, sharing),
            tuple(dict.fromkeys(step.segment.space for step in steps)),
            tuple(buffers),
            tuple(lists),
            tuple(buffer for buffer in buffers if buffer.name not in elsewhere),
            tuple(values),
            any(isinstance(item, SlotList) for item in lists),
            lean.product_spaces(self.plan, {s.segment.name for s in steps}) if self._has_lean else None,
            None if may is None else EarlyChoice(self.plan, may, steps, self.tail),
        )


def _lists_of(step: Step) -> set[str]:
    """Names of the lists that a segment reads."""
    found: set[str] = set()
    addresses = [load.address for load in step.segment.loads]
    addresses += [piece.address for product in step.segment.products for piece in product.pieces]
    for address in (*addresses, *step.segment.products, *step.segment.transposed):
        for field in ("list", "plain", "partial", "children", "select"):
            name = getattr(address, field, None)
            if isinstance(name, str):
                found.add(name)
    found.update(store.children for store in step.segment.stores if store.children is not None)
    return found
