"""Which worker makes which tiles of the weight gradients, and of which shape they are.

In: how many rows add to every gradient of every batch. Out: for each the cheapest shape of its tiles, and its
first worker. Guaranteed: all batches and all gradients at once; a share follows from the batch and the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.ir import cutting, isa
from dnc.ir.plan import DenseGradient, Plan, TableGradient
from dnc.runtime.encoder.known import Known
from dnc.runtime.encoder.rows import Rows
from dnc.runtime.encoder.words import Numbers

# What tiles in chunks cost beside their rows and themselves, in cycles: the norm of all, and for every float
# of an arena. Seen on an H200.
NORM, FLOAT = 26000, 0.25
MOST_KNOWN = 4096  # cuts, and deals, that are remembered
# Of the piece of the gradient with the most work those of others are at most such a part.
SPLITS = (0.95, 1, 1.5, 2, 3)
VECTOR = 60  # what a row costs in a tile of `outer` that sums deltas
# What `outer` instructions cost a worker beside its rows, in cycles: the first one of which it has tiles, any
# other one, and every tile.
OUTER_FIRST, OUTER_OTHER, OUTER_MORE = 3000, 1500, 4800
# How many workers products of a table may have for themselves.
APART = (4, 8, 12, 16, 24, 32, 48)
NO_SHAPE = np.iinfo(np.int32).max  # what a shape costs that a gradient does not have


@attrs.frozen(eq=False)
class Summed:
    """A weight gradient and the rows that add to it.

    position: among the numbers that rows select, for a stack. targets: parameters of the stack. runs: of
    rows of each that do not lie side by side, at most. early: whether rows behind posts are added up before.
    """

    gradient: DenseGradient
    position: int | None
    targets: int
    runs: int
    early: bool = False

    @property
    def key(self) -> tuple[str, int | None, str, bool]:
        """What it has in common with others to which the same rows add."""
        return self.gradient.space, self.position, self.gradient.table, self.early

    def rows(self, rows: Mapping[str, Rows]) -> Numbers:
        """How many rows add to the gradient, [batches, targets]."""
        own = rows[self.gradient.space]
        if self.early and own.posts:
            return own.behind(own.posts)[1][:, None]
        if self.position is None:
            return own.spread.counts[:, None]
        counts: Numbers = own.selected(self.position)[1].sum(axis=2)
        return counts

    def runs_of(self, rows: Mapping[str, Rows]) -> tuple[Numbers, Numbers]:
        """First rows and counts of all runs, [batches, targets * runs]."""
        own = rows[self.gradient.space]
        if self.early and own.posts:
            start, count = own.behind(own.posts)
            return start[:, None], count[:, None]
        if self.position is None:
            return own.starts[:, 0, 0, :1], own.spread.counts[:, None]
        starts, counts = own.selected(self.position)
        return starts.reshape(len(starts), -1), counts.reshape(len(counts), -1)


@attrs.frozen(eq=False)
class Seats:
    """Workers who take turns at tiles of `cutting.outer_tile`, from the one behind the last tile on.

    loads: what workers have to do, [loads, targets] tiles; fixed: what these cost beside their rows, [loads].
    load: which one each has. all: every turn. before: of the turns those before workers who have a tile of
    the parameter with the most, and others: the turns without those workers, unless nobody else was left.
    """

    loads: Numbers
    fixed: Numbers
    load: Numbers
    all: Numbers
    before: int
    others: Numbers

    @classmethod
    def of(cls, outer: Numbers, workers: int) -> Seats:
        """outer: tiles of every target."""
        count, turns = int(outer.sum()), np.arange(workers)
        rounds, more = np.divmod(outer, workers)
        turn = (turns[:, None] - (outer.cumsum() - outer)) % workers  # of each worker at every target
        tiles = np.roll(rounds + (turn < more), -count, axis=0)
        loads, load = np.unique(tiles, axis=0, return_inverse=True)
        kinds = np.count_nonzero(loads, axis=1)
        fixed = loads.sum(axis=1) * OUTER_MORE + kinds * OUTER_OTHER
        fixed += np.where(kinds > 0, OUTER_FIRST - OUTER_OTHER, 0)
        busiest = int(outer.argmax()) if count else 0
        most = int(outer[busiest]) if 0 < count <= workers else 0
        most = 0 if most == workers else most  # somebody has to make them
        before = workers - count + int(outer[:busiest].sum()) if most else 0
        others = np.delete(turns, slice(before, before + most))
        return cls(loads.astype(np.float64), fixed, load.reshape(-1), turns, before, others)

    def ready(self, cost: Numbers) -> Numbers:
        """When workers with each load have made their tiles, [batches, loads] cycles; cost: of a tile's rows,
        [batches, targets]."""
        found: Numbers = cost @ self.loads.T + self.fixed
        return found


@attrs.frozen(eq=False)
class Left:
    """What is left for others where so many workers, `apart`, [ways], have products for themselves: loads and
    fixed as in `Seats`, of all ways; first: the first load of each."""

    apart: Numbers
    loads: Numbers
    fixed: Numbers
    first: Numbers

    @classmethod
    def of(cls, seats: Mapping[int, Seats]) -> Left:
        """seats: of the others, by the workers apart."""
        sizes = [len(each.fixed) for each in seats.values()]
        loads, fixed = (
            np.concatenate([getattr(each, name) for each in seats.values()]) for name in ("loads", "fixed")
        )
        return cls(np.array(list(seats)), loads, fixed, np.cumsum([0, *sizes[:-1]]))

    def latest(self, cost: Numbers) -> Numbers:
        """When the last of the others has made its tiles, [batches, ways]; cost: as for `Seats.ready`."""
        found: Numbers = np.maximum.reduceat(cost @ self.loads.T + self.fixed, self.first, axis=1)
        return found


class Shapes:
    """The tile shapes of all weight gradients, [targets, shapes], a target being a parameter of a gradient.

    tiles: that each makes of a gradient. row, fixed: what a row and a tile cost, as in `GradientTile`.
    outer: tiles of `cutting.outer_tile`; outer_row: what a row costs there, in cycles. leading: of
    all runs of rows those that come first of their target. whose: of every run the first target of the same
    parameter: there tiles keep their shape and their workers, so that its gradients add up in order.
    """

    def __init__(self, plan: Plan, gradients: Iterable[Summed]) -> None:
        found = [(each, cutting.gradient_tiles(each.gradient)) for each in gradients]
        most = max((len(shapes) for _, shapes in found), default=1)
        counts, costs = list[list[int]](), list[list[list[float]]]()
        outer, outer_row = list[int](), list[float]()
        leading, whose = list[int](), list[int]()
        known: dict[tuple[str, int], int] = {}
        # Targets that have as many chunks: those of a parameter, and all that running parameters have.
        alike, floats = dict[str, list[int]](), list[int]()
        for each, shapes in found:
            absent = [NO_SHAPE] * (most - len(shapes))
            name = each.gradient.parameter
            for index in range(each.targets):
                alike.setdefault("" if plan.program.parameter(name).running else name, []).append(len(counts))
                first = known.setdefault((name, index), len(counts))
                floats.append(isa.slice_floats(plan, name) if first == len(counts) else 0)
                leading.append(len(whose))
                whose += [first] * each.runs
                counts.append([*(cutting.tile_count(each.gradient, s) for s in shapes), *(1 for _ in absent)])
                row = [s.row * cutting.on_cores(s, plan.precision) for s in shapes]
                costs.append([[*row, *absent], [*(s.fixed for s in shapes), *absent]])
                outer.append(cutting.outer_tiles(each.gradient))
                outer_row.append(outer_cycles(each.gradient, plan.precision))
        self.tiles = np.array(counts, np.int64).reshape(-1, most)
        self.row, self.fixed = np.array(costs, np.float64).reshape(-1, 2, most).transpose(1, 0, 2)
        self.outer, self.outer_row = np.array(outer, np.int64), np.array(outer_row)
        self._alike = [np.array(targets) for targets in alike.values() if len(targets) > 1]
        self._floats = np.array(floats, np.int64)
        self.leading, self.whose = np.array(leading, np.intp), np.array(whose, np.intp)
        self._each = np.arange(len(counts))
        self._cuts = Known[tuple[bytes, int, int], tuple[Numbers, Numbers, float]](MOST_KNOWN)
        self._seats: dict[int, Seats] = {}
        self._left: dict[int, Left | None] = {}
        self._plan, self._groups = plan, np.array(isa.token_groups(plan))
        self._tokens = self._groups * isa.TOKEN_GROUP  # of a tile of a table's products
        self._tiles: dict[str, tuple[Numbers, int]] = {}

    def few(self, rows: Numbers, products: NDArray[Any], most: int, grid: int) -> NDArray[np.bool_]:
        """Whether rows are so few that tiles of `outer_tile` are cheaper than those in chunks, [batches].

        rows: [batches, targets]; products: what products of tables beside them cost, [batches] cycles; most:
        chunks; grid: workers that are expected, so that bits do not depend on those there.
        """
        outer = self._outer_end(rows, products, grid)
        pieces = (self.tiles * (rows[:, :, None] * self.row + self.fixed)).min(axis=2).sum(axis=1)
        fewer: NDArray[np.bool_] = outer < NORM + (pieces + products) / grid
        for batch in (~fewer).nonzero()[0]:  # of those that may be cut it is worked out how
            end = self._cut_once(_rounded(rows[batch]).tobytes(), most, grid)[2]
            fewer[batch] = outer[batch] < NORM + end + products[batch] / grid
        return fewer

    def _outer_end(self, rows: Numbers, products: NDArray[Any] | float, grid: int) -> Numbers:
        """When tiles of `outer_tile` are made, [batches] cycles; as in `few`."""
        cost, tiles = rows * self.outer_row, max(int(self.outer.sum()), 1)
        work = (cost * self.outer).sum(axis=1)
        end = np.maximum(work / tiles * -(-tiles // grid), cost.max(axis=1))
        found: Numbers = np.maximum(end, (work + products) / grid) + cutting.OUTER_TILE.fixed
        return found

    def end(self, rows: Numbers, most: int, grid: int) -> Numbers:
        """When all tiles are made, of whichever kind, [batches] cycles; as in `few`, without products."""
        chunks = np.array([self._cut_once(each.tobytes(), most, grid)[2] for each in _rounded(rows)])
        found: Numbers = np.minimum(self._outer_end(rows, 0.0, grid), NORM + chunks)
        return found

    def cut(self, rows: Numbers, most: int, grid: int) -> tuple[Numbers, Numbers]:
        """Into how many chunks rows are cut, and the shape of the tiles, [batches, targets]; as in `few`.

        A batch is cut like another one of about as many rows.
        """
        found = [self._cut_once(each.tobytes(), most, grid) for each in _rounded(rows)]
        return np.stack([chunks for chunks, _, _ in found]), np.stack([shape for _, shape, _ in found])

    def _cut_once(self, rows: bytes, most: int, grid: int) -> tuple[Numbers, Numbers, float]:
        return self._cuts.get(
            (rows, most, grid), lambda: self._cut(np.frombuffer(rows, np.int64), most, grid)
        )

    def _cut(self, rows: Numbers, most: int, grid: int) -> tuple[Numbers, Numbers, float]:
        """As `cut`, [targets]; and when the last worker ends, in cycles.

        Pieces are dealt out in order; of some ways to cut the one whose last worker is predicted to end
        first, arenas counted in. In each the gradient with the most work has another number of chunks, and
        pieces of others are at most about as large as its, or a part of it; all have the shape for many rows,
        or each the one that ends first on a grid of its own.
        """
        chunks, each = np.arange(1, most + 1), np.arange(len(rows))
        size = -(-rows[:, None] // chunks)
        size = -(-size // isa.CHUNK_MULTIPLE) * isa.CHUNK_MULTIPLE
        costs = size[..., None] * self.row[:, None] + self.fixed[:, None]  # [targets, chunks, shapes]
        tiles = self.tiles[:, None] * chunks[:, None]
        best, best_end = None, np.inf
        for shape in (np.zeros((len(rows), most), np.intp), (costs * -(-tiles // grid)).argmin(axis=2)):
            cost = np.take_along_axis(costs, shape[..., None], axis=2)[..., 0]
            count = np.take_along_axis(tiles, shape[..., None], axis=2)[..., 0]
            heaviest = int((count[:, 0] * cost[:, 0]).argmax())
            limits = (cost[heaviest, :, None] / SPLITS).reshape(-1, 1, 1)
            fits = cost <= limits
            fits[:, :, -1] = True
            chosen = fits.argmax(axis=2)  # [ways, targets]
            chosen[:, heaviest] = np.arange(most).repeat(len(SPLITS))
            for alike in self._alike:
                chosen[:, alike] = chosen[:, alike].max(axis=1, keepdims=True)
            pieces = count[each, chosen]
            rounds, more = np.divmod(pieces, grid)
            turn = (np.arange(grid) - (pieces.cumsum(axis=1) - pieces)[..., None]) % grid
            load = (cost[each, chosen][..., None] * (rounds[..., None] + (turn < more[..., None]))).sum(
                axis=1
            )
            end = load.max(axis=1) + ((chosen + 1) * self._floats).sum(axis=1) * (FLOAT / grid)
            way = int(end.argmin())
            if end[way] < best_end:
                best = chosen[way] + 1, shape[each, chosen[way]], float(end[way])
                best_end = best[2]
        assert best is not None
        return best

    def first_workers(self, sharers: Numbers) -> Numbers:
        """The first worker of every target in tiles of `cutting.outer_tile`, [batches, targets]."""
        found: Numbers = (self.outer.cumsum() - self.outer) % sharers[:, None]
        return found

    def behind(self, sharers: Numbers, grid: int) -> Numbers:
        """The worker behind all who share these tiles, or where all do behind the last tile, [batches]."""
        return np.where(sharers < grid, sharers, int(self.outer.sum()) % grid)

    def deal(
        self,
        table: TableGradient,
        tokens: Numbers,
        rows: Numbers,
        few: NDArray[np.bool_],
        grid: int,
        alone: bool = True,
    ) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Of a table's products the (before, left_out, groups) that are predicted to end first, and how many
        workers share the tiles of `outer_tile` beside them, [batches].

        Those who have none, or ones of few rows, can make products while others are busy; `left_out` is
        nobody, or who has a tile of the parameter with the most, or, where products have workers for
        themselves, all others. rows: [batches, targets]; alone: no other table has products.
        """
        cycles, norms = self._tiles_of(table)
        tiles = -(-tokens[:, None] // self._tokens) * norms
        cost = rows * self.outer_row * few[:, None]
        seats = self._seats_on(grid)
        ready = seats.ready(cost) * few[:, None]
        latest, sizes = ready.max(axis=1)[:, None], len(self._tokens)
        ready = ready.take(seats.load, axis=1)
        ends = []  # of every way, [batches, ways, sizes]
        for turns in (seats.all, seats.others):
            rounds, more = np.divmod(tiles[:, :, None], len(turns))
            rounds = rounds + (seats.all[: len(turns)] < more)
            own = ready.take(turns, axis=1)[:, None] * (rounds > 0) + rounds * cycles
            ends.append(np.maximum(own.max(axis=2), latest)[:, None])
        left = self._left_on(grid) if alone and few.any() else None
        ways, leaves = np.zeros(2, np.int64), np.arange(2)
        if left is not None:
            own = -(-tiles[:, None] // left.apart[:, None]) * cycles[:, 0]
            own = np.maximum(own, left.latest(cost)[:, :, None])
            own[~few] = np.inf
            ends.append(own)
            ways = np.concatenate((ways, left.apart))
        work = 1e-3 * (tiles * cycles[:, 0]) / grid
        choice = (np.concatenate(ends, axis=1) + work[:, None]).reshape(len(tokens), -1).argmin(axis=1)
        way, groups = np.divmod(choice, sizes)
        apart, leaves = ways[way], leaves[np.minimum(way, 1)]
        before = np.where(apart > 0, apart, leaves * seats.before)
        left_out = np.where(apart > 0, grid - apart, leaves * (grid - len(seats.others)))
        return before, left_out, self._groups[groups], grid - apart

    def _tiles_of(self, table: TableGradient) -> tuple[Numbers, int]:
        """What a tile of a table's products costs, [groups, 1] cycles; and how many lie side by side."""
        if table.parameter not in self._tiles:
            cycles = [[isa.token_tile_cycles(self._plan, table, groups)] for groups in self._groups.tolist()]
            self._tiles[table.parameter] = np.array(cycles), isa.table_norms(table)
        return self._tiles[table.parameter]

    def _seats_on(self, grid: int) -> Seats:
        if grid not in self._seats:
            self._seats[grid] = Seats.of(self.outer, grid)
        return self._seats[grid]

    def _left_on(self, grid: int) -> Left | None:
        """None where there are too few workers."""
        if grid not in self._left:
            apart = [each for each in APART if 2 * each <= grid]
            found = Left.of({each: self._seats_on(grid - each) for each in apart}) if apart else None
            self._left[grid] = found
        return self._left[grid]

    def share_out(self, chunks: Numbers, shape: Numbers, grid: int) -> tuple[Numbers, Numbers]:
        """The first worker of every target, [batches, targets]; and the one behind all."""
        behind = (self.tiles[self._each, shape] * chunks).cumsum(axis=1)
        worker = np.zeros_like(behind)
        worker[:, 1:] = behind[:, :-1]
        worker %= grid
        return worker, behind[:, -1] % grid

    def products(self, table: TableGradient, tokens: Numbers) -> Numbers:
        """What the products of a table cost, [batches] cycles."""
        cycles, norms = self._tiles_of(table)
        found: Numbers = -(-tokens // self._tokens[-1]) * norms * cycles[-1]
        return found


def _rounded(rows: Numbers) -> Numbers:
    """Up to a number of four bits, and zeros behind."""
    unit = 1 << np.maximum(np.frexp(np.maximum(rows, 1))[1] - 4, 0).astype(np.int64)
    found: Numbers = -(-rows // unit) * unit
    return found


def outer_cycles(gradient: DenseGradient, precision: str) -> float:
    """What a row costs in a tile of `outer`, in cycles."""
    tile = cutting.outer_tile(gradient)
    if not gradient.pieces:
        return VECTOR
    return tile.row * cutting.on_cores(tile, precision)


def summed(plan: Plan, gradient: DenseGradient, early: bool = False) -> Summed:
    """A weight gradient, with what its plan says of the rows that add to it."""
    if not gradient.field:
        return Summed(gradient, None, 1, 1, early)
    selectors, struct = plan.program.selectors(gradient.space), plan.program.space(gradient.space).struct
    sizes = []
    for name in selectors:
        dimension = plan.program.struct(struct).field(name).dimension
        assert dimension is not None and dimension.size is not None
        sizes.append(dimension.size)
    position = selectors.index(gradient.field)
    return Summed(gradient, position, sizes[position], math.prod(sizes[:position]))
