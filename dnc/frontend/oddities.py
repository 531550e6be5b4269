"""Warns of what is right in form but hardly meant.

In: a checked model. Out: warnings.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnc.frontend.report import Report
from dnc.frontend.typed import Apply, CellCall, CheckedModel, Expression, FunctionCall, Let
from dnc.frontend.walk import walk


def warn_of_oddities(model: CheckedModel, report: Report) -> None:
    """`cross_entropy` takes logits: a softmax before it is applied twice, and learns badly."""
    bodies = [term.value for term in model.terms]
    bodies += [cell.body for cell in model.cells.values()]
    bodies += [body for function in model.functions.values() for _, body in function.bodies]
    for body in bodies:
        for found in walk(body):
            if isinstance(found, Apply) and found.opcode == "cross_entropy":
                for value in _values(model, found.operands[0], set()):
                    if isinstance(value, Apply) and value.opcode in ("softmax", "log_softmax"):
                        report.warning(
                            "cross_entropy takes logits and applies softmax itself; leave out "
                            f"'{value.opcode}' in line {value.span.line}",
                            found.operands[0].span,
                        )


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
