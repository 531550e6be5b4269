"""Cells: the arithmetic of a segment, emitted from the op table for every target.

In: a segment, addresses (`Access`), the target's scalar functions. Out: TIRx statements. A UNIT
segment is evaluated for one (row, unit): every value is one scalar per gate. A VERTEX segment is
evaluated for one row: vectors are functions of the element's index, or lie in scratch memory of
the target (`VectorTarget`), whose lanes share the loops. Guaranteed: element-wise operations come
from the op table's `scalar`; an operation has one lowering for all targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.access import Access, ListReader
from dnc.codegen.emit import (
    Expr,
    any_of,
    both,
    floats,
    let,
    local,
    loop,
    put,
    shift,
    smaller,
    when,
    wide,
)
from dnc.ir.cell import Op, Value
from dnc.ir.opdef import INDEXED
from dnc.ir.ops import OPS
from dnc.ir.plan import (
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    IndexAddress,
    Load,
    ParameterAddress,
    Segment,
    SlotsAddress,
    Store,
)
from dnc.ir.types import ListType, TensorType

Element = Callable[[Expr], Expr]


def tensor(value: Value) -> TensorType:
    """The type of a value, of each child's for a list."""
    return value.type.element if isinstance(value.type, ListType) else value.type


# ---- lists: one element of every child -----------------------------------------------------------


def list_op(op: Op, operands: list[Any], zero: Expr) -> Any:
    """A list operation on one element: operands are scalars, lists are (count, child -> scalar)."""
    if op.opcode in ("list_sum", "list_mean"):
        count, read = operands[0]
        total = local("total", *floats(0.0, zero))
        with loop("child", count) as child:
            put(total, 0, total[0] + read(child))
        if op.opcode == "list_sum":
            return let("list_sum", total[0])
        return let("list_mean", total[0] / T.cast(T.max(count, 1), "float32"))
    if op.opcode == "list_max":
        count, read = operands[0]
        best = local("best", "float32", zero)
        with loop("child", count) as child:
            found = let("found", read(child))
            with when(any_of(child == 0, found > best[0])):
                put(best, 0, found)
        return let("list_max", best[0])
    grad, (count, read) = operands[0], operands[1]
    if op.opcode == "list_sum_grad":
        return count, lambda child: grad
    if op.opcode == "list_mean_grad":
        share = let("share", grad / T.cast(T.max(count, 1), "float32"))
        return count, lambda child: share
    assert op.opcode == "list_max_grad", op.opcode
    first = local("first", "int32", -1)
    with loop("child", count) as child, when(both(first[0] < 0, read(child) == operands[2])):
        put(first, 0, child)
    return count, lambda child: T.Select(child == first[0], grad, zero)


