"""At which vertices every function is needed.

In: a checked model. Out: per function the arms and whether only sample roots need it. A call on the
vertex itself passes the demand of its caller on; a call anywhere else needs all vertices.
"""

from __future__ import annotations

import attrs

from dnc.frontend.typed import CheckedModel, Expression
from dnc.frontend.walk import calls
from dnc.ir.program import ALL, ROOT


@attrs.frozen
class Demand:
    """The rows on which a function must run."""

    selection: str
    arms: tuple[str, ...]

    def join(self, other: Demand) -> Demand:
        """The rows of both."""
        selection = ROOT if self.selection == other.selection == ROOT else ALL
        return Demand(selection, tuple(dict.fromkeys((*self.arms, *other.arms))))


def demands(model: CheckedModel) -> dict[str, Demand]:
    """The demand for every function that is used, arms in the order of the struct."""
    arms_of = {struct.name: tuple(arm.name for arm in struct.arms) for struct in model.structs}
    found: dict[str, Demand] = {}
    todo: list[tuple[Expression, Demand]] = [
        (term.value, Demand(term.selection, term.arms)) for term in model.terms
    ]
    while todo:
        body, demand = todo.pop()
        for call in calls(body):
            function = model.functions[call.function]
            all_arms = arms_of[function.struct]
            asked = demand if call.path == () else Demand(ALL, all_arms)
            before = found.get(function.name)
            joined = asked if before is None else before.join(asked)
            joined = Demand(joined.selection, tuple(arm for arm in all_arms if arm in joined.arms))
            if joined == before:
                continue
            found[function.name] = joined
            for arm, body_of_arm in function.bodies:
                if arm in joined.arms:
                    own = (arm,) if function.matched else joined.arms
                    todo.append((body_of_arm, Demand(joined.selection, own)))
    return found
