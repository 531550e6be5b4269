"""Single passes on textual IR, in any order that makes sense: `dnc opt`.

In: a program as IR or as `.dn`, and a list of passes such as `canonicalize,hoist{split=false},fuse`. Out:
the program, or the plan behind `fuse`, as text. Guaranteed: the program is verified before the first pass
and after each; a list that cannot run is refused with the place in it before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import attrs

from dnc.compiler import FUSE, MODES, PlanOptions, fuse_pass, plan_passes, program_passes, read_program
from dnc.diagnostics import Diagnostic, DiagnosticError, Source, Span, fail, read_source
from dnc.ir.machine import Machine, machine
from dnc.ir.parser import parse_program
from dnc.ir.plan import Plan, WeightFormat
from dnc.ir.plan_text import print_plan
from dnc.ir.printer import print_program
from dnc.ir.program import BACKWARD, Program
from dnc.ir.remarks import Remark, Remarks
from dnc.ir.verifier import program_errors
from dnc.passes.pass_manager import Deciding

STEP = re.compile(r"\s*([^,{}\s][^,{}]*?)\s*(\{[^{}]*\})?\s*(,|$)")
OPTION = re.compile(r"\s*([^=\s]+)\s*=\s*([^=\s]+)(?:\s+|$)")
LIST = "-p"  # what a list of passes is called in messages

FORWARD_ONLY = ("inline", "merge", "hoist", "differentiate", "drop-training")
TILES = "select-tiles"


@attrs.frozen
class Asked:
    """A pass in the list. options: as written, each with its place."""

    name: str
    span: Span
    options: tuple[tuple[str, str, Span], ...] = ()


@attrs.frozen
class Optimized:
    """What came of it. after: the text behind every pass, in order, with the pass's name."""

    text: str
    after: tuple[tuple[str, str], ...]
    remarks: tuple[Remark, ...]


def run_passes(
    path: str | Path,
    passes: str,
    *,
    text: str | None = None,
    settings: Mapping[str, int] | None = None,
    target: str = "cpu",
) -> Optimized:
    """Runs `passes` on the program in a file: `.dn`, else IR. text: the file's content, where it has none.

    target: the machine of the passes behind `fuse`. DiagnosticError for mistakes in the list, in the IR
    and in the program, each with its place.
    """
    chip = machine(target)
    asked = read_list(passes)
    steps = [(each, _made(each, chip)) for each in asked]
    program = _read(path, text, settings or {})
    _check_order(asked, program, str(path), [step.name for step in plan_passes(PlanOptions(), chip)])
    collected = Remarks()
    value: Program | Plan = program
    shown = []
    for each, step in steps:
        collected.decided_by = each.name
        try:
            value = _apply(step, value, collected, chip, f"after pass '{each.name}'")
        except ValueError as error:  # an option that this program or machine does not allow
            raise DiagnosticError(Diagnostic(f"'{each.name}': {error}", each.span)) from None
        shown.append((each.name, _show(value)))
    return Optimized(_show(value), tuple(shown), collected.all())


def _read(path: str | Path, text: str | None, settings: Mapping[str, int]) -> Program:
    if text is None and str(path).endswith(".dn"):
        return read_program(path, settings)[1]
    if settings:
        raise fail(f"{path}: sizes can be set in a .dn file, not in IR, where they stand everywhere")
    source = read_source(path) if text is None else Source(str(path), text)
    program = parse_program(source.text, source.name)
    _verify(program, source.name)
    return program


def _verify(program: Program, where: str) -> None:
    """DiagnosticError if the program is not valid; `where`: for mistakes that have no place."""
    found = program_errors(program)
    if found:
        raise DiagnosticError(
            *(e if e.span else attrs.evolve(e, message=f"{where}: {e.message}") for e in found)
        )


def _show(value: Program | Plan) -> str:
    return print_program(value) if isinstance(value, Program) else print_plan(value) + "\n"


def _apply(step: Any, value: Program | Plan, remarks: Remarks, chip: Machine, when: str) -> Program | Plan:
    made: Program | Plan = step.decide(value, remarks) if isinstance(step, Deciding) else step(value)
    if isinstance(made, Program):
        _verify(made, when)
    elif isinstance(value, Program):  # fuse
        trains = any(stage.direction == BACKWARD for stage in value.stages)
        layout = WeightFormat(column_major=not chip.is_gpu)
        made = attrs.evolve(made, target=chip.name, trains=trains, weight_format=layout)
    return made


# ---- the list -----------------------------------------------------------------------------------


def known_passes(chip: Machine) -> dict[str, Any]:
    """Every pass by name, with its default options, in the order of the pipeline."""
    program = [step for mode in MODES for step in program_passes(mode)]
    steps: list[Any] = [*program, fuse_pass(PlanOptions(), chip), *plan_passes(PlanOptions(), chip)]
    return {getattr(step, "name", FUSE): step for step in steps}


