"""The names of the fields in the file that is written, and which of them are left out.

In: what a format calls its fields, and what the user calls them. Out: samples with the user's names.
Guaranteed: no two fields of a sample get one name; a field without a name is left out, and so is a label that
says there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnc.diagnostics import fail
from dnc.ir.structure import ARM, LINKS, ROOT
from dnc.runtime.data.problems import names, suggestion

LABELS = ("tag", "label", "xpos", "relation")
"""The fields that are labels."""


class Naming:
    """known: the fields of a format by their own names; given: what they are to be called. unlabelled: the
    label that says there is none."""

    def __init__(
        self, format: str, known: Mapping[str, str], given: Mapping[str, str], unlabelled: str | None = None
    ) -> None:
        self.unlabelled, self.left_out = unlabelled, 0
        for name, new in given.items():
            if name not in known:
                hint = suggestion(name, known) or f"; its fields are {names(known)}"
                raise fail(f"--fields: the format '{format}' has no field '{name}'{hint}")
            if new and not (new.isidentifier() and new.isascii()):
                raise fail(f"--fields: found '{new}' for {name}, expected the name of a field")
            if new in (ARM, ROOT, *LINKS):
                raise fail(f"--fields: no field of a program can be called '{new}', as {name} would be")
        self.names = {**known, **given}
        used: dict[str, str] = {}
        for name, new in self.names.items():
            if new and new in used:
                raise fail(f"--fields: {used[new]} and {name} are both called '{new}'")
            used[new] = name
        self.written = frozenset(name for name, new in self.names.items() if new)
        self._changes = any(name != new for name, new in self.names.items())

    def apply(self, sample: dict[str, Any], flat: bool) -> int:
        """Renames the fields of a sample in place; how many vertices it has.

        flat: the sample holds tables of columns, whose structs and arms have names too.
        """
        vertices = 0
        todo = [sample]
        while todo:
            value = todo.pop()
            for each in value.values():
                if type(each) is dict:
                    todo.append(each)
                elif type(each) is list and each and type(each[0]) is dict:
                    todo.extend(each)
            if flat and ARM in value:
                value[ARM] = [self.names.get(arm, arm) for arm in value[ARM]]
            if flat and value is not sample:
                vertices += len(next(iter(value.values())))
            if self.unlabelled is not None:
                self._leave_out_labels(value)
            if self._changes:
                renamed = {self.names.get(name, name): each for name, each in value.items()}
                renamed.pop("", None)
                value.clear()
                value |= renamed
            vertices += not flat
        return vertices

    def _leave_out_labels(self, value: dict[str, Any]) -> None:
        """Of a vertex, or of all in a table of columns."""
        for name in LABELS:
            found = value.get(name)
            if type(found) is list:
                value[name] = [None if each == self.unlabelled else each for each in found]
                self.left_out += found.count(self.unlabelled) if name in self.written else 0
            elif found == self.unlabelled:
                del value[name]
                self.left_out += name in self.written
