"""VERTEX segments on the CPU: a vertex at a time, and the rows dealt out to the workers in even shares.

In: a segment and the fields of its instruction. Out: the body of the instruction. A worker computes its
rows whole, in plain loops; what a row needs in between lies in the worker's own scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cpu_worker import Worker
from dnc.codegen.cells import Element, StoreFour, VertexCell, scratch_floats
from dnc.codegen.emit import Expr, let, local, loop, put, smaller, when
from dnc.ir.plan import Segment
from dnc.ir.weight_format import LANES


@attrs.define(eq=False)
class LoopTarget:
    """One lane: plain loops; scratch lies in the worker's own memory."""

    worker: Worker
    used: int = 0

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """One element after the other."""
        with loop("element", extent, unroll=None) as index:
            body(index)

    def fill(
        self,
        extent: int,
        read: Element,
        write: Callable[[Expr, Expr], None],
        write_four: StoreFour | None = None,
    ) -> None:
        """One element after the other."""
        self.each(extent, lambda index: write(index, read(index)))

    def _reduce(self, extent: int, term: Element, start: float, join: Callable[[Expr, Expr], Expr]) -> Expr:
        found = local("reduced", "float32", T.float32(start))
        with loop("element", extent, unroll=None) as index:
            put(found, 0, join(found[0], term(index)))
        return let("all", found[0])

    def sum(self, extent: int, term: Element) -> Expr:
        """The terms in order."""
        return self._reduce(extent, term, 0.0, lambda a, b: a + b)

    def products(self, extent: int, rows: Sequence[Element], vector: Element) -> list[Expr]:
        """Sum by sum."""

        def term(row: Element, index: Expr) -> Expr:
            return row(index) * vector(index)

        return [self.sum(extent, partial(term, row)) for row in rows]

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term."""
        return self._reduce(extent, term, -3.4e38, lambda a, b: T.max(a, b))

    def normalizer(self, extent: int, term: Element, exp: Callable[[Expr], Expr]) -> tuple[Expr, Expr]:
        """One after the other."""
        top = self.max(extent, term)
        return top, self.sum(extent, lambda i: exp(term(i) - top))

    def argmax(self, extent: int, term: Element) -> Expr:
        """The first index of the largest term."""
        best, at = local("best", "float32", term(0)), local("at", "int32", 0)
        with T.serial(1, extent) as index:
            value = let("value", term(index))
            with when(value > best[0]):
                put(best, 0, value)
                put(at, 0, index)
        return let("argmax", at[0])

    def once(self, body: Callable[[], None]) -> None:
        """There is one lane."""
        body()

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """The next `size` floats."""
        first = self.used
        self.used += size
        return self.worker.scratch, first

    def synchronize(self) -> None:
        """Nothing to wait for."""


def vertex_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a VERTEX segment's instruction: workers take even shares of the rows."""
    worker.functions.need(scratch_floats(segment) + LANES)
    share = let("share", tirx.truncdiv(rows + worker.workers - 1, worker.workers))
    begin = let("begin", smaller(worker.rank * share, rows))
    with T.serial(begin, smaller(begin + share, rows)) as index:
        VertexCell(worker.access, worker.math, LoopTarget(worker), segment, let("vertex", row + index)).run()
