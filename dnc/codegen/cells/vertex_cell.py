"""The arithmetic of a VERTEX segment: one row at a time, on the lanes of a target.

In: a segment, addresses, the target's scalar functions and its lanes (`VectorTarget`; `Reductions` where
numbers alone are wanted). Out: TIRx statements. Vectors are functions of the element's index, or lie in
scratch memory of the target, whose lanes share the loops. Guaranteed: an operation that is not element-wise
has one lowering for all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc.codegen.access import Access
from dnc.codegen.cells.lists import list_op
from dnc.codegen.cells.lowerings import ALWAYS_KEPT, LOWERINGS
from dnc.codegen.cells.values import (
    Element,
    Four,
    Matrix,
    StoreFour,
    Vector,
    as_declared,
    as_number,
    four_of,
)
from dnc.codegen.emit import Expr, elements4, let, let_of, loop, put, quad_at, store_four, wide
from dnc.ir.cell import Op, Value
from dnc.ir.opdef import INDEXED
from dnc.ir.ops import OPS
from dnc.ir.plan import (
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    Load,
    ParameterAddress,
    Segment,
    SlotsAddress,
    Store,
    padded,
)
from dnc.ir.types import ListType


class Reductions(Protocol):
    """What a target offers for the numbers of one row: lanes that share the loops over its vectors."""

    def sum(self, extent: int, term: Element) -> Expr:
        """The sum of the terms, on every lane."""

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term, on every lane."""

    def normalizer(self, extent: int, term: Element, exp: Callable[[Expr], Expr]) -> tuple[Expr, Expr]:
        """The largest term, and the sum of exp(term - the largest), on every lane."""

    def once(self, body: Callable[[], None]) -> None:
        """Runs the body on one lane."""


@runtime_checkable
class VectorTarget(Reductions, Protocol):
    """What it offers for whole rows of a VERTEX segment: the lanes make vectors, too, and keep them."""

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """Runs body(i) for i in 0..extent, spread over the lanes; then all lanes see the writes."""

    def fill(
        self,
        extent: int,
        read: Element,
        write: Callable[[Expr, Expr], None],
        write_four: StoreFour | None = None,
    ) -> None:
        """The same with write(i, read(i)): what is read does not depend on what is written. write_four:
        writes four elements from a multiple of 4 on, where they can be read so."""

    def products(self, extent: int, rows: Sequence[Element], vector: Element) -> list[Expr]:
        """The sums of row(i) * vector(i) over i < extent, for every row, on every lane."""

    def argmax(self, extent: int, term: Element) -> Expr:
        """The index of the first largest term, on every lane."""

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """`size` floats of the row's own scratch memory: buffer, and first index, a multiple of 4 in it."""

    def synchronize(self) -> None:
        """All lanes see what any lane wrote."""


ANY_SIZE = 1 << 30


def scratch_floats(segment: Segment, widest: int = ANY_SIZE) -> int:
    """Floats of scratch memory that a row of a VERTEX segment needs (an upper bound), when values of
    more than `widest` elements are computed again at every use instead of being kept."""
    kept = [load.value for load in segment.loads if _materialised(load)]
    kept += [op.result for op in segment.cell.ops if op.result.tensor.shape]
    always = {op.result for op in segment.cell.ops if op.opcode in ALWAYS_KEPT}
    return sum(padded(size) for v in kept if (size := v.tensor.size) <= widest or v in always)


def _materialised(load: Load) -> bool:
    return isinstance(load.address, SlotsAddress) or (
        isinstance(load.address, BufferAddress) and bool(load.value.tensor.shape)
    )


