"""The words of a list that a program makes: the output that holds them, and the one that ends it.

In: a list that goes on, the name of an output, a word. Out: an `Ending` of the program's. Guaranteed: what
ends no list is a DiagnosticError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dnc.api.arguments import check_whole
from dnc.diagnostics import fail
from dnc.ir.plan import Result
from dnc.ir.program import ALL
from dnc.runtime.carried import Carried
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.predictions import class_count, named_classes

if TYPE_CHECKING:
    from dnc.api.model import Model


def ending_of(model: Model, own: Carried, name: str | None, end: int | str) -> Ending:
    """The end of a list by a word, a number or the class of that name, in the output `name`."""
    output = words_output(model, own, name)
    return Ending(output, _number_of(model, output, end))


def words_output(model: Model, own: Carried, name: str | None) -> str:
    """The output that has a whole number for every element of a list; `name`, if that is one.

    DiagnosticError where there is none, or several and no name.
    """

    def fits(result: Result) -> bool:
        space = model.program.space(result.space)
        return space.struct == own.element and space.selection == ALL and result.dtype == "i32"

    fitting = [each.name for each in model.plan.results if each.kind == "output" and fits(each)]
    if name is None and len(fitting) == 1:
        return fitting[0]
    if name is None or name not in fitting:
        known = ", ".join(fitting) or "none"
        what = "name the output of the words" if name is None else f"'{name}' is no output of words"
        option = " (--output NAME)" if name is None and fitting else ""
        raise fail(f"{what}: one that has a class for every {own.element}; outputs that do: {known}{option}")
    return name


def _number_of(model: Model, output: str, end: int | str) -> int:
    if isinstance(end, str):
        words = named_classes(model.program, model.vocabularies or {}).get(output, ())
        if end not in words:
            known = f"none of {len(words)} classes is called so" if words else "its classes are numbers"
            raise fail(f"the word '{end}' that ends a list is unknown: {known}")
        return words.index(end)
    check_whole("end", end, 0)
    classes = class_count(model.program, model.vocabularies or {}, output)
    if classes is not None and end >= classes:
        raise fail(f"end is {end}, expected 0 to {classes - 1}: '{output}' has {classes} classes")
    return int(end)
