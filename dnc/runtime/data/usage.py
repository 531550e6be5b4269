"""What a program reads of its data, and the layout that follows from it.

In: a `Program`. Out: its `Layout`. Guaranteed: of a program without stages only the structs matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from dnc.diagnostics import fail
from dnc.ir.cell import Op, Value
from dnc.ir.forest import path_struct, program_structs
from dnc.ir.program import (
    BACKWARD,
    ROOT,
    DeclaredOutput,
    FieldInput,
    FollowOutput,
    Input,
    LossOutput,
    MetricOutput,
    Program,
    SavedOutput,
    Stage,
    StateInput,
    TableInput,
)
from dnc.ir.reads import closure, makers, needed
from dnc.ir.structure import ARM, CLASS, FIRST, LAST, LIST, NEXT, PREVIOUS, VECTOR, VERTEX_KINDS, Struct
from dnc.runtime.data.layout import Layout, handed_in, in_data

BESIDE = (SavedOutput, FollowOutput)
"""What a stage of any kind may have beside its own outputs."""


def reachable(structs: dict[str, Struct], start: str) -> set[str]:
    """The structs that a vertex of `start` may refer to, directly or not."""

    def targets(struct: str) -> Iterator[str]:
        fields = structs[struct].fields.values()
        return (field.target for field in fields if field.kind in VERTEX_KINDS and field.target is not None)

    return closure(targets(start), targets)


_Step = tuple[str, str, str | None]
"""A step of a path: (struct, step, the step after it)."""


def _used_steps(program: Program, structs: dict[str, Struct], stages: Iterable[Stage]) -> Iterator[_Step]:
    """Every step of every path that one of the stages reads."""
    start = {space.name: space.struct for space in program.spaces}
    for stage in stages:
        for source in stage.inputs:
            if isinstance(source, (StateInput, TableInput, FieldInput)):
                struct = start[stage.space]
                for position, step in enumerate(source.path):
                    after = source.path[position + 1] if position + 1 < len(source.path) else None
                    yield struct, step, after
                    struct = path_struct(structs, struct, (step,))


def _nonempty(structs: dict[str, Struct], steps: Iterable[_Step]) -> frozenset[tuple[str, str]]:
    """The lists to whose first or last one of the steps goes, and that no vertex of theirs can hold."""
    found = set()
    for struct, step, after in steps:
        field = structs[struct].fields.get(step)
        if after in (FIRST, LAST) and field is not None and field.kind == LIST and field.target is not None:
            recursive = struct == field.target or struct in reachable(structs, field.target)
            found |= set() if recursive else {(struct, step)}
    return frozenset(found)


def _targets(program: Program, structs: dict[str, Struct]) -> frozenset[tuple[str, str]]:
    """The vectors that only stages of losses and metrics read."""
    start = {space.name: space.struct for space in program.spaces}
    read: dict[bool, set[tuple[str, str]]] = {False: set(), True: set()}
    others = _beside_judges(program)
    for stage in program.stages:
        for source in stage.inputs:
            if isinstance(source, FieldInput) and stage.direction != BACKWARD:
                struct = path_struct(structs, start[stage.space], source.path)
                if structs[struct].fields[source.field].kind == VECTOR:
                    read[stage.name not in others].add((struct, source.field))
    return frozenset(read[True] - read[False])


def _beside_judges(program: Program) -> set[str]:
    """The stages of functions and outputs, and those that make something for them. What stages of losses and
    metrics keep for gradients, or hand on to running parameters, makes them no others."""
    forward = [stage for stage in program.stages if stage.direction != BACKWARD]
    others = (
        stage.name
        for stage in forward
        if not all(isinstance(each, (LossOutput, MetricOutput, *BESIDE)) for each in stage.outputs)
    )
    return needed(program, others)


def _predicting(program: Program) -> list[Stage]:
    """The stages that outputs need; all of a program without outputs, of which somebody asks for states."""
    outputs = {
        stage.name
        for stage in program.stages
        if any(isinstance(each, DeclaredOutput) for each in stage.outputs)
    }
    found = needed(program, outputs)
    return [stage for stage in program.stages if not outputs or stage.name in found]


Use = tuple[str, int]
"""What takes a field: an opcode, and which of its operands the field is."""
ITSELF: Use = ("", 0)
"""The field is a result as it is."""


@attrs.frozen
class _Read:
    """A class that a result is worked out from. at_root: whether only the sample's root has to have it."""

    struct: str
    field: str
    at_root: bool
    use: Use