@attrs.define(eq=False)
class VertexCell:
    """Evaluates a VERTEX segment for one row, on the lanes of a target.

    Values: a scalar expression for shape (), else a function of the flat element index. Those of
    more than `widest` elements are not kept in scratch memory, but computed again at every use. near:
    of matrices that lie nearer than the pool, as they are there, the memory and the first word. normalizers:
    those that have been made, of vectors.
    """

    access: Access
    math: Any
    reductions: Reductions
    segment: Segment
    row: Expr
    widest: int = ANY_SIZE
    near: Mapping[ParameterAddress, tuple[Any, Expr]] = attrs.field(factory=dict)
    scalars: dict[Value, Expr] = attrs.field(factory=dict)
    vectors: dict[Value, Element] = attrs.field(factory=dict)
    lists: dict[Value, Callable[[Expr], tuple[Expr, Element]]] = attrs.field(factory=dict)
    normalizers: dict[Value, tuple[Expr, Expr]] = attrs.field(factory=dict)

    @property
    def target(self) -> VectorTarget:
        """The lanes, which have to be such as make vectors."""
        assert isinstance(self.reductions, VectorTarget)
        return self.reductions

    def run(self) -> None:
        """Emits loads, operations and stores."""
        self.compute()
        self.store()

    def compute(self) -> None:
        """Emits loads and operations."""
        for load in self.segment.loads:
            self._load(load)
        for op in self.segment.cell.ops:
            self._op(op)

    def store(self) -> None:
        """Emits the stores."""
        for store in self.segment.stores:
            self._store(store)

    # loads

    def _load(self, load: Load) -> None:
        value, address = load.value, load.address
        if isinstance(address, ChildrenAddress | EntriesAddress):
            if isinstance(address, EntriesAddress):
                reader = self.access.entries(address, self.row)
            else:
                reader = self.access.children(address, self.row)
            self.lists[value] = lambda i: (reader.count, lambda child: reader.read(child, i))
            return
        if isinstance(address, ParameterAddress) and len(value.tensor.shape) == 2:
            self.vectors[value] = self._matrix(address, value.tensor.shape)
            return
        read = self.access.reader(address, self.row)
        if not value.tensor.shape:
            self.scalars[value] = let_of(value.name, as_declared(load, read(0)))
        else:
            aligned = self.access.is_aligned(address)
            whole = Vector(read, (lambda first: elements4(read(tirx.Ramp(first, 1, 4)))) if aligned else None)
            if _materialised(load) and value.tensor.size <= self.widest:
                self.vectors[value] = self.keep(value, read)
            else:
                self.vectors[value] = whole

    def _matrix(self, address: ParameterAddress, shape: tuple[int, ...]) -> Matrix:
        position = self.access.weight(address.parameter)
        columns, fours = shape[1], self.access.has_whole_rows(address)
        if address in self.near:
            memory, base = self.near[address]
        else:
            memory, base = self.access.pool, self.access.position(address, self.row)

        def at(r: Expr, k: Expr) -> Expr:
            return memory[base + position(r, k)]

        def row(r: Expr) -> Vector:
            def four(k: Expr) -> list[Expr]:
                return elements4(memory[quad_at(base + position(r, k))])

            return Vector(lambda k: at(r, k), four if fours else None)

        return Matrix(lambda i: at(i // columns, i % columns), row=row)

    def keep(self, value: Value, read: Element) -> Element:
        """Evaluates every element once, into scratch memory, if the value is not too wide for that; if it is
        only stored, then."""
        size = value.tensor.size
        if size > self.widest or self._only_stored(value):
            return read
        buffer, first = self.target.scratch(size)

        def write_four(i: Expr, found: list[Expr]) -> None:
            store_four(buffer, first + i, found)

        self.target.fill(size, read, lambda i, found: put(buffer, first + i, found), write_four)

        def four(i: Expr) -> list[Expr]:
            return elements4(buffer[quad_at(first + i)])

        return Vector(lambda i: buffer[first + i], four)

    def _only_stored(self, value: Value) -> bool:
        """Whether one store is all that reads a value."""
        stores = [store.children is None for store in self.segment.stores if store.value == value]
        used = any(value in op.operands for op in self.segment.cell.ops)
        return stores == [True] and not used and all(each.value != value for each in self.segment.scratch)

    def row_of(self, value: Value, row: Expr) -> Vector:
        """The reader of a row of a matrix value."""
        found = self.vectors[value]
        if isinstance(found, Matrix):
            return found.row(row)
        columns = value.tensor.shape[1]
        return Vector(lambda k: found(row * columns + k))

    def at(self, value: Value, row: Expr, column: Expr) -> Expr:
        """Element [row, column] of a matrix value."""
        return self.row_of(value, row)(column)

    # operations

    def _op(self, op: Op) -> None:
        definition, result = OPS[op.opcode], op.result
        shape = result.tensor.shape
        lowering = LOWERINGS.get(op.opcode)
        if definition.scalar is not None:
            scalar, attributes = definition.scalar, dict(op.attributes)

            def element(i: Expr) -> Expr:
                number = [as_number(i)] if definition.has(INDEXED) else []
                return scalar(self.math, *number, *[self.read(v, i) for v in op.operands], **attributes)

            if shape and op.operands and result.tensor.size <= self.widest:
                self.vectors[result] = self.keep(result, element)
            elif shape:
                self.vectors[result] = Vector(element, self._four(op))
            else:
                self.scalars[result] = let_of(result.name, element(0))
        elif lowering is not None:
            found = lowering(self, op)
            if isinstance(result.type, ListType):
                self.lists[result] = found
            elif shape:
                self.vectors[result] = found
            else:
                self.scalars[result] = found
        elif isinstance(result.type, ListType):
            self.lists[result] = lambda i: list_op(op, self._list_operands(op, i), T.float32(0.0))
        elif not shape:
            self.scalars[result] = list_op(op, self._list_operands(op, 0), T.float32(0.0))
        else:
            self.vectors[result] = self.keep(
                result, lambda i: list_op(op, self._list_operands(op, i), T.float32(0.0))
            )

    def _four(self, op: Op) -> Four | None:
        """How to work out four elements of an element-wise operation, where its operands are read so."""
        definition, attributes = OPS[op.opcode], dict(op.attributes)
        fours = {v: four_of(self.vectors[v]) for v in op.operands if v in self.vectors}
        if not fours or not all(fours.values()):
            return None

        def four(first: Expr) -> list[Expr]:
            read = {v: each(first) for v, each in fours.items() if each is not None}
            found = []
            for i in range(4):
                number = [as_number(first + i)] if definition.has(INDEXED) else []
                operands = [read[v][i] if v in read else self.scalars[v] for v in op.operands]
                assert definition.scalar is not None
                found.append(definition.scalar(self.math, *number, *operands, **attributes))
            return found

        return four

    def read(self, value: Value, i: Expr) -> Expr:
        """Element i of a value; a scalar is the same for all."""
        return self.scalars[value] if value in self.scalars else self.vectors[value](i)

    def _list_operands(self, op: Op, i: Expr) -> list[Any]:
        return [self.lists[v](i) if v in self.lists else self.read(v, i) for v in op.operands]

    # stores

    def _store(self, store: Store) -> None:
        value = store.value
        if store.children is not None:
            first = let("first_child", self.access.first_child(store.children, self.row))

            def children(i: Expr) -> None:
                count, read = self.lists[value](i)
                with loop("child", count) as child:
                    at = self.access.record(store.buffer, first + child) + store.offset + i
                    put(self.access.pool, at, read(child))

            self.target.each(value.tensor.size, children)
            return
        at = let("stored", self.access.record(store.buffer, self.row) + store.offset)
        if value in self.scalars:
            found = self.scalars[value]
            number = T.cast(found, "float32") if value.tensor.dtype == "i32" else found
            self.reductions.once(lambda: put(self.access.pool, at, number))
        else:

            def write(i: Expr, found: Expr) -> None:
                put(self.access.pool, at + wide(i), found)

            def write_four(i: Expr, found: list[Expr]) -> None:
                store_four(self.access.pool, at + wide(i), found)

            aligned = write_four if store.offset % 4 == 0 else None
            self.target.fill(value.tensor.size, self.vectors[value], write, aligned)
