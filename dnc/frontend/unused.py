"""Leaves out what no loss, metric or output needs, with a warning each.

In: a checked model. Out: the same without unused parameters, cells and functions.
"""

from __future__ import annotations

import attrs

from dnc.frontend.report import Report
from dnc.frontend.typed import (
    CellCall,
    CheckedModel,
    Expression,
    FunctionCall,
    Let,
    Local,
    ParameterUse,
    TableRow,
)
from dnc.frontend.walk import walk


def warn_unused(model: CheckedModel, report: Report) -> CheckedModel:
    """The model with only what is used."""
    used: set[tuple[str, str]] = set()
    todo: list[Expression] = [term.value for term in model.terms]
    while todo:
        for found in walk(todo.pop()):
            match found:
                case ParameterUse(name=name) | TableRow(parameter=name):
                    used.add(("parameter", name))
                case CellCall(cell=name) if ("cell", name) not in used:
                    used.add(("cell", name))
                    todo.append(model.cells[name].body)
                case FunctionCall(function=name) if ("function", name) not in used:
                    used.add(("function", name))
                    todo += [body for _, body in model.functions[name].bodies]
                case _:
                    pass
    _warn_of_names(model, report)
    for parameter in model.parameters:
        if ("parameter", parameter.name) not in used:
            report.warning(f"parameter '{parameter.name}' is never used and is left out", parameter.span)
    for cell in model.cells.values():
        if ("cell", cell.name) not in used:
            report.warning(f"cell '{cell.name}' is never used", cell.span)
    for function in model.functions.values():
        if ("function", function.name) not in used and not function.implicit:
            report.warning(f"function '{function.name}' is never used", function.span)
    return attrs.evolve(
        model,
        parameters=tuple(p for p in model.parameters if ("parameter", p.name) in used),
        cells={name: cell for name, cell in model.cells.items() if ("cell", name) in used},
        functions={name: f for name, f in model.functions.items() if ("function", name) in used},
    )


def _warn_of_names(model: CheckedModel, report: Report) -> None:
    """Names that a block assigns and never reads."""
    bodies = [cell.body for cell in model.cells.values()]
    bodies += [body for function in model.functions.values() for _, body in function.bodies]
    for body in bodies:
        found = list(walk(body))
        read = {each.name for each in found if isinstance(each, Local)}
        for block in (each for each in found if isinstance(each, Let)):
            for name, value in block.assignments:
                if name not in read:
                    parts = sum(other.span == value.span for _, other in block.assignments) > 1
                    hint = "; a part that nothing needs is called _" if parts else ""
                    report.warning(f"'{name}' is never used{hint}", value.span)
