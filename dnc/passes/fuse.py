"""Fuse: cuts every stage into segments, exactly where distributions disagree.

In: a differentiated program. Out: a `Plan` with segments, buffers and lists. Element-wise chains
join the epilogue of the product that feeds them; products that share their operand stand in one
segment; a value is exchanged through a buffer only where it crosses segments. Without `fuse`
every operation is a segment of its own: the same values, slower.

The distribution of a value decides (DESIGN, section 4): what a stage is given is complete; a
product with a parameter needs a complete operand and yields units; element-wise operations keep
units; a transposed product takes units and yields partial sums; everything else needs whole
vectors and runs vertex by vertex.
"""

from __future__ import annotations

import math

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.measures import is_summed
from dnc.ir.opdef import ELEMENTWISE, LIST, WHOLE
from dnc.ir.ops import OPS
from dnc.ir.plan import (
    UNIT,
    VERTEX,
    Address,
    BufferAddress,
    ChildrenAddress,
    DenseGradient,
    EntriesAddress,
    IndexAddress,
    ListScratch,
    Load,
    Piece,
    Plan,
    Product,
    Result,
    SeedAddress,
    Segment,
    SlotSource,
    Store,
    TransposedProduct,
)
from dnc.ir.program import (
    DENSE,
    LEVEL,
    DeclaredOutput,
    LossOutput,
    MetricOutput,
    Output,
    ParameterInput,
    Program,
    PulledGradientOutput,
    SavedOutput,
    SlotOutput,
    Stage,
    StateOutput,
    TableSlotOutput,
)
from dnc.ir.types import ListType, TensorType
from dnc.passes.bind import Binder, path_text

INPUT, CONSTANT, VIEW, PARTIAL = "input", "constant", "view", "partial"
MAX_GATES = 16


@attrs.frozen
class Fuse:
    """Options: `enabled` joins operations; `vertex_floats`, the largest sum of weights of a stage
    outside the recursion that is still computed vertex by vertex."""

    enabled: bool = True
    vertex_floats: int = 8192

    def __call__(self, program: Program) -> Plan:
        """The plan of `program`: segments, buffers and lists only."""
        binder = Binder(program)
        segments: list[Segment] = []
        results: list[Result] = []
        for stage in program.stages:
            cutter = _Cutter(self, binder, stage)
            segments.extend(cutter.cut())
            results.extend(cutter.results)
        binder.finish()
        segments = [_completed(binder, segment) for segment in segments]
        gradients = _dense_gradients(program, binder)  # may read through lists that no segment has
        return Plan(
            program=program,
            target="",
            buffers=tuple(binder.buffers.values()),
            lists=tuple(binder.lists.values()),
            segments=tuple(segments),
            dense_gradients=gradients,
            table_gradients=binder.table_gradients(),
            results=tuple(results),
        )


def _completed(binder: Binder, segment: Segment) -> Segment:
    loads = tuple(attrs.evolve(load, address=binder.completed(load.address)) for load in segment.loads)
    return attrs.evolve(segment, loads=loads)


def _dense_gradients(program: Program, binder: Binder) -> tuple[DenseGradient, ...]:
    found = []
    for index, gradient in enumerate(program.weight_gradients):
        parameter = program.parameter(gradient.parameter)
        if parameter.kind != DENSE:
            continue
        pieces = tuple(
            Piece(_shifted(binder.completed(binder.input_address(gradient.space, bound)), begin), end - begin)
            for bound, begin, end in gradient.x
        )
        found.append(
            DenseGradient(
                f"gradient {gradient.parameter} #{index}",
                gradient.parameter,
                gradient.space,
                BufferAddress(f"{gradient.stage}:{gradient.delta}"),
                parameter.type.shape[0] if pieces else parameter.type.size,
                pieces,
            )
        )
    return tuple(found)