# ---- units -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class UnitCell:
    """Evaluates a UNIT segment for one row and one unit.

    `product(result, gate)` answers with a product's pre-activation. Values: a list of scalars, one
    per gate; for a list value, per gate (count, child -> scalar).
    """

    access: Access
    math: Any
    segment: Segment
    row: Expr
    unit: Expr
    product: Callable[[Value, int], Expr]
    values: dict[Value, list[Any]] = attrs.field(factory=dict)

    def gates(self, value: Value) -> int:
        """Gates of a value; a scalar counts as one."""
        found = tensor(value)
        return found.size // self.segment.units if found.shape else 1

    def run(self) -> None:
        """Emits loads and operations; `values` then holds everything."""
        for load in self.segment.loads:
            self.values[load.value] = self._load(load)
        for product in self.segment.products:
            count = self.gates(product.result)
            self.values[product.result] = [self.product(product.result, gate) for gate in range(count)]
        for op in self.segment.cell.ops:
            self.values[op.result] = self._op(op)

    def _element(self, value: Value, gate: int) -> Expr:
        return shift(gate * self.segment.units, self.unit) if tensor(value).shape else 0

    def _load(self, load: Load) -> list[Any]:
        value, address = load.value, load.address
        if isinstance(address, ChildrenAddress):
            reader = self.access.children(address, self.row)
            return [self._child(reader, self._element(value, gate)) for gate in range(self.gates(value))]
        read = self.access.reader(address, self.row)
        return [let(value.name, read(self._element(value, gate))) for gate in range(self.gates(value))]

    @staticmethod
    def _child(reader: ListReader, element: Expr) -> tuple[Expr, Element]:
        return reader.count, lambda child: reader.read(child, element)

    def _op(self, op: Op) -> list[Any]:
        definition = OPS[op.opcode]
        operands = [self.values[value] for value in op.operands]
        units = self.segment.units
        if op.opcode == "slice":
            begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
            return operands[0][begin // units : end // units]
        if op.opcode == "concat":
            return [gate for operand in operands for gate in operand]

        def at(gate: int) -> list[Any]:
            return [
                found[gate if tensor(value).shape else 0]
                for value, found in zip(op.operands, operands, strict=True)
            ]

        count = self.gates(op.result)
        if definition.scalar is None:
            return [list_op(op, at(gate), floats(0.0, self.unit)[1]) for gate in range(count)]
        scalar, attributes = definition.scalar, dict(op.attributes)

        def element(gate: int) -> list[Expr]:
            return [self._element(op.result, gate)] if definition.has(INDEXED) else []

        return [
            let(op.result.name, scalar(self.math, *element(gate), *at(gate), **attributes))
            for gate in range(count)
        ]

    def store(self) -> None:
        """Emits the stores of the segment."""
        for store in self.segment.stores:
            for gate, found in enumerate(self.values[store.value]):
                element = self._element(store.value, gate)
                if store.children is None:
                    at = self.access.record(store.buffer, self.row) + store.offset
                    put(self.access.pool, shift(at, element), found)
                else:
                    self._store_children(store, found, element)

    def _store_children(self, store: Store, found: Any, element: Expr) -> None:
        count, read = found
        assert store.children is not None
        first = let("first_child", self.access.first_child(store.children, self.row))
        with loop("child", count) as child:
            at = self.access.record(store.buffer, first + child) + store.offset
            put(self.access.pool, shift(at, element), read(child))


# ---- vertices --------------------------------------------------------------------------------------


SUMS_TOGETHER = 8  # rows of a small product that are summed in one pass over the vector


class VectorTarget(Protocol):
    """What a target offers for one row of a VERTEX segment: lanes that share loops."""

    def each(self, extent: int, body: Callable[[Expr], None]) -> None:
        """Runs body(i) for i in 0..extent, spread over the lanes; then all lanes see the writes."""

    def sum(self, extent: int, term: Element) -> Expr:
        """The sum of the terms, on every lane."""

    def sums(self, count: int, extent: int, term: Callable[[int, Expr], Expr]) -> list[Expr]:
        """The sums of term(0, i), .., term(count - 1, i) over i < extent, on every lane."""

    def max(self, extent: int, term: Element) -> Expr:
        """The largest term, on every lane."""

    def argmax(self, extent: int, term: Element) -> Expr:
        """The index of the first largest term, on every lane."""

    def once(self, body: Callable[[], None]) -> None:
        """Runs the body on one lane."""

    def scratch(self, size: int) -> tuple[Any, Expr]:
        """`size` floats of the row's own scratch memory: buffer and first index."""

    def synchronize(self) -> None:
        """All lanes see what any lane wrote."""


ANY_SIZE = 1 << 30


def scratch_floats(segment: Segment, widest: int = ANY_SIZE) -> int:
    """Floats of scratch memory that a row of a VERTEX segment needs (an upper bound), when values of
    more than `widest` elements are computed again at every use instead of being kept."""
    kept = [load.value for load in segment.loads if _materialised(load)]
    kept += [op.result for op in segment.cell.ops if tensor(op.result).shape]
    always = {op.result for op in segment.cell.ops if op.opcode in _ALWAYS_KEPT}
    return sum(size for v in kept if (size := tensor(v).size) <= widest or v in always)


def _materialised(load: Load) -> bool:
    return isinstance(load.address, SlotsAddress) or (
        isinstance(load.address, BufferAddress) and bool(tensor(load.value).shape)
    )


@attrs.define(eq=False)
class VertexCell:
    """Evaluates a VERTEX segment for one row, on the lanes of `target`.

    Values: a scalar expression for shape (), else a function of the flat element index. Those of
    more than `widest` elements are not kept in scratch memory, but computed again at every use.
    """

    access: Access
    math: Any
    target: VectorTarget
    segment: Segment
    row: Expr
    widest: int = ANY_SIZE
    scalars: dict[Value, Expr] = attrs.field(factory=dict)
    vectors: dict[Value, Element] = attrs.field(factory=dict)
    lists: dict[Value, Callable[[Expr], tuple[Expr, Element]]] = attrs.field(factory=dict)

    def run(self) -> None:
        """Emits loads, operations and stores."""
        for load in self.segment.loads:
            self._load(load)
        for op in self.segment.cell.ops:
            self._op(op)
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
        if isinstance(address, ParameterAddress) and len(tensor(value).shape) == 2:
            self.vectors[value] = self._matrix(address, tensor(value).shape)
            return
        read = self.access.reader(address, self.row)
        if not tensor(value).shape:
            found = read(0)
            if tensor(value).dtype == "i32" and not isinstance(address, IndexAddress):
                found = T.cast(found, "int32")  # `_store` keeps integers as floats
            self.scalars[value] = let(value.name, found)
        elif _materialised(load):
            self.vectors[value] = self._keep(value, read)
        else:
            self.vectors[value] = read

    def _matrix(self, address: ParameterAddress, shape: tuple[int, ...]) -> Element:
        position = self.access.weight(address.parameter)
        columns = shape[1]
        base = let("matrix", self.access.base(address.parameter))

        def read(i: Expr) -> Expr:
            return self.access.pool[base + position(i // columns, i % columns)]

        read.at = lambda r, k: self.access.pool[base + position(r, k)]  # type: ignore[attr-defined]
        return read

    def _keep(self, value: Value, read: Element) -> Element:
        """Evaluates every element once, into scratch memory, if the value is not too wide for that."""
        size = tensor(value).size
        if size > self.widest:
            return read
        buffer, first = self.target.scratch(size)
        self.target.each(size, lambda i: put(buffer, first + i, read(i)))
        return lambda i: buffer[first + i]

    def _at(self, value: Value, row: Expr, column: Expr) -> Expr:
        """Element [row, column] of a matrix value."""
        found = self.vectors[value]
        direct = getattr(found, "at", None)
        return direct(row, column) if direct else found(row * tensor(value).shape[1] + column)

    # operations

    def _op(self, op: Op) -> None:
        definition, result = OPS[op.opcode], op.result
        shape = tensor(result).shape
        lowering = _LOWERINGS.get(op.opcode)
        if definition.scalar is not None:
            scalar, attributes = definition.scalar, dict(op.attributes)

            def element(i: Expr) -> Expr:
                number = [i] if definition.has(INDEXED) else []
                return scalar(self.math, *number, *[self._read(v, i) for v in op.operands], **attributes)

            if shape:
                self.vectors[result] = self._keep(result, element) if op.operands else element
            else:
                self.scalars[result] = let(result.name, element(0))
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
            self.vectors[result] = self._keep(
                result, lambda i: list_op(op, self._list_operands(op, i), T.float32(0.0))
            )

    def _read(self, value: Value, i: Expr) -> Expr:
        return self.scalars[value] if value in self.scalars else self.vectors[value](i)

    def _list_operands(self, op: Op, i: Expr) -> list[Any]:
        return [self.lists[v](i) if v in self.lists else self._read(v, i) for v in op.operands]

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

            self.target.each(tensor(value).size, children)
            return
        at = let("stored", self.access.record(store.buffer, self.row) + store.offset)
        if value in self.scalars:
            found = self.scalars[value]
            number = T.cast(found, "float32") if tensor(value).dtype == "i32" else found
            self.target.once(lambda: put(self.access.pool, at, number))
        else:
            self.target.each(
                tensor(value).size, lambda i: put(self.access.pool, at + wide(i), self.vectors[value](i))
            )


def _matmul(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    (rows, inner), result = tensor(a).shape, op.result
    buffer, first = cell.target.scratch(tensor(result).size)
    if len(tensor(b).shape) == 1 and rows <= SUMS_TOGETHER:
        vector = cell.vectors[b]
        totals = cell.target.sums(rows, inner, lambda r, k: cell._at(a, r, k) * vector(k))
        for r, total in enumerate(totals):
            cell.target.once(partial(put, buffer, first + r, total))
        cell.target.synchronize()
    elif len(tensor(b).shape) == 1:
        with loop("r", rows) as r:
            total = cell.target.sum(inner, lambda k: cell._at(a, r, k) * cell.vectors[b](k))
            cell.target.once(lambda: put(buffer, first + r, total))
        cell.target.synchronize()
    else:
        columns = tensor(b).shape[1]
        cell.target.each(
            rows * columns,
            lambda i: put(
                buffer,
                first + i,
                _serial(inner, lambda k: cell._at(a, i // columns, k) * cell._at(b, k, i % columns)),
            ),
        )
    return lambda i: buffer[first + i]


def _matmul_t(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    rows, _ = tensor(a).shape
    if len(tensor(b).shape) == 1:
        vector = cell.vectors[b]
        if rows <= SUMS_TOGETHER:  # independent loads
            return cell._keep(
                op.result, lambda i: _chain([cell._at(a, r, i) * vector(r) for r in range(rows)])
            )
        return cell._keep(op.result, lambda i: _serial(rows, lambda r: cell._at(a, r, i) * vector(r)))
    columns = tensor(b).shape[1]
    return cell._keep(
        op.result,
        lambda i: _serial(rows, lambda r: cell._at(a, r, i // columns) * cell._at(b, r, i % columns)),
    )


def _matmul_nt(cell: VertexCell, op: Op) -> Element:
    a, b = op.operands
    inner, columns = tensor(a).shape[1], tensor(b).shape[0]
    return cell._keep(
        op.result,
        lambda i: _serial(inner, lambda k: cell._at(a, i // columns, k) * cell._at(b, i % columns, k)),
    )


def _serial(extent: int, term: Element) -> Expr:
    total = local("total", "float32", T.float32(0.0))
    with loop("k", extent) as k:
        put(total, 0, total[0] + term(k))
    return let("summed", total[0])


def _chain(terms: list[Expr]) -> Expr:
    """The sum of terms, first to last."""
    bound = [let("term", term) for term in terms]
    total = bound[0]
    for term in bound[1:]:
        total = total + term
    return total


def _outer(cell: VertexCell, op: Op) -> Element:
    a, b = (cell.vectors[value] for value in op.operands)
    columns = tensor(op.operands[1]).size
    return cell._keep(op.result, lambda i: a(i // columns) * b(i % columns))


def _sum(cell: VertexCell, op: Op) -> Expr:
    value = op.operands[0]
    return cell.target.sum(tensor(value).size, partial(cell._read, value))


def _mean(cell: VertexCell, op: Op) -> Expr:
    size = tensor(op.operands[0]).size
    return let("mean", _sum(cell, op) * T.float32(1.0 / size))


def _normalizer(cell: VertexCell, logits: Value) -> tuple[Element, Expr, Expr]:
    """The logits, their maximum, and the sum of exp(logit - maximum)."""
    read, size = cell.vectors[logits], tensor(logits).size
    top = cell.target.max(size, read)
    total = cell.target.sum(size, lambda i: cell.math.exp(read(i) - top))
    return read, top, total


def _softmax(cell: VertexCell, op: Op) -> Element:
    read, top, total = _normalizer(cell, op.operands[0])
    return cell._keep(op.result, lambda i: cell.math.exp(read(i) - top) / total)


def _log_softmax(cell: VertexCell, op: Op) -> Element:
    read, top, total = _normalizer(cell, op.operands[0])
    shift = let("shift", top + cell.math.log(total))
    return cell._keep(op.result, lambda i: read(i) - shift)


def _cross_entropy(cell: VertexCell, op: Op) -> Expr:
    read, top, total = _normalizer(cell, op.operands[0])
    label, size = cell.scalars[op.operands[1]], tensor(op.operands[0]).size
    chosen = read(T.max(smaller(label, size - 1), 0))
    return let("loss", T.Select(label >= 0, cell.math.log(total) + top - chosen, T.float32(0.0)))


def _cross_entropy_grad(cell: VertexCell, op: Op) -> Element:
    read, top, total = _normalizer(cell, op.operands[0])
    label = cell.scalars[op.operands[1]]

    def element(i: Expr) -> Expr:
        hot = T.Select(label == T.cast(i, "int32"), T.float32(1.0), T.float32(0.0))
        return T.Select(label >= 0, cell.math.exp(read(i) - top) / total - hot, T.float32(0.0))

    return cell._keep(op.result, element)


def _row(cell: VertexCell, op: Op) -> Element:
    matrix, chosen = op.operands[0], cell.scalars[op.operands[1]]
    near = let("row", T.max(smaller(chosen, tensor(matrix).shape[0] - 1), 0))
    return lambda i: T.Select(chosen >= 0, cell._at(matrix, near, i), T.float32(0.0))


def _one_hot(cell: VertexCell, op: Op) -> Element:
    chosen = cell.scalars[op.operands[0]]
    return lambda i: T.Select(chosen == T.cast(i, "int32"), T.float32(1.0), T.float32(0.0))


def _kl_divergence(cell: VertexCell, op: Op) -> Expr:
    target = cell.vectors[op.operands[0]]
    read, top, total = _normalizer(cell, op.operands[1])
    shift = let("shift", top + cell.math.log(total))

    def term(i: Expr) -> Expr:
        wanted = let("wanted", target(i))
        known = cell.math.log(T.Select(wanted > 0, wanted, T.float32(1.0)))
        return T.Select(wanted > 0, wanted * (known - (read(i) - shift)), T.float32(0.0))

    return cell.target.sum(tensor(op.operands[0]).size, term)


def _squared_error(cell: VertexCell, op: Op) -> Expr:
    a, b = op.operands

    def term(i: Expr) -> Expr:
        difference = cell._read(a, i) - cell._read(b, i)
        return difference * difference

    return cell.target.sum(max(tensor(a).size, tensor(b).size), term)


def _argmax(cell: VertexCell, op: Op) -> Expr:
    return cell.target.argmax(tensor(op.operands[0]).size, cell.vectors[op.operands[0]])


def _concat(cell: VertexCell, op: Op) -> Element:
    buffer, first = cell.target.scratch(tensor(op.result).size)
    at = 0
    for operand in op.operands:
        size, read, start = tensor(operand).size, cell.vectors[operand], first + at
        cell.target.each(size, partial(_copy_element, buffer, start, read))
        at += size
    return lambda i: buffer[first + i]


def _copy_element(buffer: Any, start: Expr, read: Element, i: Expr) -> None:
    put(buffer, start + i, read(i))


def _slice(cell: VertexCell, op: Op) -> Element:
    read, begin = cell.vectors[op.operands[0]], _first(op)
    return lambda i: read(i + begin)


def _first(op: Op) -> int:
    """The first element of a slice, or the place of the operand in a pad; matrices lie row by row."""
    return int(op.attribute("begin")) * math.prod(tensor(op.result).shape[1:])  # type: ignore[arg-type]


def _pad(cell: VertexCell, op: Op) -> Element:
    read, begin = cell.vectors[op.operands[0]], _first(op)
    size = tensor(op.operands[0]).size

    def element(i: Expr) -> Expr:
        inside = both(i >= begin, i < begin + size)
        near = T.max(smaller(i - begin, size - 1), 0)
        return T.Select(inside, read(near), T.float32(0.0))

    return cell._keep(op.result, element)


# ---- attention: lists of scalars lie in memory, one lane writes them -------------------------------


def _scalars_of(cell: VertexCell, value: Value) -> tuple[Expr, Element]:
    """Count and reader of a list of scalars."""
    return cell.lists[value](T.int32(0))


def _keep_list(cell: VertexCell, op: Op, count: Expr, term: Element) -> Callable[[Expr], Any]:
    """Evaluates a scalar per child once. `term` may use all lanes."""
    place = next(item for item in cell.segment.scratch if item.value == op.result)
    at = cell.access.entry_place(place.buffer, place.children, cell.row)
    with loop("child", count) as child:
        found = let("found", term(child))
        cell.target.once(partial(put, cell.access.pool, at(child), found))
    cell.target.synchronize()
    return lambda i: (count, lambda child: cell.access.pool[at(child)])


def _list_dot(cell: VertexCell, op: Op) -> Any:
    query, children = op.operands
    count, _ = cell.lists[children](T.int32(0))

    def product(child: Expr) -> Expr:
        return cell.target.sum(
            tensor(query).size, lambda k: cell.vectors[query](k) * cell.lists[children](k)[1](child)
        )

    return _keep_list(cell, op, count, product)


def _list_softmax(cell: VertexCell, op: Op) -> Any:
    count, read = _scalars_of(cell, op.operands[0])
    top = _over_children(count, -3.4e38, lambda child, so_far: T.max(so_far, read(child)))
    total = _over_children(count, 0.0, lambda child, so_far: so_far + cell.math.exp(read(child) - top))
    return _keep_list(cell, op, count, lambda child: cell.math.exp(read(child) - top) / total)


def _list_softmax_grad(cell: VertexCell, op: Op) -> Any:
    (count, grad), (_, weight) = (_scalars_of(cell, value) for value in op.operands)
    mean = _over_children(count, 0.0, lambda child, so_far: so_far + grad(child) * weight(child))
    return _keep_list(cell, op, count, lambda child: weight(child) * (grad(child) - mean))


def _list_weighted(cell: VertexCell, op: Op) -> Element:
    (count, weight), children = _scalars_of(cell, op.operands[0]), op.operands[1]

    def element(i: Expr) -> Expr:
        read = cell.lists[children](i)[1]
        return _over_children(count, 0.0, lambda child, so_far: so_far + weight(child) * read(child))

    return cell._keep(op.result, element)


def _list_scaled(cell: VertexCell, op: Op) -> Any:
    (count, weight), vector = _scalars_of(cell, op.operands[0]), cell.vectors[op.operands[1]]

    def scaled(i: Expr) -> tuple[Expr, Element]:
        factor = vector(i)
        return count, lambda child: weight(child) * factor

    return scaled


def _over_children(count: Expr, start: float, step: Callable[[Expr, Expr], Expr]) -> Expr:
    """A fold over the children, the same on every lane."""
    found = local("folded", "float32", T.float32(start))
    with loop("child", count) as child:
        put(found, 0, step(child, found[0]))
    return let("fold", found[0])


_ALWAYS_KEPT = frozenset({"matmul", "concat"})  # lowerings that write scratch memory themselves

_LOWERINGS: dict[str, Callable[[VertexCell, Op], Any]] = {
    "matmul": _matmul,
    "matmul_t": _matmul_t,
    "matmul_nt": _matmul_nt,
    "outer": _outer,
    "sum": _sum,
    "mean": _mean,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy_grad,
    "row": _row,
    "one_hot": _one_hot,
    "kl_divergence": _kl_divergence,
    "squared_error": _squared_error,
    "argmax": _argmax,
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "list_dot": _list_dot,
    "list_softmax": _list_softmax,
    "list_softmax_grad": _list_softmax_grad,
    "list_weighted": _list_weighted,
    "list_scaled": _list_scaled,
}
