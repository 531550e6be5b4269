"""Cuts a stage into segments, exactly where distributions disagree.

In: a stage and the `Distribution` of its values. Out: segments, results, and in the `Binder` buffers and
lists. Guaranteed: a value is exchanged through a buffer only where it crosses segments.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dnc.ir.cell import Cell, Op, Value
from dnc.ir.measures import is_summed
from dnc.ir.ops.each import REPEAT
from dnc.ir.plan import (
    UNIT,
    VERTEX,
    Address,
    BufferAddress,
    ChildrenAddress,
    EntriesAddress,
    IndexAddress,
    ListScratch,
    Load,
    Piece,
    Product,
    RepeatedAddress,
    Result,
    SeedAddress,
    Segment,
    SlotSource,
    Store,
    TransposedProduct,
)
from dnc.ir.program import (
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
from dnc.passes.copies import with_copies
from dnc.passes.distribute import (
    CONSTANT,
    EVERYWHERE,
    INPUT,
    MADE,
    PARTIAL,
    VIEW,
    Distribution,
    FuseOptions,
    is_scalar_list,
)


def shifted(address: Address, offset: int) -> Address:
    """The address of what lies `offset` elements behind."""
    if offset == 0:
        return address
    assert not isinstance(address, IndexAddress | SeedAddress | EntriesAddress)
    return attrs.evolve(address, offset=address.offset + offset)


class Cutter:
    """Cuts one stage. Behind `cut`, `results` are the stage's."""

    def __init__(self, binder: Binder, stage: Stage, options: FuseOptions) -> None:
        self.binder, self.stage, self.joins = binder, stage, options.enabled
        self.program = binder.program
        self.cell = with_copies(stage)
        self.ops = self.cell.definitions()
        self.address: dict[Value, Address] = {
            value: binder.input_address(stage.space, bound)
            for value, bound in zip(self.cell.inputs, stage.inputs, strict=True)
        }
        self.matrices = {
            value: bound
            for value, bound in zip(self.cell.inputs, stage.inputs, strict=True)
            if isinstance(bound, ParameterInput) and len(value.tensor.shape) == 2
        }
        self.found = Distribution(self.cell, self.matrices, stage, options)
        self.kind, self.step, self.group = self.found.kind, self.found.step, self.found.group
        self.home: dict[Value, BufferAddress] = {}
        self.repeated: set[Value] = set()  # what products of the segment at hand read of it
        self.results: list[Result] = []

    def cut(self) -> list[Segment]:
        """The stage's segments in order of their steps."""
        self._assign_homes()
        made = [value for value in self.group if not self._is_read_only(value)]
        groups = sorted({(self.step[value], self.group[value]) for value in made})
        return [self._segment(step, group, index) for index, (step, group) in enumerate(groups)]

    def _is_made_anew(self, value: Value) -> bool:
        """Whether who reads a value works it out for itself: a list of vectors, which no buffer holds, or of
        a value that every child sees."""
        if value not in self.ops or not isinstance(value.type, ListType):
            return False
        return not is_scalar_list(value) or self.ops[value].opcode == REPEAT

    def _is_read_only(self, value: Value) -> bool:
        """Whether a value is made where it is read, and nowhere else."""
        return self._is_made_anew(value) and value not in self.cell.results

    def _reads(self, op: Op) -> Iterator[Value]:
        """What an operation reads, and what is read to make lists for it."""
        for operand in op.operands:
            if self._is_made_anew(operand):
                yield from self._reads(self.ops[operand])
            else:
                yield operand

    # ---- where values that leave their segment live --------------------------------------------

    def _assign_homes(self) -> None:
        """Buffers of outputs, then buffers of what other segments read."""
        self.output_stores: list[tuple[Value, BufferAddress, str | None]] = []
        for value, output in self._split_slots():
            self._bind_output(value, output)
        for op in self.cell.ops:
            for operand in () if self._is_read_only(op.result) else self._reads(op):
                for source in self.found.behind_views(operand):
                    inside = source is operand and self.found.inside(operand, op.result)
                    inside = inside or self.found.is_repeated(source, op)
                    crosses = self.kind[source] in MADE and not inside
                    if crosses and self.kind[op.result] != VIEW and source not in self.home:
                        if is_scalar_list(source):
                            continue  # it lies in its scratch
                        name = f"{self.stage.name}:{source.name}"
                        if name in self.binder.buffers:  # an output is called so: a copy of this value
                            name += ":source"
                        self.binder.buffer(
                            name, self.stage.space, source.tensor.size, partial=self.kind[source] == PARTIAL
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
                self.joins
                and isinstance(output, SlotOutput | TableSlotOutput)
                and op is not None
                and op.opcode == "add"
                and uses[value] == 1
                and all(operand.type == value.type for operand in op.operands)
                and any(self.found.is_partial(operand) for operand in op.operands)
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

    def _bind_output(self, value: Value, output: Output) -> None:
        """Gives an output its buffer and notes the store."""
        stage, binder, width = self.stage, self.binder, value.tensor.size
        space, children, offset = stage.space, None, 0
        if isinstance(output, StateOutput):
            buffer, layout = binder.state_buffer(stage)
            offset = layout[output.component]
        elif isinstance(output, SavedOutput):
            buffer = binder.buffer(f"{stage.name}:{output.name}", space, width)
        elif isinstance(output, SlotOutput | TableSlotOutput):
            partial = self.found.is_partial(value) and self.kind[value] in (PARTIAL, VIEW)
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
            whose = f"{name}@{space}" if kind == "gradient" else name  # every arm has a stage of its own
            buffer = binder.buffer(f"{kind}:{whose}", space, width)
            assert isinstance(value.type, TensorType)
            self.results.append(Result(kind, name, buffer.name, space, value.type.shape, value.type.dtype))
        home = BufferAddress(buffer.name, offset)
        whole = self.kind[value] in MADE and self.kind[value] != PARTIAL
        reusable = isinstance(output, StateOutput | SavedOutput) and whole
        if reusable and value not in self.home:
            self.home[value] = home
        self.output_stores.append((value, home, children))

    def _pieces(self, value: Value, begin: int, end: int) -> list[Piece]:
        """Elements [begin, end) of a complete value as pieces with addresses."""
        if begin >= end:
            return []
        if self.kind[value] != VIEW:
            return [Piece(shifted(self._complete_address(value), begin), end - begin)]
        op = self.ops[value]
        if op.opcode == "slice":
            start = int(op.attribute("begin"))  # type: ignore[arg-type]
            return self._pieces(op.operands[0], start + begin, start + end)
        found, position = [], 0
        for operand in op.operands:
            width = operand.tensor.size
            found += self._pieces(operand, max(begin - position, 0), min(end - position, width))
            position += width
        return found

    def _complete_address(self, value: Value) -> Address:
        if self.kind[value] == INPUT:
            return self.address[value]
        return RepeatedAddress(value) if value in self.repeated else self.home[value]

    def _partial_stores(self, value: Value) -> tuple[tuple[str, int, int, int], ...]:
        """Where a transposed product's result goes: (buffer, offset, begin, end) of each store."""
        found = []
        if value in self.home:
            found.append((self.home[value].buffer, 0, 0, value.tensor.size))
        for stored, home, _ in self.output_stores:
            begin, source = 0, stored
            while self.kind[source] == VIEW:
                begin += int(self.ops[source].attribute("begin"))  # type: ignore[arg-type]
                source = self.ops[source].operands[0]
            if source == value:
                found.append((home.buffer, home.offset, begin, begin + stored.tensor.size))
        return tuple(found)

    # ---- segments ------------------------------------------------------------------------------

    def _segment(self, step: int, group: int, index: int) -> Segment:
        own = (op for op in self.cell.ops if self.group.get(op.result) == group)
        members = [op for op in own if not self._is_read_only(op.result)]
        values = [op.result for op in members]
        mapping = VERTEX if self.kind[values[0]] == VERTEX else UNIT
        inside = {op.result for op in members if self.kind[op.result] != PARTIAL}
        loads: dict[Value, Load] = {}
        products, transposed, ops, anew = [], [], list[Op](), set[Value]()
        constants: dict[Value, Op] = {}

        def use(value: Value) -> Value:
            """The operand as the segment sees it: its own value, a constant, or a load."""
            if value in inside:
                return value
            if self.kind[value] == CONSTANT:
                constants[value] = self.ops[value]
                return value
            if self._is_made_anew(value):
                if value not in anew:
                    anew.add(value)
                    made = self.ops[value]
                    ops.append(attrs.evolve(made, operands=tuple(use(v) for v in made.operands)))
                return value
            if is_scalar_list(value) and self.kind[value] != INPUT:
                place = self._list_scratch(value)
                loads[value] = Load(value, EntriesAddress(place.buffer, place.children))
                return value
            pieces = self._pieces(value, 0, value.tensor.size)
            assert len(pieces) == 1, f"{self.stage.name}: {value} is not one piece"
            loads[value] = Load(value, pieces[0].address)
            return value

        for op in members:
            if mapping == UNIT and op.opcode == "matmul":
                self.repeated = self.found.repeated & inside
                pieces = tuple(self._pieces(op.operands[1], 0, op.operands[1].tensor.size))
                self.repeated = set()
                bound = self.matrices[op.operands[0]]
                select = self.binder.selection(self.stage.space, bound)
                products.append(Product(op.result, bound.parameter, pieces, select))
            elif self.kind[op.result] == PARTIAL:
                delta, bound = use(op.operands[1]), self.matrices[op.operands[0]]
                transposed.append(
                    TransposedProduct(
                        delta,
                        bound.parameter,
                        op.result.tensor.size,
                        self._partial_stores(op.result),
                        self.binder.selection(self.stage.space, bound),
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
            units=self.found.units(values) if mapping == UNIT else 0,
            loads=tuple(loads.values()),
            products=tuple(products),
            cell=cell,
            stores=stores,
            transposed=tuple(transposed),
            scratch=tuple(self._list_scratch(value) for value in values if is_scalar_list(value)),
            repeated=tuple(v for v in values if v in self.found.repeated or self.kind[v] == EVERYWHERE),
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
