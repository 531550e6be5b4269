"""Warns of what is right in form but hardly meant.

In: a checked model. Out: warnings.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnc.frontend.calls import GUMBEL, SAMPLE
from dnc.frontend.report import Report
from dnc.frontend.typed import (
    Apply,
    CellCall,
    CheckedModel,
    ComponentUse,
    Expression,
    FieldUse,
    FunctionCall,
    Index,
    Let,
    ParameterUse,
    TableRow,
)
from dnc.frontend.walk import walk

CHOICE = "argmax"
NEIGHBOURS = ("prev", "next")


def warn_of_oddities(model: CheckedModel, report: Report) -> None:
    """Looks at every expression of the model."""
    bodies = [term.value for term in model.terms]
    bodies += [cell.body for cell in model.cells.values()]
    bodies += [body for function in model.functions.values() for _, body in function.bodies]
    for body in bodies:
        for found in walk(body):
            if isinstance(found, Apply) and found.opcode == "cross_entropy":
                _warn_of_softmax(model, found.operands[0], report)
                _warn_of_other_classes(model, found.operands[0], found.operands[1], report)
            elif isinstance(found, Apply) and found.opcode == "row":
                _warn_of_choice(found.operands[1], report)


def _warn_of_softmax(model: CheckedModel, logits: Expression, report: Report) -> None:
    """`cross_entropy` takes logits: a softmax before it is applied twice, and learns badly."""
    for value in _values(model, logits, set()):
        if isinstance(value, Apply) and value.opcode in ("softmax", "log_softmax"):
            report.warning(
                "cross_entropy takes logits and applies softmax itself; leave out "
                f"'{value.opcode}' in line {value.span.line}",
                logits.span,
            )


def _warn_of_other_classes(
    model: CheckedModel, logits: Expression, label: Expression, report: Report
) -> None:
    """Logits for one dimension of classes, and a label of another one that is as large."""
    if not isinstance(label, FieldUse) or not isinstance(label.type, Index):
        return
    own, counted = label.type.dimension.name, set(_counted(model, logits, set()))
    fields = [field for struct in model.structs for field in struct.fields.values()]
    others = counted & {field.dimension.name for field in fields if field.dimension is not None}
    if others and own not in counted:
        other = min(others)
        report.warning(
            f"there are as many logits as '{other}', and the label is one of '{own}': "
            f"what argmax chooses among them is called by the names of '{other}'",
            logits.span,
        )


def _counted(model: CheckedModel, vector: Expression, seen: set[str]) -> Iterator[str]:
    """The dimensions with which parameters are declared that a vector has the size of; seen: as below."""
    shapes = {parameter.name: parameter.dimensions for parameter in model.parameters}
    for value in _values(model, vector, seen):
        match value:
            case ParameterUse(name=name) | TableRow(parameter=name):
                yield shapes[name][-1].name
            case Apply(opcode="matmul", operands=(ParameterUse(name=name), _)):
                yield shapes[name][-2].name
            case Apply(opcode="add", operands=operands):
                for operand in operands:
                    yield from _counted(model, operand, seen)
            case _:
                pass


def _warn_of_choice(index: Expression, report: Report) -> None:
    """A row that is chosen by scores of another vertex: row 0 beside the first one, and draws of its own."""
    if not isinstance(index, Apply) or index.opcode != CHOICE:
        return
    scores, drawn = index.operands[0], False
    if isinstance(scores, Apply) and scores.opcode == GUMBEL:
        scores, drawn = scores.operands[0], True
    while isinstance(scores, ComponentUse):
        scores = scores.base
    if not isinstance(scores, FunctionCall) or not scores.path:
        return
    step, name = ".".join(scores.path), scores.function
    if drawn:
        found = f"this draws a class of its own, not the one of '{SAMPLE}' at '{step}'"
    elif scores.path[-1] in NEIGHBOURS and scores.instead is None:
        found = f"where '{step}' is absent, '{name}' is zeros, and row 0 is read"
    else:
        return
    report.warning(f"{found}; expected a function that reads the row, called at '{step}'", index.span)


def _values(model: CheckedModel, expression: Expression, seen: set[str]) -> Iterator[Expression]:
    """What `expression` is computed by last, seen through calls. seen: functions on the way."""
    match expression:
        case Let(result=result):
            yield from _values(model, result, seen)
        case CellCall(cell=name):
            yield from _values(model, model.cells[name].body, seen)
        case FunctionCall(function=name):
            if name not in seen:
                seen.add(name)
                for _, body in model.functions[name].bodies:
                    yield from _values(model, body, seen)
        case _:
            yield expression
