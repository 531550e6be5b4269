"""Bind: gives every input and output of a program's stages a place in memory.

In: a differentiated program. Out: a `Binder` that answers with addresses, buffers and index
lists, and collects them for the plan. Guaranteed: one list per distinct question, one buffer per
distinct record; the slots of a function's gradient are listed in stage order, plain before
partial.
"""

from __future__ import annotations

import attrs

from dnc.ir.forest import path_struct
from dnc.ir.plan import (
    Address,
    Buffer,
    BufferAddress,
    ChildrenAddress,
    ChildrenList,
    ClassList,
    GatherAddress,
    GatherList,
    IndexAddress,
    IndexList,
    NoiseList,
    ParameterAddress,
    SeedAddress,
    ShareList,
    SlotList,
    SlotsAddress,
    SlotSource,
    TableGradient,
    TableList,
    VectorList,
    padded,
)
from dnc.ir.program import (
    FieldInput,
    GradientInput,
    Input,
    NoiseInput,
    ParameterInput,
    Program,
    SavedInput,
    SeedInput,
    ShareInput,
    Stage,
    StateInput,
    TableInput,
)
from dnc.ir.states import state_buffer, state_layout
from dnc.ir.structure import OUTSIDE, VECTOR, Path


def path_text(path: Path) -> str:
    """A path as it stands in the names of lists and buffers."""
    return ".".join(path) or "self"


@attrs.define
class Binder:
    """Collects buffers, lists and gradient slots while stages are bound."""

    program: Program
    buffers: dict[str, Buffer] = attrs.field(factory=dict)
    lists: dict[str, IndexList] = attrs.field(factory=dict)
    # (function, component) or table name -> slots, plain and partial ones
    slots: dict[tuple[str, str], list[tuple[SlotSource, bool]]] = attrs.field(factory=dict)
    asked: dict[str, tuple[str, str, str]] = attrs.field(factory=dict)

    def buffer(self, name: str, space: str, width: int, **options: object) -> Buffer:
        """The buffer called `name`, made at the first request."""
        made = Buffer(name, space, padded(max(width, 1)), **options)  # type: ignore[arg-type]
        return self.buffers.setdefault(name, made)

    def state_buffer(self, stage: Stage) -> tuple[Buffer, dict[str, int]]:
        """The state records of a forward function stage, and the offsets of the components."""
        assert stage.function is not None
        layout = state_layout(self.program, stage.function)
        return self.buffer(state_buffer(stage.space), stage.space, layout[""]), layout

    def _list(self, made: IndexList) -> str:
        return self.lists.setdefault(made.name, made).name

    def selection(self, space: str, bound: ParameterInput) -> str | None:
        """The list of the index that selects from a stack; None for any other parameter."""
        if not bound.field:
            return None
        name = f"{space}:{path_text(())}.{bound.field}"
        return self._list(ClassList(name, space, bound.field, ()))

    def input_address(self, space: str, bound: Input) -> Address:
        """Where rows of `space` find what `bound` stands for."""
        if isinstance(bound, ParameterInput):
            return ParameterAddress(bound.parameter, select=self.selection(space, bound))
        if isinstance(bound, SeedInput):
            return SeedAddress()
        if isinstance(bound, NoiseInput):
            kind = "draws" if bound.draws else "noise"
            return IndexAddress(self._list(NoiseList(f"{space}:{kind}", space, bound.draws)))
        if isinstance(bound, ShareInput):
            name = f"{space}:share {bound.parameter}.{bound.field}"
            return GatherAddress(self._list(ShareList(name, space, bound.parameter, bound.field)))
        if isinstance(bound, SavedInput):
            return BufferAddress(f"{bound.stage}:{bound.name}")
        if isinstance(bound, GradientInput):
            return self._gradient_address(space, bound)
        where = path_text(bound.path)
        if isinstance(bound, TableInput):
            name = f"{space}:{bound.parameter}[{where}.{bound.field}]"
            return GatherAddress(self._list(TableList(name, space, bound.parameter, bound.field, bound.path)))
        if isinstance(bound, StateInput):
            offset = state_layout(self.program, bound.function)[bound.component]
            name = f"{space}:{bound.function}({where})"
            if bound.is_list:
                return ChildrenAddress(
                    self._list(ChildrenList(name, space, bound.function, bound.path)), offset
                )
            return GatherAddress(self._list(GatherList(name, space, bound.function, bound.path)), offset)
        assert isinstance(bound, FieldInput)
        return self._field_address(space, bound, f"{space}:{where}.{bound.field}")

    def _field_address(self, space: str, bound: FieldInput, name: str) -> Address:
        structs = {struct.name: struct for struct in self.program.structs}
        struct = structs[path_struct(structs, self.program.space(space).struct, bound.path)]
        field = struct.field(bound.field)
        if field.kind in (VECTOR, OUTSIDE):
            made = VectorList(name, space, bound.field, bound.path, max(field.width, 1))
            return GatherAddress(self._list(made))
        return IndexAddress(self._list(ClassList(name, space, bound.field, bound.path)))

    def _gradient_address(self, space: str, bound: GradientInput) -> Address:
        """Slot lists are completed by `finish`, once every slot is known."""
        function = self.program.function(bound.function)
        component = next(item for item in function.state if item.name == bound.component)
        name = f"{space}:grad {bound.function}.{bound.component}"
        self.asked[name] = (space, bound.function, bound.component)
        return SlotsAddress(f"{name}:plain", f"{name}:partial", padded(component.type.size))

    def add_slots(self, owner: tuple[str, str], source: SlotSource, partial: bool) -> None:
        """Registers slots for (function, component), or for (table, "")."""
        self.slots.setdefault(owner, []).append((source, partial))

    def finish(self) -> None:
        """Makes the slot lists that gradient inputs asked for."""
        for name, (space, function, component) in self.asked.items():
            for kind, partial in (("plain", False), ("partial", True)):
                sources = tuple(
                    source
                    for source, is_partial in self.slots.get((function, component), ())
                    if is_partial == partial
                )
                if sources:
                    self._list(SlotList(f"{name}:{kind}", space, sources, partial))

    def completed(self, address: Address) -> Address:
        """`address` without the slot lists that turned out to be empty."""
        if not isinstance(address, SlotsAddress):
            return address
        plain = address.plain if address.plain in self.lists else None
        partial = address.partial if address.partial in self.lists else None
        return attrs.evolve(address, plain=plain, partial=partial)

    def table_gradients(self) -> tuple[TableGradient, ...]:
        """The sources of every trained table's gradient."""
        found = []
        for parameter in self.program.parameters:
            slots = self.slots.get((parameter.name, ""), [])
            if slots:
                found.append(
                    TableGradient(
                        parameter.name,
                        parameter.row_size,
                        tuple(source for source, partial in slots if not partial),
                        tuple(source for source, partial in slots if partial),
                    )
                )
        return tuple(found)
