"""Repetition: whether every worker makes what products of the recursion need whole.

In: a program, and the passes that cut it and choose its workers. Out: the decision, and what is expected of
either way, as a remark. A decision for `fuse`, which needs the costs that `select-tiles` ranks by: so it is
made in front of both.
"""

from __future__ import annotations

import attrs

from dnc.ir.plan import REGISTER
from dnc.ir.program import Program
from dnc.passes.fuse import Fuse
from dnc.passes.select_tiles import NEAR, SelectTiles


def repetition(
    program: Program, fuse: Fuse, tiles: SelectTiles, wanted: bool | None, trains: bool, precision: str
) -> tuple[bool, tuple[str, ...]]:
    """Whether every worker makes what products need whole, where that saves an exchange; and what is expected
    of it, by a wavefront, as of tilings. Workers of a CPU meet for less than such products cost. wanted: the
    decision, if it has been made."""
    repeated = attrs.evolve(fuse, repeats=True)(program) if tiles.machine.is_gpu else None
    segments = () if repeated is None else repeated.segments
    # Scalars do not count: `fuse` has those made by every worker either way.
    made = dict.fromkeys(value for segment in segments for value in segment.repeated if value.tensor.shape)
    if repeated is None or not made:
        return bool(wanted), ()
    plans = [
        attrs.evolve(plan, target=tiles.machine.name, precision=precision)
        for plan in (repeated, fuse(program))
    ]
    whole, apart = (tiles.best(plan) for plan in plans)
    names = dict.fromkeys(value.name for value in made)
    why = (
        f"repeat: a level with {', '.join(names)} made whole by every worker {whole.level_ns:.0f} ns, "
        f"{whole.vertex_ns:.0f} ns a vertex; with an exchange {apart.level_ns:.0f} ns, "
        f"{apart.vertex_ns:.0f} ns a vertex"
    )
    if wanted is not None or (trains and tiles.batch is None):
        return bool(wanted), (why,)  # trained on are batches of many samples
    placed = tiles.weights(attrs.evolve(plans[0], tiling=whole.tiling)).placements
    # Where no weight is in registers, wide levels run in tiles of products, which repeated ones cannot.
    narrow = any(place.residency == REGISTER for place in placed)
    products = any(product.result in made for segment in segments for product in segment.products)
    margin = NEAR if products and tiles.batch is None else 1.0  # further rows are cheaper with an exchange
    return narrow and margin * tiles.expected(whole) < tiles.expected(apart), (why,)
