"""Records of states: what a function leaves for each of its rows, and where in a record a component lies.

In: a plan, a program. Out: buffers by name, offsets in words.
"""

from __future__ import annotations

from dnc.ir.plan import Plan, padded
from dnc.ir.program import Program


def state_buffer(space: str) -> str:
    """The buffer of the state records that a function leaves for rows of a space."""
    return f"{space}:state"


def state_buffers(plan: Plan, name: str) -> set[str]:
    """The buffers whose records a list of states leads to."""
    (item,) = (item for item in plan.lists if item.name == name)
    function = getattr(item, "function", "")
    return {state_buffer(stage.space) for stage in plan.program.stages if stage.function == function}


def state_layout(program: Program, function: str) -> dict[str, int]:
    """Offset of each component in the state record of `function`; key "" is the record's width."""
    layout, offset = {}, 0
    for component in program.function(function).state:
        layout[component.name] = offset
        offset += padded(component.type.size)
    layout[""] = offset
    return layout
