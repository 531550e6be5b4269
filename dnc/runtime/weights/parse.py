"""Maps: from a TOML file to nodes (docs/pytorch.md has the language).

In: a file, whose table `parameters` says of every parameter what it is made of. Out: a `WeightMap`.
Guaranteed: a key that does not exist, or a value of a wrong kind, is a DiagnosticError with the file
and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dnc.diagnostics import fail
from dnc.ir.types import LARGEST_FLOAT
from dnc.runtime.data.problems import kind_of, names, shown, suggestion
from dnc.runtime.toml_file import read_toml
from dnc.runtime.weights.nodes import Concat, Constant, Expand, Gates, Node, Source, Squeeze, Sum, Transpose

KEEP = "keep"
_MAKERS = ("from", "sum", "concat", "constant", KEEP)
_KEYS = (*_MAKERS, "axis", "sizes", "squeeze", "transpose", "gates", "expand")
_ARROW = "->"


@attrs.frozen
class WeightMap:
    """What every parameter is made of; None: it keeps its first values. path: None for an empty map.

    ignore: patterns of tensors that need not be used.
    """

    path: str | None = None
    parameters: Mapping[str, Node | None] = attrs.field(factory=dict)
    ignore: tuple[str, ...] = ()

    def of(self, parameter: str) -> Node | None:
        """What a parameter is made of; without an entry a tensor of its own name."""
        return self.parameters.get(parameter, Source(parameter))

    def where(self, parameter: str) -> str:
        """A parameter's place, for messages."""
        if self.path is None or parameter not in self.parameters:
            return parameter
        return f"{self.path}: parameters.{parameter}"


def read_map(path: str | Path) -> WeightMap:
    """The map in a TOML file."""
    values = read_toml(path)
    for key in values:
        if key not in ("parameters", "ignore"):
            hint = suggestion(key, ("parameters", "ignore")) or "; a map has 'parameters' and 'ignore'"
            raise fail(f"{path}: there is no key '{key}'{hint}")
    entries = values.get("parameters", {})
    if not isinstance(entries, dict):
        raise fail(f"{path}: parameters is {kind_of(entries)}, expected a table")
    ignore = values.get("ignore", [])
    other = [each for each in ignore if not isinstance(each, str)] if isinstance(ignore, list) else [ignore]
    if other:
        found = f"{'holds' if isinstance(ignore, list) else 'is'} {kind_of(other[0])}"
        raise fail(f"{path}: ignore {found}, expected an array of names, as ['decoder.*']")
    try:
        nodes = {name: _entry(f"{path}: parameters.{name}", value) for name, value in entries.items()}
    except RecursionError:
        raise fail(f"{path}: nested too deeply") from None
    return WeightMap(str(path), nodes, tuple(ignore))


def _entry(where: str, value: Any) -> Node | None:
    """What a parameter is made of, None for its first values."""
    if isinstance(value, dict) and KEEP in value:
        if value != {KEEP: True}:
            raise fail(f"{where}: keep stands alone, as {{ keep = true }}")
        return None
    return _node(where, value)


def _node(where: str, value: Any) -> Node:
    if isinstance(value, str):
        return Source(value)
    if not isinstance(value, dict):
        notes = ("it stands in front of [parameters]",) if where.endswith(".ignore") else ()
        raise fail(f"{where} is {kind_of(value)}, expected the name of a tensor or a table", *notes)
    for key in value:
        if key not in _KEYS or key == KEEP:
            hint = suggestion(key, _KEYS) or f"; there are {names(_KEYS)}"
            raise fail(f"{where}: there is no key '{key}'{hint}")
    makers = [key for key in _MAKERS if key in value]
    if len(makers) != 1:
        found = names(makers) if makers else "none"
        raise fail(f"{where}: found {found} of {names(_MAKERS[:4])}, expected one of them")
    node = _maker(where, makers[0], value)
    if "squeeze" in value:
        node = Squeeze(node, _number(f"{where}.squeeze", value["squeeze"], 0))
    if "transpose" in value:
        if not isinstance(value["transpose"], bool):
            raise fail(f"{where}.transpose is {kind_of(value['transpose'])}, expected true or false")
        node = Transpose(node) if value["transpose"] else node
    if "gates" in value:
        node = _gates(f"{where}.gates", node, value["gates"])
    if "expand" in value:
        node = Expand(node, _number(f"{where}.expand", value["expand"], 0))
    return node


def _maker(where: str, kind: str, value: Mapping[str, Any]) -> Node:
    """The node of `from`, `sum`, `concat` or `constant`."""
    of = value[kind]
    for key in ("axis", "sizes"):
        if key in value and kind != "concat":
            raise fail(f"{where}: '{key}' goes with 'concat', found '{kind}'")
    if kind == "constant":
        if isinstance(of, bool) or not isinstance(of, int | float):
            raise fail(f"{where}.constant is {kind_of(of)}, expected a number")
        try:
            number = float(of)
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST_FLOAT:
            raise fail(f"{where}.constant is {shown(of)}, expected a number that a 32-bit float holds")
        return Constant(number)
    if kind == "from":
        if isinstance(of, list):
            raise fail(f"{where}.from is an array, expected one tensor; several are a 'sum' or a 'concat'")
        return _node(f"{where}.from", of)
    if not isinstance(of, list) or not of:
        found = "empty" if isinstance(of, list) else kind_of(of)
        raise fail(f"{where}.{kind} is {found}, expected an array of names or tables")
    nodes = tuple(_node(f"{where}.{kind}[{at}]", each) for at, each in enumerate(of))
    if kind == "sum":
        return Sum(nodes)
    sizes = value.get("sizes", [1] * len(nodes))
    if not isinstance(sizes, list) or len(sizes) != len(nodes):
        found = f"{len(sizes)} numbers" if isinstance(sizes, list) else kind_of(sizes)
        raise fail(f"{where}.sizes is {found}, expected one for each of {len(nodes)} parts")
    shares = tuple(_number(f"{where}.sizes[{at}]", each, 1) for at, each in enumerate(sizes))
    return Concat(nodes, _number(f"{where}.axis", value.get("axis", 0), 0), shares)


def _number(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise fail(f"{where} is {shown(value)}, expected a whole number from {least} on")
    return value


def _gates(where: str, node: Node, text: Any) -> Node:
    """`i f g o -> i o g f`: the parts as they are stored, and as they are wanted."""
    form = "expected the stored order and the wanted one, as 'i f g o -> i o g f'"
    if not isinstance(text, str) or text.count(_ARROW) != 1:
        raise fail(f"{where} is {repr(text) if isinstance(text, str) else kind_of(text)}, {form}")
    stored, wanted = (tuple(side.split()) for side in text.split(_ARROW))
    if not stored or not wanted:
        raise fail(f"{where} is {text!r}, {form}")
    twice = [name for at, name in enumerate(stored) if name in stored[:at]]
    if twice:
        raise fail(f"{where}: '{twice[0]}' is stored twice")
    unknown = [name for name in wanted if name not in stored]
    if unknown:
        raise fail(f"{where}: '{unknown[0]}' is wanted, but what is stored is {names(stored)}")
    again = [name for at, name in enumerate(wanted) if name in wanted[:at]]
    left = [name for name in stored if name not in wanted]
    if again and left:  # either alone has its uses
        raise fail(f"{where}: '{again[0]}' is wanted twice, and '{left[0]}' not at all")
    return Gates(node, stored, wanted)
