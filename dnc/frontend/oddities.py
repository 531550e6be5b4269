"""Warns of what is right in form but hardly meant.

In: a checked model. Out: warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dnc.frontend.calls import GUMBEL, SAMPLE
from dnc.frontend.report import Report
from dnc.frontend.terms import PUSH
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
    Local,
    ParameterUse,
    TableRow,
)
from dnc.frontend.walk import below, walk
from dnc.ir.structure import OUTSIDE

CHOICE = "argmax"
NEIGHBOURS = ("prev", "next")


def warn_of_oddities(model: CheckedModel, report: Report) -> None:
    """Looks at every expression of the model."""
    _warn_of_nothing(model, report)
    bodies = [term.value for term in model.terms]
    bodies += [cell.body for cell in model.cells.values()]
    bodies += [body for function in model.functions.values() for _, body in function.bodies]
    for body in bodies:
        named = _named(body)
        for found in walk(body):
            match found:
                case Apply(opcode="cross_entropy", operands=(logits, label)):
                    _warn_of_softmax(model, "cross_entropy", logits, named, report)
                    _warn_of_other_classes(model, logits, label, report)
                case Apply(opcode="kl_divergence", operands=(target, logits)):
                    _warn_of_softmax(model, "kl_divergence", logits, named, report)
                    _warn_of_order(model, target, logits, named, report)
                case Apply(opcode="row", operands=(_, index)):
                    _warn_of_choice(index, named, report)
                case _:
                    pass


def _warn_of_nothing(model: CheckedModel, report: Report) -> None:
    """Losses through which no parameter learns, and nothing outside: of choices, of the data alone."""
    losses = [term for term in model.terms if term.kind == "loss"]
    fixed = {each.name for each in model.parameters if each.frozen or each.running}
    free = [each for each in model.parameters if each.name not in fixed]
    pulled = {name for each in model.structs for name, field in each.fields.items() if field.kind == OUTSIDE}
    if not losses or not free or any(term.kind == PUSH for term in model.terms):
        return
    seen, todo = set[str](), [term.value for term in losses]
    while todo:
        found = todo.pop()
        if isinstance(found.type, Index):
            continue  # no gradient goes through a choice
        match found:
            case ParameterUse(name=name) | TableRow(parameter=name) if name not in fixed:
                return
            case FieldUse(field=name) if name in pulled:
                return
            case FunctionCall(function=name) | CellCall(cell=name) if name not in seen:
                seen.add(name)
                cell = model.cells.get(name)
                todo += [cell.body] if cell else [body for _, body in model.functions[name].bodies]
            case _:
                pass
        todo += below(found)
    report.warning("nothing is learned: no parameter has a gradient from a loss", losses[0].span)


def _named(body: Expression) -> dict[str, Expression]:
    """What is assigned to the names of a body, each of which is assigned once."""
    return {
        name: value for found in walk(body) if isinstance(found, Let) for name, value in found.assignments
    }


def _warn_of_softmax(
    model: CheckedModel, loss: str, logits: Expression, named: Mapping[str, Expression], report: Report
) -> None:
    """These losses take logits: a softmax in front of one is applied twice, and learns badly; log_softmax is
    for nothing."""
    for value in _values(model, _looked_up(logits, named), set()):
        if isinstance(value, Apply) and value.opcode in ("softmax", "log_softmax"):
            report.warning(
                f"{loss} takes logits and applies softmax itself; leave out "
                f"'{value.opcode}' in line {value.span.line}",
                logits.span,
            )


def _warn_of_order(
    model: CheckedModel,
    target: Expression,
    logits: Expression,
    named: Mapping[str, Expression],
    report: Report,
) -> None:
    """Where logits stand in the data, what is computed is a softmax: of the logits of another model."""
    first, second = (list(_values(model, _looked_up(each, named), set())) for each in (target, logits))
    given = [each.field for each in second if isinstance(each, FieldUse)]
    if given and not any(_is_distribution(each) for each in first):
        report.warning(
            f"kl_divergence takes the distribution first, then the logits; '{given[0]}' of the data is "
            "taken for logits",
            logits.span,
        )


def _is_distribution(value: Expression) -> bool:
    """Whether it may be one: what stands in the data, and what is made of logits."""
    return isinstance(value, FieldUse) or (isinstance(value, Apply) and value.opcode in ("softmax", "exp"))


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


def _warn_of_choice(index: Expression, named: Mapping[str, Expression], report: Report) -> None:
    """A row that is chosen by scores of another vertex: row 0 beside the first one, and draws of its own."""
    index = _looked_up(index, named)
    if not isinstance(index, Apply) or index.opcode != CHOICE:
        return
    scores, drawn = _looked_up(index.operands[0], named), False
    if isinstance(scores, Apply) and scores.opcode == GUMBEL:
        scores, drawn = scores.operands[0], True
    scores = _unscaled(scores, named, not drawn)
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


def _unscaled(scores: Expression, named: Mapping[str, Expression], products: bool) -> Expression:
    """Scores without what leaves zeros as they are, and the order of others: a temperature, softmax, a
    component; also without products with parameters if these do not matter, either."""
    multiplied = False  # a softmax of zeros is none of zeros
    while True:
        match _looked_up(scores, named):
            case ComponentUse(base=inner) | Apply(opcode="scale", operands=(inner,)):
                scores = inner
            case Apply(opcode="softmax" | "log_softmax", operands=(inner,)) if not multiplied:
                scores = inner
            case Apply(opcode="matmul", operands=(ParameterUse(), inner)) if products:
                scores, multiplied = inner, True
            case other:
                return other


def _looked_up(expression: Expression, named: Mapping[str, Expression]) -> Expression:
    """What a name stands for; the expression if it is no assigned name."""
    while isinstance(expression, Local) and expression.name in named:
        expression = named[expression.name]
    return expression


def _values(model: CheckedModel, expression: Expression, seen: set[str]) -> Iterator[Expression]:
    """What `expression` is computed by last, seen through calls. seen: functions on the way."""
    match expression:
        case Let(result=result):
            yield from _values(model, _looked_up(result, _named(expression)), seen)
        case CellCall(cell=name):
            yield from _values(model, model.cells[name].body, seen)
        case FunctionCall(function=name):
            if name not in seen:
                seen.add(name)
                for _, body in model.functions[name].bodies:
                    yield from _values(model, body, seen)
        case _:
            yield expression