def _result_name(program: Program, stage: Stage, output: Output) -> tuple[str, str]:
    """Kind and name of a result."""
    if isinstance(output, MetricOutput):
        if is_summed(output):
            return "metric", output.metric
        return "column", f"{output.metric}.{output.position}"
    if isinstance(output, DeclaredOutput):
        return "output", output.output
    if isinstance(output, PulledGradientOutput):
        return "gradient", f"{program.space(stage.space).struct}.{output.field}"
    assert isinstance(output, LossOutput)
    return "loss", stage.name


def _shifted(address: Address, offset: int) -> Address:
    if offset == 0:
        return address
    assert not isinstance(address, IndexAddress | SeedAddress | EntriesAddress)
    return attrs.evolve(address, offset=address.offset + offset)


def width_of(value: Value) -> int:
    """Elements of a value; of each child's for a list."""
    found = value.type.element if isinstance(value.type, ListType) else value.type
    return found.size


def rank_of(value: Value) -> int:
    """Dimensions of a value; of each child's for a list."""
    found = value.type.element if isinstance(value.type, ListType) else value.type
    return len(found.shape)


def _scalars(value: Value) -> bool:
    """Whether a value is a list of scalars."""
    return isinstance(value.type, ListType) and not value.type.element.shape


def _with_copies(stage: Stage) -> Cell:
    """The stage's cell with every result computed by an operation that may store it.

    Inputs, constants and slices that leave the cell are copied (scaled by one); parts of a
    transposed product that go to gradient slots are not, as they are stored where they arise.
    """
    ops = stage.cell.definitions()
    added: list[Op] = []
    results = []
    for index, (value, output) in enumerate(zip(stage.cell.results, stage.outputs, strict=True)):
        source = value
        while source in ops and ops[source].opcode == "slice":
            source = ops[source].operands[0]
        partial = source in ops and ops[source].opcode == "matmul_t"
        slot = isinstance(output, SlotOutput | TableSlotOutput)
        computed = value == source and source in ops and bool(ops[source].operands)
        if (partial and slot) or (computed and not partial):
            results.append(value)
            continue
        copy = Value(f"copy.{index}.{value.name}", value.type)
        added.append(Op("scale", (value,), copy, (("factor", 1.0),)))
        results.append(copy)
    return Cell(stage.cell.inputs, (*stage.cell.ops, *added), tuple(results))


