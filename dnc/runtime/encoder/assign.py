"""Which replica takes which samples of a batch.

In: batches, and what every sample costs. Out: an `Assignment`. A replica runs a level for all its samples at
once, and what a level costs beside its rows is paid once: so samples with many levels go together, to a
replica that gets fewer rows. Guaranteed: what a batch's replicas get follows from the batch, the plan and how
many replicas there are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir.costs import ON_CORES, Costs, nanoseconds
from dnc.ir.forest import Ints
from dnc.ir.machine import Constants, machine
from dnc.ir.plan import Plan
from dnc.ir.program import LEVEL
from dnc.runtime.encoder.words import Numbers, Spread
from dnc.runtime.prepared import Indices, SpaceRows

MANY_ROWS = 1024.0  # of which one costs what a row costs
FEW = 2  # samples a replica, for which an order by what they cost will do
LAST = 2  # samples a replica that are shared out one by one, behind all others
HALVINGS = 6  # of the range in which the end of all replicas lies
# Where replicas are spared: of how many samples each may have then, and how many times as late they may end.
MOST_SPARED, AS_SOON = 4, 1.005
# How many rows that it does not have a level pays for on tensor cores, as these work on whole blocks of
# vertices: fitted to launches on an H200.
EMPTY = 5.0


@attrs.define(eq=False)
class Assignment:
    """The samples of a group ordered by (batch, replica), and of each the batch * replicas + replica.

    replicas: those that have samples, in one batch or another; they are the first ones. Where parts of the
    recursion are apart (`parts.py`), owners: the same of every part, [parts, samples]; of_space: the part of
    a space, the first one for others; apart: the batches whose parts are.
    """

    samples: Ints
    owner: Numbers
    spread: Spread
    replicas: int
    owners: Numbers | None = None
    of_space: Mapping[str, int] = attrs.field(factory=dict)
    apart: NDArray[np.bool_] | None = None


@attrs.frozen
class Price:
    """What a row of a space costs a replica, and a level of it beside its rows, in ns as predicted."""

    row: float
    level: float


def prices(plan: Plan) -> dict[str, Price]:
    """The prices of all spaces that have segments."""
    found, known = dict[str, Price](), segment_prices(plan)
    for segment in plan.segments:
        stage, price = plan.program.stage(segment.stage), known[segment.name]
        level = price.level if stage.placement == LEVEL else 0.0
        before = found.get(stage.space, Price(0.0, 0.0))
        found[stage.space] = Price(before.row + price.row, before.level + level)
    return found


def segment_prices(plan: Plan) -> dict[str, Price]:
    """The prices of all segments; in the recursion their workers meet behind every level."""
    assert plan.tiling is not None
    constants, costs = machine(plan.target).constants, Costs(plan, 1, plan.tiling.workers)
    meeting = 2 * constants.instruction + nanoseconds(costs.exchange(), constants)
    empty = EMPTY if plan.precision in ON_CORES else 0.0
    found: dict[str, Price] = {}
    for segment in plan.segments:
        price = bare_price(segment.name, costs, constants)
        if plan.program.stage(segment.stage).placement == LEVEL:
            price = Price(price.row, price.level + meeting + empty * price.row)
        found[segment.name] = price
    return found


def bare_price(name: str, costs: Costs, constants: Constants) -> Price:
    """The price of a segment without that of its instruction."""
    one, many = (nanoseconds(costs.segment(name, np.array([rows])), constants) for rows in (1.0, MANY_ROWS))
    row = many / MANY_ROWS
    return Price(row, max(one - row, 0.0))


class Burdens:
    """What samples cost a replica, in ns as predicted.

    rows: all rows of every sample. levels: its levels, of which those of a replica's highest sample count.
    lighter: a number for every sample that falls with its cost.
    """

    def __init__(self, rows: Numbers, levels: Numbers) -> None:
        self.rows, self.levels, cost = rows, levels, rows + levels
        self.lighter: Numbers = int(cost.max(initial=0)) - cost

    @classmethod
    def of(cls, known: Mapping[str, Price], spaces: Mapping[str, SpaceRows]) -> Burdens:
        """Of all samples of prepared data."""
        samples = max((len(space.begin) - 1 for space in spaces.values()), default=0)
        rows, levels = np.ones(samples, np.int64), np.zeros(samples, np.int64)  # nothing costs nothing
        for name, price in known.items():
            rows += (np.diff(spaces[name].begin) * price.row).astype(np.int64)
            if price.level:
                levels += (_heights(spaces[name]) * price.level).astype(np.int64)
        return cls(rows, levels)


def _heights(space: SpaceRows) -> Numbers:
    """How many levels the rows of every sample have."""
    there = np.flatnonzero(np.diff(space.begin))
    found = np.zeros(len(space.begin) - 1, np.int64)
    found[there] = space.level[space.begin[there + 1] - 1] + 1
    return found


def assign(batches: Sequence[Ints], burdens: Burdens, replicas: int, spares: bool = False) -> Assignment:
    """A replica for every sample: in each batch back and forth over the replicas by falling cost, or, where
    there are many samples, so that all replicas end at about the same time. spares: on fewer replicas, where
    that is as soon."""
    samples, spread = joined(batches)
    replicas = min(replicas, spread.most)
    owner = owners(samples, spread, burdens, replicas)
    if spares:
        owner = _spared(owner, samples, spread, burdens, replicas)
    return assigned(samples, spread, owner, replicas)


def _spared(owner: Numbers, samples: Ints, spread: Spread, burdens: Burdens, replicas: int) -> Numbers:
    """The same on the fewest replicas, in batches that are predicted to end as soon there: others have
    nothing to do, and can take something else. Each batch by itself: its bits do not depend on its group."""
    owner, rounds = owner.copy(), -(-spread.counts // replicas)  # samples of a replica, at most
    may = (rounds > 1) & (rounds <= MOST_SPARED)
    fewer = np.where(may, -(-spread.counts // np.maximum(rounds, 1)), replicas)
    for count in np.unique(fewer[fewer < replicas]).tolist():
        batches = np.flatnonzero(fewer == count)
        own = (fewer == count).repeat(spread.counts)
        some = Spread(spread.counts[batches])
        found = owners(samples[own], some, burdens, count)
        ends = [
            times(who, samples[own], burdens, some.batches * many).reshape(-1, many).max(axis=1)
            for who, many in ((some.batch * replicas + owner[own] % replicas, replicas), (found, count))
        ]
        batch, replica = np.divmod(found, count)
        as_soon = (ends[1] <= ends[0] * AS_SOON)[batch]
        owner[own] = np.where(as_soon, batches[batch] * replicas + replica, owner[own])
    return owner


def times(owner: Numbers, samples: Ints, burdens: Burdens, count: int) -> Numbers:
    """When each of so many replicas of all batches has run its samples, in ns as predicted."""
    total, highest = np.zeros((2, count), np.int64)
    np.add.at(total, owner, burdens.rows[samples])
    np.maximum.at(highest, owner, burdens.levels[samples])
    return total + highest


def assigned(samples: Ints, spread: Spread, owner: Numbers, replicas: int) -> Assignment:
    """Samples in the order of the replicas that they were given."""
    if replicas == 1:
        return Assignment(samples, owner, spread, 1)
    order = owner.argsort(kind="stable")
    return Assignment(samples[order], owner[order], spread, replicas)


def joined(batches: Sequence[Ints]) -> tuple[Ints, Spread]:
    """Batches one after another."""
    samples = batches[0] if len(batches) == 1 else np.concatenate(batches)
    return samples, Spread(np.array([len(batch) for batch in batches]))


def owners(samples: Ints, spread: Spread, burdens: Burdens, replicas: int) -> Numbers:
    """Of every sample the batch * replicas + replica; replicas: no more than a batch has samples."""
    if replicas == 1:
        return spread.batch if spread.batches > 1 else np.zeros(len(samples), np.intp)
    rank = burdens.lighter[samples]
    if spread.batches > 1:
        rank += spread.batch * (int(rank.max()) + 1)
    owner = np.empty(len(samples), np.intp)
    turns = back_and_forth(replicas).take(spread.local, mode="wrap")
    owner[rank.argsort(kind="stable")] = turns + spread.batch * replicas
    if spread.most > FEW * replicas:
        for number in np.flatnonzero(spread.counts > FEW * replicas).tolist():
            own = spread.of(number)
            owner[own] = _balanced(samples[own], burdens, replicas)
            owner[own] += number * replicas
    return owner


@cache
def back_and_forth(count: int) -> Indices:
    """0, 1, ... and back again."""
    return np.concatenate((np.arange(count), np.arange(count)[::-1]))


def _balanced(batch: Ints, burdens: Burdens, replicas: int) -> list[int]:
    """The replicas of a batch's samples: by falling levels as many side by side as end in time, and then the
    ones that cost least where there is room."""
    own_rows, own_levels = burdens.rows[batch], burdens.levels[batch]
    order = np.lexsort((-own_rows, -own_levels))
    count = len(batch)
    alone = count - LAST * replicas if count > 2 * LAST * replicas else 0
    least = (own_rows + own_levels)[order].argsort(kind="stable")[: count - alone]
    is_last = np.zeros(count, np.bool_)
    is_last[least] = True
    order = np.concatenate((order[~is_last], order[is_last]))
    rows, levels = own_rows[order].tolist(), own_levels[order].tolist()
    ends = _runs(rows[:alone], levels, replicas) if alone else []
    owner, begin, before = [0] * len(rows), 0, 0
    places = order.tolist()
    # By time: (end, replica); what a replica's levels are.
    loads, heights = [(0, replica) for replica in range(replicas)], [0] * replicas
    for replica, (end, total) in enumerate(ends):
        for place in places[begin:end]:
            owner[place] = replica
        loads[replica], heights[replica] = (total - before + levels[begin], replica), levels[begin]
        begin, before = end, total
    heapq.heapify(loads)
    for at in sorted(range(begin, len(rows)), key=lambda at: -rows[at] - levels[at]):
        load, replica = loads[0]
        higher = max(levels[at] - heights[replica], 0)
        heights[replica] += higher
        owner[places[at]] = replica
        heapq.heapreplace(loads, (load + rows[at] + higher, replica))
    return owner


def _runs(rows: list[int], levels: list[int], replicas: int) -> list[tuple[int, int]]:
    """Where the runs of replicas end, (sample, what all up to it cost), the last one as early as can be.

    rows, levels: what those of every sample cost; levels fall.
    """
    totals = list(accumulate(rows))

    def cut(time: int) -> list[tuple[int, int]]:
        """Runs that end in time, as far as replicas go."""
        found, begin, before = list[tuple[int, int]](), 0, 0
        while begin < len(totals) and len(found) < replicas:
            begin = max(bisect_right(totals, before + time - levels[begin], begin), begin + 1)
            before = totals[begin - 1]
            found.append((begin, before))
        return found

    low = totals[-1] // replicas
    high = low + levels[0] + max(rows) + 1
    best = cut(high)
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        found = cut(middle)
        if found[-1][0] == len(totals):
            high, best = middle, found
        else:
            low = middle
    return best