def read_list(text: str) -> tuple[Asked, ...]:
    """The passes in a list; DiagnosticError shows where it is wrong."""
    source, at, found = Source(LIST, text), 0, []
    while text[at:].strip():
        match = STEP.match(text, at)
        if match is None:
            raise _wrong(source, at, 1, "expected a pass, and its options in braces, as hoist{split=false}")
        name, options, comma = match.groups()
        span = Span(source, 1, match.start(1) + 1, len(name))
        given = () if options is None else tuple(_options(source, match.start(2) + 1, options[1:-1]))
        found.append(Asked(name, span, given))
        at = match.end()
        if comma and not text[at:].strip():
            raise _wrong(source, match.start(3), 1, "expected a pass behind the comma")
    return tuple(found)


def _options(source: Source, first: int, text: str) -> Iterator[tuple[str, str, Span]]:
    at = 0
    while text[at:].strip():
        match = OPTION.match(text, at)
        if match is None:
            raise _wrong(
                source, first + at, len(text) - at, "expected options as name=value, with blanks between"
            )
        name, value = match.groups()
        yield name, value, Span(source, 1, first + match.start(1) + 1, match.end(2) - match.start(1))
        at = match.end()


def _wrong(source: Source, at: int, length: int, message: str) -> DiagnosticError:
    return DiagnosticError(Diagnostic(message, Span(source, 1, at + 1, max(length, 1))))


def _made(asked: Asked, chip: Machine) -> Any:
    """The pass with its options."""
    known = known_passes(chip)
    if asked.name not in known:
        notes = (f"passes: {', '.join(known)}",)
        raise DiagnosticError(Diagnostic(f"there is no pass '{asked.name}'", asked.span, notes=notes))
    step = known[asked.name]
    able = {
        field.name: field.type
        for field in attrs.fields(attrs.resolve_types(type(step)))
        if field.init and field.name not in ("machine", "constants")
    }
    values = {}
    for name, text, span in asked.options:
        if name not in able:
            options = ", ".join(able) or "none"
            message = f"'{asked.name}' has no option '{name}'"
            raise DiagnosticError(Diagnostic(message, span, notes=(f"options: {options}",)))
        values[name] = _value(name, text, able[name], span)
    try:
        return attrs.evolve(step, **values)
    except ValueError as error:
        raise DiagnosticError(Diagnostic(f"'{asked.name}': {error.args[0]}", asked.span)) from None


def _value(name: str, text: str, kind: object, span: Span) -> object:
    """An option's value, of the kind that the pass says; "none" for none where it may have none."""
    kinds = get_args(kind) or (kind,)
    if NoneType in kinds and text == "none":
        return None
    if str in kinds:
        return text
    if bool in kinds:
        if text in ("true", "false"):
            return text == "true"
        expected = "true or false"
    else:
        if text.isdecimal() and len(text) < 11 and int(text) < 2**31:
            return int(text)
        expected = "a whole number below 2**31"
    raise DiagnosticError(Diagnostic(f"{name}: found '{text}', expected {expected}", span))


# ---- what may follow what ------------------------------------------------------------------------


def _check_order(asked: tuple[Asked, ...], program: Program, name: str, plan_steps: list[str]) -> None:
    """DiagnosticError where a pass cannot run on what is there before it. plan_steps: the passes from plan to
    plan, in the order of the pipeline; those behind the one for tiles need tiles."""
    backward = name if any(stage.direction == BACKWARD for stage in program.stages) else ""
    fused = tiled = ""
    tiles_at = plan_steps.index(TILES)
    for each in asked:
        problem = ""
        if fused and each.name not in plan_steps:
            problem = f"works on programs, and behind '{fused}' there is a plan"
        elif not fused and each.name in plan_steps:
            problem = f"works on plans: '{FUSE}' has to stand before it"
        elif not tiled and each.name in plan_steps[tiles_at + 1 :]:
            problem = f"needs the plan's tiles: '{TILES}' has to stand before it"
        elif tiled and each.name in plan_steps[:tiles_at]:
            problem = f"changes what tiles are chosen for: it has to stand before '{TILES}'"
        elif backward and each.name in FORWARD_ONLY:
            made = f"'{backward}' has made" if backward != name else f"{name} has"
            problem = f"works on forward stages, and {made} backward ones"
        if problem:
            raise DiagnosticError(Diagnostic(f"'{each.name}' {problem}", each.span))
        backward = each.name if each.name == "differentiate" else backward
        fused = each.name if each.name == FUSE else fused
        tiled = each.name if each.name == TILES else tiled