class _Cutter:
    """Cuts one stage. `kind` and `step` say for every value how and when it comes about."""

    def __init__(self, options: Fuse, binder: Binder, stage: Stage) -> None:
        self.options, self.binder, self.stage = options, binder, stage
        self.program = binder.program
        self.cell = _with_copies(stage)
        self.ops = self.cell.definitions()
        self.address: dict[Value, Address] = {
            value: binder.input_address(stage.space, bound)
            for value, bound in zip(self.cell.inputs, stage.inputs, strict=True)
        }
        self.matrices = {
            value: bound.parameter
            for value, bound in zip(self.cell.inputs, stage.inputs, strict=True)
            if isinstance(bound, ParameterInput) and rank_of(value) == 2
        }
        self.kind: dict[Value, str] = {}
        self.step: dict[Value, int] = {}
        self.group: dict[Value, int] = {}
        self.home: dict[Value, BufferAddress] = {}
        self.results: list[Result] = []

    # ---- which segment every operation belongs to ----------------------------------------------

    def cut(self) -> list[Segment]:
        """The stage's segments in order of their steps."""
        vertex: set[Value] = set()
        if self.stage.placement != LEVEL:
            used = {op.operands[0] for op in self.cell.ops if op.operands}
            if sum(width_of(value) for value in self.matrices if value in used) <= self.options.vertex_floats:
                products = [op for op in self.cell.ops if set(op.operands) & set(self.matrices)]
                reductions = [op for op in self.cell.ops if not self._unit_legal(op)]
                if products or reductions:
                    vertex = {op.result for op in self.cell.ops}
        while True:
            self._classify(vertex)
            wide = self._too_wide()
            if not wide:
                break
            vertex |= wide
        self._assign_homes()
        groups = sorted({(self.step[v], self.group[v]) for v in self.group})
        return [self._segment(step, group, index) for index, (step, group) in enumerate(groups)]

    def _unit_legal(self, op: Op) -> bool:
        traits = OPS[op.opcode].traits
        if op.opcode in ("matmul", "matmul_t"):
            return op.operands[0] in self.matrices and rank_of(op.operands[1]) == 1
        if op.opcode in ("slice", "concat") and rank_of(op.result) != 1:
            return False
        if op.opcode == "slice":
            begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
            size = end - begin
            return width_of(op.operands[0]) % size == 0 and begin % size == 0
        if op.opcode == "concat":
            return len({width_of(value) for value in op.operands}) == 1
        if LIST in traits:
            return rank_of(op.result) == 1 and WHOLE not in traits
        return ELEMENTWISE in traits and rank_of(op.result) == 1

    def _classify(self, vertex: set[Value]) -> None:
        self.kind, self.step = {}, {}
        for value in self.cell.inputs:
            self.kind[value], self.step[value] = INPUT, 0
        for op in self.cell.ops:
            value = op.result
            if not op.operands:
                self.kind[value], self.step[value] = CONSTANT, 0
            elif op.opcode in ("slice", "concat") and self._is_view(op, vertex):
                self.kind[value] = VIEW
                self.step[value] = max(self.step[v] for v in op.operands)
            elif value not in vertex and self._unit_legal(op):
                self.kind[value] = PARTIAL if op.opcode == "matmul_t" else UNIT
                whole = op.opcode == "matmul"
                self.step[value] = max(self._ready(v, UNIT, whole) for v in op.operands)
            else:
                self.kind[value] = VERTEX
                self.step[value] = max(self._ready(v, VERTEX, False) for v in op.operands)
        self._connect()

    def _is_view(self, op: Op, vertex: set[Value]) -> bool:
        """A slice of something complete or partial, or a concat that only products read."""
        if rank_of(op.result) != 1:
            return False
        if op.opcode == "slice":
            source = op.operands[0]
            if not self.options.enabled:  # what is stored is an operation, unless it is a partial sum
                return op.result not in self.cell.results or self._is_partial(source)
            return self.kind[source] in (INPUT, PARTIAL) or (
                self.kind[source] == VIEW and self.ops[source].opcode == "slice"
            )
        users = [user for user in self.cell.ops if op.result in user.operands]
        return (
            op.result not in self.cell.results
            and bool(users)
            and all(
                user.opcode == "matmul" and user.operands[0] in self.matrices and user.result not in vertex
                for user in users
            )
        )

    def _ready(self, value: Value, kind: str, whole: bool) -> int:
        """The first step in which an operation of `kind` can use `value`."""
        have = self.kind[value]
        if have in (INPUT, CONSTANT):
            return 0
        if have == VIEW:
            return max(self._ready(v, kind, True) for v in self.ops[value].operands)
        joined = self.options.enabled or isinstance(value.type, ListType)  # no buffer holds a list
        same = have == kind and not whole and joined
        return self.step[value] + (0 if same else 1)

    def _connect(self) -> None:
        """Groups the operations of one step and kind that share values: a segment each."""
        self.group = {}
        parent: dict[Value, Value] = {}

        def find(value: Value) -> Value:
            while parent.setdefault(value, value) != value:
                value = parent[value]
            return value

        last: dict[tuple[int, str], Value] = {}
        for op in self.cell.ops:
            value = op.result
            if self.kind[value] not in (UNIT, VERTEX, PARTIAL):
                continue
            find(value)
            for operand in op.operands:
                joined = self.options.enabled or isinstance(operand.type, ListType)
                if joined and self._inside(operand, value):
                    parent[find(operand)] = find(value)
            if not self.options.enabled:
                continue
            if self.kind[value] == VERTEX:
                key = (self.step[value], VERTEX)
                if key in last:
                    parent[find(last[key])] = find(value)
                last[key] = value
            elif op.opcode == "matmul":  # products of one operand share its staging
                key = (self.step[value], f"{op.operands[1].name} {width_of(value)}")
                if key in last:
                    parent[find(last[key])] = find(value)
                last[key] = value
        numbers: dict[Value, int] = {}
        for op in self.cell.ops:
            if op.result in parent:
                self.group[op.result] = numbers.setdefault(find(op.result), len(numbers))

    def _inside(self, operand: Value, user: Value) -> bool:
        """Whether `user` reads `operand` without an exchange."""
        if self.kind[operand] in (INPUT, CONSTANT, VIEW, PARTIAL):
            return False
        want = UNIT if self.kind[user] == PARTIAL else self.kind[user]
        op = self.ops[user]
        return (
            self.kind[operand] == want
            and self.step[operand] == self.step[user]
            and not (op.opcode == "matmul" and want == UNIT)
        )

    def _units(self, values: list[Value]) -> int:
        """The unit width of a segment: what divides every width and every slice."""
        found = 0
        for value in values:
            op = self.ops.get(value)
            if self.kind[value] == PARTIAL:
                found = math.gcd(found, width_of(op.operands[1]))  # type: ignore[union-attr]
                continue
            if rank_of(value) == 1:
                found = math.gcd(found, width_of(value))
            if op is not None and op.opcode == "slice":
                begin, end = int(op.attribute("begin")), int(op.attribute("end"))  # type: ignore[arg-type]
                found = math.gcd(math.gcd(found, begin), end)
            if op is not None and op.opcode not in ("matmul", "matmul_t"):
                for operand in op.operands:
                    if rank_of(operand) == 1:
                        found = math.gcd(found, width_of(operand))
        return max(found, 1)

    def _too_wide(self) -> set[Value]:
        """Values of unit groups whose unit width would be too small to be worth sharing out."""
        found: set[Value] = set()
        for group in set(self.group.values()):
            values = [v for v in self.group if self.group[v] == group]
            if self.kind[values[0]] == VERTEX:
                continue
            units = self._units(values)
            widest = max(
                width_of(self.ops[v].operands[1]) if self.kind[v] == PARTIAL else width_of(v) for v in values
            )
            if widest > MAX_GATES * units:
                found.update(values)
        return found

    # ---- where values that leave their segment live --------------------------------------------

    def _assign_homes(self) -> None:
        """Buffers of outputs, then buffers of what other segments read."""
        self.output_stores: list[tuple[Value, BufferAddress, str | None]] = []
        for value, output in self._split_slots():
            self._bind_output(value, output)
        for op in self.cell.ops:
            for operand in op.operands:
                for source in self._sources(operand):
                    crosses = self.kind[source] in (UNIT, VERTEX, PARTIAL) and not (
                        source is operand and self._inside(operand, op.result)
                    )
                    if crosses and self.kind[op.result] != VIEW and source not in self.home:
                        if _scalars(source):
                            continue  # it lies in its scratch
                        name = f"{self.stage.name}:{source.name}"
                        if name in self.binder.buffers:  # an output is called so: a copy of this value
                            name += ":source"
                        self.binder.buffer(
                            name, self.stage.space, width_of(source), partial=self.kind[source] == PARTIAL
                        )
                        self.home[source] = BufferAddress(name)
                        if self.kind[source] != PARTIAL:
                            self.output_stores.append((source, self.home[source], None))

    def _split_slots(self) -> list[tuple[Value, Output]]:
        """The outputs; a slot for a sum with partial terms becomes a slot for every term."""
        uses: dict[Value, int] = {}
        for value in (*self.cell.results, *(v for op in self.cell.ops for v in op.operands)):
            uses[value] = uses.get(value, 0) + 1
        found: list[tuple[Value, Output]] = []

        def visit(value: Value, output: Output) -> None:
            op = self.ops.get(value)
            splits = (
                self.options.enabled
                and isinstance(output, SlotOutput | TableSlotOutput)
                and op is not None
                and op.opcode == "add"
                and uses[value] == 1
                and all(operand.type == value.type for operand in op.operands)
                and any(self._is_partial(operand) for operand in op.operands)
            )
            if splits and op is not None:
                for operand in op.operands:
                    visit(operand, output)
            else:
                found.append((value, output))

        for value, output in zip(self.cell.results, self.stage.outputs, strict=True):
            visit(value, output)
        dropped = self._dead({value for value, _ in found})
        for value in dropped:
            self.group.pop(value, None)
        return found

    def _dead(self, needed: set[Value]) -> set[Value]:
        live = set(needed)
        for op in reversed(self.cell.ops):
            if op.result in live:
                live.update(op.operands)
        self.cell = attrs.evolve(self.cell, ops=tuple(op for op in self.cell.ops if op.result in live))
        return {value for value in self.ops if value not in live}

    def _is_partial(self, value: Value) -> bool:
        if self.kind[value] == VIEW and self.ops[value].opcode == "slice":
            return self._is_partial(self.ops[value].operands[0])
        if self.kind[value] == PARTIAL:
            return True
        op = self.ops.get(value)
        return op is not None and op.opcode == "add" and any(self._is_partial(v) for v in op.operands)

    def _bind_output(self, value: Value, output: Output) -> None:
        """Gives an output its buffer and notes the store."""
        stage, binder, width = self.stage, self.binder, width_of(value)
        space, children, offset = stage.space, None, 0
        if isinstance(output, StateOutput):
            buffer, layout = binder.state_buffer(stage)
            offset = layout[output.component]
        elif isinstance(output, SavedOutput):
            buffer = binder.buffer(f"{stage.name}:{output.name}", space, width)
        elif isinstance(output, SlotOutput | TableSlotOutput):
            partial = self._is_partial(value) and self.kind[value] in (PARTIAL, VIEW)
            where = path_text(output.path)
            is_list = isinstance(output, SlotOutput) and output.is_list
            if isinstance(output, SlotOutput):
                owner, field = (output.function, output.component), None
            else:
                owner, field = (output.parameter, ""), output.field
            count = sum(name.startswith(f"{stage.name}>") for name in binder.buffers)
            name = f"{stage.name}>{owner[0]}.{owner[1] or field}@{where}#{count}"
            if is_list:
                assert isinstance(output, SlotOutput)
                children = f"{space}:{output.function}({where})"
            buffer = binder.buffer(name, space, width, partial=partial, children=children)
            source = SlotSource(name, space, output.path, is_list, field)
            binder.add_slots(owner, source, partial)
        else:
            kind, name = _result_name(self.program, stage, output)
            buffer = binder.buffer(f"{kind}:{name}", space, width)
            assert isinstance(value.type, TensorType)
            self.results.append(Result(kind, name, buffer.name, space, value.type.shape, value.type.dtype))
        home = BufferAddress(buffer.name, offset)
        reusable = isinstance(output, StateOutput | SavedOutput) and self.kind[value] in (UNIT, VERTEX)
        if reusable and value not in self.home:
            self.home[value] = home
        self.output_stores.append((value, home, children))

    def _sources(self, value: Value) -> list[Value]:
        """The values behind views."""
        if self.kind[value] != VIEW:
            return [value]
        return [source for operand in self.ops[value].operands for source in self._sources(operand)]

    def _pieces(self, value: Value, begin: int, end: int) -> list[Piece]:
        """Elements [begin, end) of a complete value as pieces with addresses."""
        if begin >= end:
            return []
        if self.kind[value] != VIEW:
            return [Piece(_shifted(self._complete_address(value), begin), end - begin)]
        op = self.ops[value]
        if op.opcode == "slice":
            start = int(op.attribute("begin"))  # type: ignore[arg-type]
            return self._pieces(op.operands[0], start + begin, start + end)
        found, position = [], 0
        for operand in op.operands:
            width = width_of(operand)
            found += self._pieces(operand, max(begin - position, 0), min(end - position, width))
            position += width
        return found

    def _complete_address(self, value: Value) -> Address:
        return self.address[value] if self.kind[value] == INPUT else self.home[value]

    def _partial_stores(self, value: Value) -> tuple[tuple[str, int, int, int], ...]:
        """Where a transposed product's result goes: (buffer, offset, begin, end) of each store."""
        found = []
        if value in self.home:
            found.append((self.home[value].buffer, 0, 0, width_of(value)))
        for stored, home, _ in self.output_stores:
            begin, source = 0, stored
            while self.kind[source] == VIEW:
                begin += int(self.ops[source].attribute("begin"))  # type: ignore[arg-type]
                source = self.ops[source].operands[0]
            if source == value:
                found.append((home.buffer, home.offset, begin, begin + width_of(stored)))
        return tuple(found)

    # ---- segments ------------------------------------------------------------------------------

    def _segment(self, step: int, group: int, index: int) -> Segment:
        members = [op for op in self.cell.ops if self.group.get(op.result) == group]
        values = [op.result for op in members]
        mapping = VERTEX if self.kind[values[0]] == VERTEX else UNIT
        inside = {op.result for op in members if self.kind[op.result] != PARTIAL}
        loads: dict[Value, Load] = {}
        products, transposed, ops = [], [], []
        constants: dict[Value, Op] = {}

        def use(value: Value) -> Value:
            """The operand as the segment sees it: its own value, a constant, or a load."""
            if value in inside:
                return value
            if self.kind[value] == CONSTANT:
                constants[value] = self.ops[value]
                return value
            if _scalars(value) and self.kind[value] != INPUT:
                place = self._list_scratch(value)
                loads[value] = Load(value, EntriesAddress(place.buffer, place.children))
                return value
            pieces = self._pieces(value, 0, width_of(value))
            assert len(pieces) == 1, f"{self.stage.name}: {value} is not one piece"
            loads[value] = Load(value, pieces[0].address)
            return value

        for op in members:
            if mapping == UNIT and op.opcode == "matmul":
                pieces = tuple(self._pieces(op.operands[1], 0, width_of(op.operands[1])))
                products.append(Product(op.result, self.matrices[op.operands[0]], pieces))
            elif self.kind[op.result] == PARTIAL:
                delta = use(op.operands[1])
                transposed.append(
                    TransposedProduct(
                        delta,
                        self.matrices[op.operands[0]],
                        width_of(op.result),
                        self._partial_stores(op.result),
                    )
                )
            else:
                ops.append(attrs.evolve(op, operands=tuple(use(v) for v in op.operands)))
        stores = tuple(
            Store(value, home.buffer, home.offset, children)
            for value, home, children in self.output_stores
            if value in inside
        )
        results = tuple(dict.fromkeys([*(s.value for s in stores), *(t.delta for t in transposed)]))
        products_in = tuple(product.result for product in products)
        cell = Cell((*loads, *products_in), (*constants.values(), *ops), tuple(v for v in results))
        return Segment(
            name=f"{self.stage.name}/{index}",
            stage=self.stage.name,
            space=self.stage.space,
            mapping=mapping,
            step=step,
            units=self._units(values) if mapping == UNIT else 0,
            loads=tuple(loads.values()),
            products=tuple(products),
            cell=cell,
            stores=stores,
            transposed=tuple(transposed),
            scratch=tuple(self._list_scratch(value) for value in values if _scalars(value)),
        )

    def _list_scratch(self, value: Value) -> ListScratch:
        """The place of a list of scalars: as many as there are children in the lists it is made of."""
        source = value
        while self.kind[source] != INPUT:
            source = next(v for v in self.ops[source].operands if isinstance(v.type, ListType))
        address = self.address[source]
        assert isinstance(address, ChildrenAddress)
        name = f"{self.stage.name}:{value.name}"
        buffer = self.binder.buffer(name, self.stage.space, 1, children=address.list)
        return ListScratch(value, buffer.name, address.list)
