"""The weight gradient at hand on CUDA, for bodies that make several: where its rows lie, and how large it is.

In: gradients by number, and the number when the kernel runs. Out: what bodies need to know of it, looked up
once. Gradients differ in nothing else: what is behind is the same code for all of them. Of one that is alone
all is known when the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_places import Source, find_piece, source_of
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, any_of, both, dispatch, fixed, local, put, stride_loop, when, wide
from dnc.ir import cutting, isa
from dnc.ir.machine import THREADS
from dnc.ir.plan import Address, DenseGradient, padded

NONE = -1  # an offset of nothing
Fact = Callable[[DenseGradient], Expr]


class Kind:
    """The gradient at hand, as far as it is known when the kernel runs.

    gradients: by their numbers. index: which one of a stack. facts: what else is to be known of it, by name.
    staged: what is known waits in shared memory, as registers are for sums. rows, columns: of the matrix as
    which it is made. offset: of the parameter in every arena; beside: that of a vector that adds up the same
    deltas and is made along, NONE if there is none. sides: its deltas and the pieces of its operand; sources:
    of these, see `cuda_places`.
    """

    def __init__(
        self,
        worker: Worker,
        gradients: Mapping[int, DenseGradient],
        number: Expr,
        index: Expr,
        facts: Mapping[str, Fact] | None = None,
        staged: bool = False,
    ) -> None:
        self.worker, self.gradients, self.number = worker, gradients, number
        self._staged = staged
        self.along = cutting.made_along(worker.plan)
        self.sides = 1 + max(len(operands_of(gradient)) for gradient in gradients.values())
        place = partial(_place, worker, index)
        named: dict[str, Fact] = {
            "rows": lambda gradient: T.int32(self.shape_of(gradient)[0]),
            "columns": lambda gradient: T.int32(self.shape_of(gradient)[1]),
            "offset": lambda gradient: place(gradient.parameter),
            "beside": lambda gradient: self._beside(gradient, place),
            **(facts or {}),
        }
        self.has_beside = any(gradient.name in self.along for gradient in gradients.values())
        found = self._look_up(named)
        self.rows, self.columns, self.offset, self.beside = (
            found.pop(name) for name in ("rows", "columns", "offset", "beside")
        )
        self.facts = found

    @staticmethod
    def shape_of(gradient: DenseGradient) -> tuple[int, int]:
        """Rows and columns of the matrix as which it is made; a vector is a column."""
        return gradient.rows, max(1, gradient.columns)

    def _look_up(self, named: Mapping[str, Fact]) -> dict[str, Expr]:
        if self.alone is not None:
            return {name: fact(self.alone) for name, fact in named.items()}

        def known(gradient: DenseGradient) -> list[Expr]:
            sources = self._sources_of(gradient)
            return [
                *(fact(gradient) for fact in named.values()),
                *(each for pair in sources for each in pair),
            ]

        count = len(named) + 2 * self.sides
        found = self._in_memory(count, known) if self._staged else self._in_registers(count, known)
        behind = found[len(named) :]
        self._sources = list(zip(behind[::2], behind[1::2], strict=True))
        return dict(zip(named, found, strict=False))

    def _in_registers(self, count: int, known: Callable[[DenseGradient], list[Expr]]) -> list[Expr]:
        held = local("known", "int32", 0, count)

        def keep(gradient: DenseGradient) -> None:
            for at, value in enumerate(known(gradient)):
                put(held, at, value)

        self.each(keep)
        return [held[at] for at in range(count)]

    def _in_memory(self, count: int, known: Callable[[DenseGradient], list[Expr]]) -> list[Expr]:
        """Kept in the last words of the staging area, and read where they are used."""
        first = self.worker.staging_words - count
        self.worker = attrs.evolve(self.worker, staging_words=first)
        memory = self.worker.staging

        def keep(gradient: DenseGradient) -> None:
            for at, value in enumerate(known(gradient)):
                put(memory, first + at, T.reinterpret("float32", fixed("known", value)))

        with when(self.worker.thread == 0):
            for at in range(count):
                put(memory, first + at, T.float32(0.0))
            self.each(keep)
        self.worker.synchronize()
        return [T.reinterpret("int32", memory[first + at]) for at in range(count)]

    def _beside(self, gradient: DenseGradient, place: Callable[[str], Expr]) -> Expr:
        other = self.along.get(gradient.name)
        return T.int32(NONE) if other is None else place(other.parameter)

    def _sources_of(self, gradient: DenseGradient) -> list[Source]:
        return [source_of(self.worker, address) for address in (gradient.delta, *operands_of(gradient))]

    @property
    def alone(self) -> DenseGradient | None:
        """The gradient, if there is one."""
        return next(iter(self.gradients.values())) if len(self.gradients) == 1 else None

    @property
    def sources(self) -> list[Source]:
        """Where its deltas and the pieces of its operand lie."""
        if self.alone is not None:
            return self._sources_of(self.alone)
        return self._sources

    @property
    def stride(self) -> Expr:
        """Floats from one of its rows to the next."""
        whole = all(self.shape_of(gradient)[1] % 4 == 0 for gradient in self.gradients.values())
        return self.columns if whole else padded(self.columns)

    def each(self, body: Callable[[DenseGradient], None]) -> None:
        """The body for the gradient at hand."""
        if self.alone is not None:
            body(self.alone)
        else:
            dispatch(self.number, {n: partial(body, gradient) for n, gradient in self.gradients.items()})

    def with_beside(self, also: Expr) -> Expr:
        """Whether a vector is made along, and something else holds."""
        if all(gradient.name in self.along for gradient in self.gradients.values()):
            return also
        return both(self.beside != NONE, also)

    def find(self, row: Expr, column: Expr, delta_shift: Any, side: Any, shift: Any) -> None:
        """Fills locals: how far into a row of deltas `row` is; on which side `column` is, from 1 on, and how
        far into its rows."""

        def put_both(gradient: DenseGradient) -> None:
            put(delta_shift, 0, row + gradient.delta.offset)
            put(shift, 0, column if gradient.pieces else column + gradient.delta.offset)
            find_piece(gradient, column, side, shift)

        self.each(put_both)

    def clear_padding(self, base: Expr, beside: Expr) -> None:
        """Zeros behind its elements, which lie from `base` on, and behind those of the vector beside it."""

        def clear(gradient: DenseGradient) -> None:
            _clear_padding(self.worker, gradient, base)
            if gradient.name in self.along:
                _clear_padding(self.worker, self.along[gradient.name], beside)

        self.each(clear)


def _place(worker: Worker, index: Expr, parameter: str) -> Expr:
    """A parameter's place in every arena; `index`: which one of a stack."""
    offset = worker.access.slice(parameter, index) - worker.access.base(isa.PARAMETERS)
    return T.cast(offset, "int32")


def operands_of(gradient: DenseGradient) -> list[Address]:
    """Where its operand lies, piece by piece; the deltas of a vector are one."""
    return [piece.address for piece in gradient.pieces] or [gradient.delta]


def _clear_padding(worker: Worker, gradient: DenseGradient, base: Expr) -> None:
    """Zeros behind a gradient's elements: arenas are added up whole, and those of chunks are not cleared."""
    shape = worker.plan.program.parameter(gradient.parameter).type.shape
    end, stride = isa.slice_floats(worker.plan, gradient.parameter), padded(shape[-1])
    behind = shape[0] if len(shape) == 1 else shape[0] * stride
    # Products write the padding of their rows themselves.
    first = 0 if len(shape) > 1 and shape[1] % 4 and not gradient.pieces else behind
    if first == end:
        return
    with stride_loop("place", worker.thread + first, end, THREADS) as place:
        if first == behind:
            put(worker.pool, base + wide(place), T.float32(0.0))
        else:
            with when(any_of(place >= behind, place % stride >= shape[1])):
                put(worker.pool, base + wide(place), T.float32(0.0))