def _class_reads(
    program: Program, structs: dict[str, Struct], results: list[tuple[Stage, Value]]
) -> set[_Read]:
    """The classes that some results of stages are worked out from."""
    spaces = {space.name: space for space in program.spaces}
    made: dict[str, dict[Value, Op]] = {}
    given: dict[str, dict[Value, Input]] = {}
    found, seen = set[_Read](), set[tuple[str, Value, Use]]()
    todo = [(stage, value, ITSELF) for stage, value in results]
    while todo:
        stage, value, use = todo.pop()
        if stage.name not in given:
            made[stage.name] = stage.cell.definitions()
            given[stage.name] = dict(zip(stage.cell.inputs, stage.inputs, strict=True))
        source = given[stage.name].get(value)
        if isinstance(source, FieldInput):
            space = spaces[stage.space]
            struct = path_struct(structs, space.struct, source.path)
            if structs[struct].fields[source.field].kind == CLASS:
                at_root = space.selection == ROOT and not source.path
                found.add(_Read(struct, source.field, at_root, use))
        elif (stage.name, value, use) not in seen:
            seen.add((stage.name, value, use))
            if source is not None:
                todo += [(other, each, use) for other, each in makers(program, source)]
            else:
                op = made[stage.name][value]
                todo += [(stage, each, (op.opcode, at)) for at, each in enumerate(op.operands)]
    return found


def _class_inputs(
    program: Program, structs: dict[str, Struct]
) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """The classes without which outputs cannot be: those read at any vertex, as (struct, field), and those of
    the root's struct that are read at the sample's root alone.

    One that a loss or a metric takes in another way than outputs do is to be predicted, as the words of a
    list that a program also goes on with from its own words: it is needed only where every output reads it.
    What an output hands out as it is, is null where it is absent.
    """
    outputs = dict[str, list[tuple[Stage, Value]]]()
    judged = list[tuple[Stage, Value]]()
    for stage in program.stages:
        for value, output in zip(stage.cell.results, stage.outputs, strict=True):
            if isinstance(output, DeclaredOutput):
                outputs.setdefault(output.output, []).append((stage, value))
            elif isinstance(output, LossOutput | MetricOutput):
                judged.append((stage, value))
    reads = [_class_reads(program, structs, results) for results in outputs.values()]
    reads = [read for read in reads if all(each.use != ITSELF for each in read)]
    uses = {(each.struct, each.field, each.use) for read in reads for each in read}
    targets = {
        (each.struct, each.field)
        for each in _class_reads(program, structs, judged)
        if (each.struct, each.field, each.use) not in uses
    }
    by_output = [{(each.struct, each.field) for each in read} for read in reads]
    needed = {each for read in by_output for each in read}
    needed = {each for each in needed if each not in targets or all(each in read for read in by_output)}
    anywhere = {(each.struct, each.field) for read in reads for each in read if not each.at_root}
    return frozenset(needed & anywhere), frozenset(field for _, field in needed - anywhere)


def _root_labels(program: Program, structs: dict[str, Struct]) -> frozenset[str]:
    """The classes of the root's struct that are read at the sample's root alone."""
    spaces = {space.name: space for space in program.spaces}
    read: dict[bool, set[str]] = {False: set(), True: set()}
    for stage in program.stages:
        space = spaces[stage.space]
        for source in stage.inputs:
            if isinstance(source, FieldInput):
                struct = path_struct(structs, space.struct, source.path)
                if struct == program.root and structs[struct].fields[source.field].kind == CLASS:
                    read[space.selection == ROOT and not source.path].add(source.field)
    return frozenset(read[True] - read[False])


def layout_of(program: Program, labels_required: bool = True) -> Layout:
    """The layout of a program's data."""
    structs = program_structs(program)
    for struct in program.structs:
        if ARM in struct.fields:
            raise fail(f"struct {struct.name}: a field cannot be called 'arm', data files use that key")
    steps = list(_used_steps(program, structs, program.stages))
    predicting = _used_steps(program, structs, _predicting(program))
    ordered = {struct_name for struct_name, step, _ in steps if step in (PREVIOUS, NEXT)}
    fields = frozenset(structs[program.root].fields)
    targets = _targets(program, structs)
    inputs, root_inputs = _class_inputs(program, structs)
    return Layout(
        {name: in_data(struct) for name, struct in structs.items()},
        program.root,
        fields,
        labels_required,
        frozenset(ordered),
        _nonempty(structs, steps),
        _nonempty(structs, predicting),
        targets,
        _root_labels(program, structs),
        inputs,
        root_inputs,
        {name: handed_in(struct) for name, struct in structs.items()},
    )
