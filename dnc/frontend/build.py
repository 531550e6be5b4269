"""From a checked program to the stage graph.

In: a `CheckedModel`. Out: a `Program` with forward stages only. Guaranteed: one stage per arm of a
matched function and one per other function, each in a space of its own; cells are inlined; equal
inputs of a stage are shared; nothing is computed that no loss, metric or output needs.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dnc.diagnostics import Diagnostic, DiagnosticError, Source, fail
from dnc.frontend.calls import FOLLOW
from dnc.frontend.demand import Demand, demands
from dnc.frontend.depth import too_deep
from dnc.frontend.inline import StageBuilder
from dnc.frontend.parser import parse_partly
from dnc.frontend.sites import Sites
from dnc.frontend.terms import OUTPUT, PUSH, push_field
from dnc.frontend.typecheck import check
from dnc.frontend.typed import CheckedModel, Expression, FieldUse, Function, Index, TableRow, Term
from dnc.frontend.walk import calls, walk
from dnc.ir import program as ir
from dnc.ir.measures import MEASURES
from dnc.ir.program import Program, Space, Stage
from dnc.ir.structure import Path, Struct


def load_program(source: Source, settings: Mapping[str, int]) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program in `source` with dimensions set by `settings`, and warnings.

    DiagnosticError holds all mistakes that were found.
    """
    if not isinstance(settings, Mapping) or not all(map(_is_size, settings, settings.values())):
        raise fail(f"settings are {settings!r}, expected whole numbers by the names of dimensions")
    model, errors = parse_partly(source)
    try:
        checked, warnings = check(model, settings, errors)
        return build(checked), warnings
    except RecursionError:
        raise too_deep(model) from None


def _is_size(name: object, size: object) -> bool:
    return isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool)


def build(model: CheckedModel) -> Program:
    """The stage graph of a checked program."""
    needed = demands(model)
    spaces: list[Space] = []
    stages: list[Stage] = []
    sites = Sites()
    # What only arms call that nothing needs is itself not needed.
    order = [function for function in _callees_first(model) if function.name in needed]
    for function in order:
        _function_stages(model, function, needed[function.name], spaces, stages, sites)
    _term_stages(model, spaces, stages, sites)
    _check_followed(model, stages)
    functions = tuple(
        ir.Function(function.name, function.struct, function.components, function.span) for function in order
    )
    parameters = tuple(
        ir.Parameter(
            p.name, p.kind, p.dimensions, p.initializer, p.frozen, p.rate, p.running, p.density, p.span
        )
        for p in model.parameters
    )
    return Program(
        model.name,
        model.dimensions,
        model.structs,
        model.root,
        parameters,
        functions,
        tuple(spaces),
        tuple(stages),
    )


def _check_followed(model: CheckedModel, stages: list[Stage]) -> None:
    """Every running parameter that is read has something that it follows."""
    outputs = [output for stage in stages for output in stage.outputs]
    followed = {output.parameter for output in outputs if isinstance(output, ir.FollowOutput)}
    inputs = [bound for stage in stages for bound in stage.inputs]
    read = {bound.parameter for bound in inputs if isinstance(bound, ir.ParameterInput)}
    errors = [
        Diagnostic(
            f"nothing moves the running param '{p.name}', expected: follow({p.name}, value, rate)",
            p.span,
            notes=("a parameter that keeps its first values is a frozen param",),
        )
        for p in model.parameters
        if p.running and p.name in read - followed
    ]
    if errors:
        raise DiagnosticError(*errors)


def _callees_first(model: CheckedModel) -> list[Function]:
    """The functions, each after those that it calls, recursion aside."""
    order: list[Function] = []
    visited: set[str] = set()
    for start in model.functions:
        todo = [(start, False)]
        while todo:
            name, done = todo.pop()
            if done:
                order.append(model.functions[name])
            elif name not in visited:
                visited.add(name)
                todo.append((name, True))
                called = [call.function for _, body in model.functions[name].bodies for call in calls(body)]
                todo += [(callee, False) for callee in reversed(called)]
    return order


def _function_stages(
    model: CheckedModel,
    function: Function,
    needed: Demand,
    spaces: list[Space],
    stages: list[Stage],
    sites: Sites,
) -> None:
    bodies = [(arm, body) for arm, body in function.bodies if arm in needed.arms]
    if function.matched:
        parts: list[tuple[str, tuple[str, ...], Expression]] = [
            (f"{function.name}.{arm}", (arm,), body) for arm, body in bodies
        ]
    else:
        parts = [(function.name, tuple(arm for arm, _ in bodies), bodies[0][1])]
    outputs = tuple(ir.StateOutput(component.name) for component in function.components)
    for name, arms, body in parts:
        spaces.append(Space(name, function.struct, arms, needed.selection))
        stage = StageBuilder(model, sites)
        values = stage.components(body, function.components)
        stages.append(stage.finish(name, function.name, values, outputs, function.span))


def _term_stages(model: CheckedModel, spaces: list[Space], stages: list[Stage], sites: Sites) -> None:
    """A stage per loss, per metric, and per domain of outputs."""
    used = {stage.name for stage in stages}

    def add(name: str, terms: list[Term], outputs: list[ir.Output]) -> None:
        number, unique = 1, name
        while unique in used:
            number += 1
            unique = f"{name}{number}"
        used.add(unique)
        term = terms[0]
        spaces.append(Space(unique, term.struct, term.arms, term.selection))
        stage = StageBuilder(model, sites)
        values = [stage.value(term.value, term.name or "loss") for term in terms]
        if stage.followed and term.kind != "loss":
            what = "an output" if term.kind in (OUTPUT, PUSH) else f"a {term.kind}"
            found = f"'{FOLLOW}' in {what}, which training does not compute"
            raise DiagnosticError(
                Diagnostic(f"{found}, expected it in a function or a loss", stage.followed[0][2])
            )
        stages.append(stage.finish(unique, None, values, tuple(outputs), term.span))

    domains: dict[tuple[str, tuple[str, ...], str], list[Term]] = {}
    metrics: dict[str, list[Term]] = {}
    for term in model.terms:
        if term.kind == "loss":
            add("loss", [term], [ir.LossOutput()])
        elif term.kind == "metric":
            metrics.setdefault(term.name, []).append(term)
        elif term.kind == PUSH:
            add(term.name, [term], [ir.DeclaredOutput(term.name, push_field(term))])
        else:
            domains.setdefault((term.struct, term.arms, term.selection), []).append(term)
    for name, terms in metrics.items():
        measures = (term.measure for term in terms)
        outputs = [ir.MetricOutput(name, measure, at) for at, measure in enumerate(measures)]
        (own,) = (struct for struct in model.structs if struct.name == terms[0].struct)
        known = _known(terms, own)
        add(name, terms, [attrs.evolve(outputs[0], known=known), *outputs[1:]])
    for terms in domains.values():
        add("output", terms, [ir.DeclaredOutput(term.name) for term in terms])


def _known(terms: list[Term], struct: Struct) -> tuple[tuple[str, Path], ...]:
    """The classes and tokens that a metric reads and that may be absent: of other vertices, and of its own
    those that are declared so; what goes along lists sees these vertices, too."""
    found: dict[tuple[str, Path], None] = {}
    for term in terms:
        for use in walk(term.value):
            match use:
                case FieldUse(type=Index(), field=field, path=path) | TableRow(field=field, path=path):
                    if path or struct.fields[field].may_miss:
                        found[field, path] = None
    return () if MEASURES[terms[0].measure].in_lists else tuple(found)
