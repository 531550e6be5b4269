"""Training on several devices: each runs its share of a batch, and they add up their gradients before the
update, which all of them make with the same bits (data parallelism, as in Persistent RNNs).

In: batches, how many devices. Out: the shares of a batch, encoded like batches of a group, one behind the
other, device by device; and the instructions by which gradients meet. Guaranteed: what lies in memory of one
device at an address lies there on all others; a sum has the order of the devices, whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.ir.plan import Plan, TableGradient, padded
from dnc.runtime.encoder.assign import Burdens, back_and_forth
from dnc.runtime.encoder.words import Numbers


def shares_of(batches: Sequence[Ints], burdens: Burdens, devices: int) -> list[Ints]:
    """The shares of every batch, one device's behind the other's: back and forth by falling cost."""
    if devices == 1:
        return list(batches)
    found = list[Ints]()
    for batch in batches:
        order = burdens.lighter[batch].argsort(kind="stable")
        turns = back_and_forth(devices).take(np.arange(len(batch)), mode="wrap")
        found += [batch[order[turns == device]] for device in range(devices)]
    return found


def of_batch(counts: Numbers, devices: int) -> Numbers:
    """Sums of the counts of a batch's shares, for every share: [shares, ...]."""
    if devices == 1:
        return counts
    whole = counts.reshape(-1, devices, *counts.shape[1:]).sum(axis=1)
    found: Numbers = whole.repeat(devices, axis=0)
    return found


def meeting(
    plan: Plan, number: Mapping[str, int], exchange: Callable[[], list[int | str]]
) -> list[list[int | str]]:
    """Instructions from behind an exchange that follows all gradients up to the one in front of the update.

    Their fields are named as `values` has them.
    """
    among: list[int | str] = ["device", "devices"]
    found = [[number[isa.DEVICE_BARRIER], 1, *among], exchange()]
    for at, _ in enumerate(_areas(plan)):
        own = [f"{field} reduced {at}" for field in isa.ALL_REDUCE_FIELDS[: -len(among)]]
        found.append([number[isa.ALL_REDUCE], *own, *among])
    return [*found, exchange(), [number[isa.DEVICE_BARRIER], isa.MEETINGS, *among], exchange()]


def values(
    plan: Plan, base: Callable[[str], int | Numbers], tokens: Mapping[str, Numbers], shares: int, devices: int
) -> dict[str, int | Numbers]:
    """What the fields are of each of some shares, and how many norms there are then.

    base: addresses by name. tokens: how many rows of each table all devices touch.
    """
    found: dict[str, int | Numbers] = {"device": np.arange(shares) % devices, "devices": devices}
    norms: int | Numbers = 0
    for at, area in enumerate(_areas(plan)):
        count: int | Numbers = area.floats
        width = 0 if area.table is None else area.table.width
        if area.table is not None:
            count = tokens[area.table.parameter] * padded(width)
        found[f"width reduced {at}"] = width if width < padded(width) else 0
        found[f"base reduced {at}"] = base(area.base) + area.first // 4
        found[f"count reduced {at}"] = count
        found[f"first_norm reduced {at}"] = norms if area.has_norm else isa.NO_NORM
        if area.has_norm:
            norms = norms + -(-count // isa.NORM_CHUNK)
    return found | {"norms": norms}


@attrs.frozen
class _Area:
    """What is added up: so many floats behind the first one of a base, or the touched rows of a table."""

    base: str
    first: int = 0
    floats: int = 0
    table: TableGradient | None = None
    has_norm: bool = True


def _areas(plan: Plan) -> list[_Area]:
    """Gradients of dense parameters, what running ones move by, gradients of tables."""
    found = [_Area(isa.GRADIENTS, 0, isa.summed_floats(plan))]
    if followed := isa.followed_floats(plan):
        found.append(_Area(isa.GRADIENTS, isa.trained_floats(plan), followed, has_norm=False))
    return found + [_Area(isa.table_base(t.parameter), table=t) for t in plan.table_gradients]
