"""UNIT segments on CUDA: a tile of vertices at a time, each worker with its own units.

In: a segment and the fields of its instruction. Out: the body of the instruction, which stages the
operands of the products, sums its rows into staging, runs the cells, and leaves the deltas in staging
for the transposed products. Products run with a warp on a row (here), or tiled (`cuda_wide.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_ahead import lists_at_hand, near_lists, near_rows
from dnc.codegen.bodies.cuda_blocks import cells_by_blocks, takes_blocks
from dnc.codegen.bodies.cuda_cells import (
    ROUNDS,
    EarlyLoads,
    cells_in_quads,
    gathered_cells,
    goes_in_pairs,
    paired_cells,
    quad_cells,
    shared_cells,
    unit_cells,
)
from dnc.codegen.bodies.cuda_operands import all_aligned, operand_stride, stage_operand, start_operand
from dnc.codegen.bodies.cuda_products import WIDE, forward, most_streamed
from dnc.codegen.bodies.cuda_push import MOST_ROWS, Mailbox, mailbox, sent_by
from dnc.codegen.bodies.cuda_reduce import Reduction, box_words, shares
from dnc.codegen.bodies.cuda_resident import BLOCK, scratch_words
from dnc.codegen.bodies.cuda_resident_products import forward as forward_resident
from dnc.codegen.bodies.cuda_resident_products import transposed as transposed_resident
from dnc.codegen.bodies.cuda_runs import shares_runs, staged_words, vertices_together
from dnc.codegen.bodies.cuda_scalars import make_scalars, staging_of_scalars
from dnc.codegen.bodies.cuda_sparse import forward as forward_sparse
from dnc.codegen.bodies.cuda_staging import (
    Plane,
    Staging,
    UnitTile,
    by_rows,
    by_vertices,
    each_product,
    lay_out,
    operand_columns,
    rows_of,
)
from dnc.codegen.bodies.cuda_tensor import uses_cores
from dnc.codegen.bodies.cuda_transposed import FEW, transposed
from dnc.codegen.bodies.cuda_transposed import scratch_words as transposed_words
from dnc.codegen.bodies.cuda_turned import transposed as transposed_turned
from dnc.codegen.bodies.cuda_wide import wide_segment, wide_staging
from dnc.codegen.bodies.cuda_wide_cells import cells_alone, cells_together
from dnc.codegen.bodies.cuda_worker import Worker, rows_per_warp
from dnc.codegen.emit import Expr, both, either, let, shift, smaller, stride_loop, when
from dnc.codegen.quads import QUAD, fits_quads
from dnc.ir.cell import Value
from dnc.ir.machine import LANES, THREADS
from dnc.ir.plan import (
    REGISTER,
    SHARED,
    SPARSE,
    STREAMED,
    UNIT,
    VERTEX,
    Piece,
    Product,
    RepeatedAddress,
    Segment,
    TransposedProduct,
    unit_share,
)
from dnc.ir.regions import turns
from dnc.ir.repeated import repeated_parts
from dnc.ir.uses import product_parameters

MOST_TILED = 256  # vertices of a tile with scalars that every worker makes
FEW_OF_WARP, LONG_ROW, MOST_NARROW = 2, 256, 32  # rows of the weights, their columns, vertices


def unit_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a UNIT segment's instruction."""
    whole, rest = repeated_parts(segment)
    multiplies = bool(segment.products or segment.transposed)
    if worker.crowded or (segment.repeated and (whole.mapping == UNIT or not multiplies)):
        narrow_segment(worker, segment, row, rows)
        return
    worker = worker.here()
    if not (multiplies or worker.few):
        _cells_alone(worker, segment, row, rows)
        return
    wide = None if _has_no_tiles(worker, segment) else _tiled_staging(worker, segment)

    def prepared(tile: UnitTile) -> UnitTile:
        if wide is None or wide.repeated is None:
            return tile
        if not segment.transposed:
            worker.synchronize()  # cells of the tile before read the scalars of theirs
        make_scalars(tile, whole, wide.repeated)
        return _reading(tile, wide.repeated)

    def many() -> None:
        assert wide is not None
        _look(worker, 0)
        wide_segment(attrs.evolve(worker, push=None), rest, wide, row, rows, prepared)
        if worker.ahead.look is not None and not (segment.products or segment.transposed):
            worker.synchronize()  # nothing else made all warps wait for the one that looks ahead

    few = _few_of_level(worker, segment) if worker.few else _few_rows(worker, segment)
    if wide is None:
        narrow_segment(worker, segment, row, rows)
    elif few:
        either(rows <= few, lambda: narrow_segment(worker, segment, row, rows), many)
    else:
        many()


def _tiled_staging(worker: Worker, segment: Segment) -> Staging | None:
    """How a segment is staged whose products are tiled, with scalars that every worker makes behind; None
    where they cannot be."""
    if not segment.repeated:
        return wide_staging(worker, segment)
    whole, rest = repeated_parts(segment)
    if whole.mapping == UNIT:
        return None
    room = staging_of_scalars(whole, MOST_TILED, 0).words + QUAD
    found = wide_staging(attrs.evolve(worker, staging_words=worker.staging_words - room), rest)
    if found is None or found.tile > MOST_TILED:
        return None
    scalars = staging_of_scalars(whole, found.tile, found.words)
    return attrs.evolve(found, words=scalars.words, repeated=scalars)


def _has_no_tiles(worker: Worker, segment: Segment) -> bool:
    """Whether a lean kernel has no tiled products here: outside the recursion, and where weights are on the
    chip. Those that come from L2 at every use would come for every vertex."""
    if not worker.lean or worker.few:
        return False
    placed = [worker.placement(name, segment.units) for name in product_parameters(segment)]
    return all(place.residency != STREAMED for place in placed)


def _few_of_level(worker: Worker, segment: Segment) -> int:
    """Rows up to which a level runs so: as many as weights from L2 come once for."""
    placed = [worker.placement(name, segment.units) for name in product_parameters(segment)]
    if segment.transposed or {place.residency for place in placed} != {STREAMED}:
        return FEW
    return most_streamed(worker)


def _few_rows(worker: Worker, segment: Segment) -> int:
    """Rows up to which a segment outside the recursion runs with a warp on a row of the weights: where a
    worker has few of these, and long ones, so that most threads of a tiled product would idle step after
    step."""
    placements = [worker.placement(product.parameter, segment.units) for product in segment.products]
    fits = segment.products and all(
        place.residency == SHARED
        and rows_per_warp(place, worker.workers) <= FEW_OF_WARP
        and place.columns >= LONG_ROW
        for place in placements
    )
    return MOST_NARROW if fits and not segment.transposed else 0


def _cells_alone(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """All rows are one tile where nothing is staged, so no warp waits for another; or units are anybody's."""
    if takes_blocks(worker, segment):
        cells_by_blocks(worker, segment, row, rows)
        return
    tile = UnitTile(worker, segment, choose_staging(worker, segment), row, rows)
    several = fits_quads(segment, QUAD) and not worker.lean and not shares_runs(worker, segment)
    together = cells_together(worker, segment) if several else 1
    if together > 1:
        few = partial(_cells, tile, EarlyLoads(tile), False)
        many = partial(cells_alone, worker, segment, row, rows, together)
        either(rows * tile.units <= ROUNDS * THREADS, few, many)
    else:
        _cells(tile, EarlyLoads(tile), fits_quads(segment, tile.units))


def level_mailbox(worker: Worker, segment: Segment) -> Mailbox | None:
    """The mailbox of a level's segment, as `unit_segment` runs it; None if it has none."""
    return _mailbox_in(worker, segment, choose_staging(worker, segment))


def _mailbox_in(worker: Worker, segment: Segment, staging: Staging) -> Mailbox | None:
    """The mailbox in a layout: levels that read it are one tile, with a unit a thread."""
    most = min(MOST_ROWS, staging.tile, ROUNDS * THREADS // unit_share(segment.units, worker.workers))
    return mailbox(worker, segment, staging, narrow_rows(worker, segment, most))


def narrow_rows(worker: Worker, segment: Segment, most: int) -> int:
    """Rows up to `most` of a level that `narrow_segment` runs: products of more are tiled, if they can be,
    and know nothing of what is pushed or polled."""
    is_tiled = not worker.crowded and _tiled_staging(worker, segment) is not None
    return min(most, FEW) if is_tiled else most


def _look(worker: Worker, begin: Expr) -> None:
    """Looks ahead in the first tile, if there is something to look for. Seen after a block barrier."""
    look = worker.ahead.look
    if look is not None:
        with nullcontext() if isinstance(begin, int) else when(begin == 0):
            look(worker)


def narrow_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The same with all lanes of a warp on one row of the weights, which may be in registers."""
    staging = choose_staging(worker, segment)
    whole, rest = repeated_parts(segment)
    size = staging.tile
    polls_ahead = worker.awaits is not None and worker.awaits.busy > 0
    with stride_loop("tile", 0, rows, size) as begin:
        first = let("first", row + begin)
        count = let("count", smaller(rows - begin, size))
        near = lists_at_hand(worker, segment, begin, row, rows)
        tile = UnitTile(near, rest, staging, first, count)
        early = EarlyLoads(tile)
        if staging.repeated is not None:
            tile = _repeat(tile, whole, staging.repeated, early)
        ahead = _starts_ahead(tile)
        # A tile's operands are under way, but for those of the first one whose words are near.
        started = T.bitwise_and(begin, near_rows(worker.plan) - 1) > 0 if ahead else None
        if polls_ahead:
            _look(worker, begin)
        _products(tile, (early,), started)
        if not polls_ahead:
            _look(worker, begin)
        if ahead:
            _start_next(tile, begin + size, rows)
        many = size % 4 == 0 and size * tile.units > ROUNDS * THREADS
        _cells(tile, early, many and fits_quads(rest, tile.units))
        # Warps without cells may go on to the next level, and stage beside the sums that cells read.
        with when(begin + size < rows) if polls_ahead else nullcontext():
            worker.synchronize()
        _transposed(tile, begin, rows)


def _repeat(tile: UnitTile, whole: Segment, staging: Staging, early: EarlyLoads) -> UnitTile:
    """Makes what is repeated, while what `early` loads comes; the tile that reads it."""
    if whole.mapping == VERTEX:
        early.start()
        make_scalars(tile, whole, staging)
    else:
        _repeat_units(tile, whole, staging, early)
    return _reading(tile, staging)


def _reading(tile: UnitTile, staging: Staging) -> UnitTile:
    """The tile, which reads repeated values where they are staged."""
    worker = tile.worker

    def repeated(address: RepeatedAddress, row: Expr) -> Callable[[Expr], Expr]:
        plane = staging.deltas[address.value]
        at = let("repeated", plane.at + (row - tile.first) * plane.vertex + address.offset)
        return lambda i: worker.staging[shift(at, i)]

    access = attrs.evolve(worker.access, repeated=repeated)
    return attrs.evolve(tile, worker=attrs.evolve(worker, access=access))


def _repeat_units(tile: UnitTile, whole: Segment, staging: Staging, early: EarlyLoads) -> None:
    """All units of what is repeated. Ends with a barrier."""
    worker = tile.worker.repeating()
    made = UnitTile(worker, whole, staging, tile.first, tile.count)
    own = EarlyLoads(made)
    _products(made, (own, early), None)
    made = attrs.evolve(made, worker=attrs.evolve(worker, push=None))
    one_unit = partial(unit_cells, made, own)
    if fits_quads(whole, made.units):  # a worker has all units, so rounds are many
        either(made.count * made.units <= THREADS, one_unit, partial(quad_cells, made))
    else:
        one_unit()
    worker.synchronize()


def _starts_ahead(tile: UnitTile) -> bool:
    """Whether operands of the next tile are copied during the cells of one: where levels are known to be wide
    at times, and nothing else lies where operands do."""
    worker, segment = tile.worker, tile.segment
    pieces = {product.pieces for product in segment.products}
    return (
        bool(worker.plan.reduced and near_lists(worker.plan, segment))
        and len(pieces) == 1
        and not segment.transposed
        and worker.push is None
        and all(tile.placement(product).residency == REGISTER for product in segment.products)
        and all_aligned(worker, segment.products[0].pieces)
    )


def _start_next(tile: UnitTile, begin: Expr, rows: Expr) -> None:
    """Starts copying the operands of the tile at `begin`, if there is one whose words are near."""
    worker, size = tile.worker, tile.staging.tile
    with when(both(begin < rows, T.bitwise_and(begin, near_rows(worker.plan) - 1) > 0)):
        count = let("next_count", smaller(rows - begin, size))
        start_operand(worker.here(), tile.segment.products[0].pieces, tile.first + size, count, _group(tile))


def _group(tile: UnitTile) -> int:
    """Vertices that products take together."""
    return WIDE if tile.staging.tile >= WIDE else 1


def _transposed(tile: UnitTile, begin: Expr, rows: Expr) -> None:
    """All transposed products of a tile, and maybe the sums of what all workers leave."""
    reduction = None
    if tile.worker.access.added and shares(tile.worker.plan, tile.segment):
        worker = tile.worker.here()
        reduction = Reduction(attrs.evolve(tile, worker=worker), tile.staging.box, begin, rows)
        reduction.open()
        tile = attrs.evolve(tile, worker=attrs.evolve(tile.worker, reduction=reduction))
    for product in tile.segment.transposed:
        if tile.placement(product).residency != REGISTER:
            transposed(tile, product)
        elif turns(tile.worker.plan):
            transposed_turned(tile, product)
        else:
            transposed_resident(tile, product)
    if reduction is not None:
        reduction.close()


def _cells(tile: UnitTile, early: EarlyLoads, quads: bool) -> None:
    """Cells with a unit a thread; quads: or with four, where these are many, too many for polls."""
    near, awaits = tile, tile.worker.awaits
    if awaits is not None and awaits.sums:
        near = attrs.evolve(tile, worker=awaits.polling(tile.worker, tile.count))
    one_unit, four = partial(_unit_cells, near, early), partial(quad_cells, near)
    if vertices_together(tile.worker, tile.segment, tile.staging.tile):
        gathered = partial(gathered_cells, near, early)
        if quads:
            either(tile.count * tile.units <= ROUNDS * THREADS, gathered, partial(cells_in_quads, near))
        else:
            gathered()
    elif shares_runs(tile.worker, tile.segment):
        (four if quads else partial(shared_cells, near))()
    elif quads:
        either(tile.count * tile.units <= ROUNDS * THREADS, one_unit, four)
    elif goes_in_pairs(tile):
        either(tile.count * tile.units <= THREADS, one_unit, partial(paired_cells, tile))
    else:
        one_unit()


def _unit_cells(tile: UnitTile, early: EarlyLoads) -> None:
    """Cells with a unit a thread, which may read partial sums that others have pushed."""
    push, far = tile.worker.push, partial(unit_cells, tile, early)
    if push is None or len(push.states()) == len(push.box.sent):
        far()
        return
    access = attrs.evolve(tile.worker.access, arrived=push.slot)
    near = attrs.evolve(tile, worker=attrs.evolve(tile.worker, access=access))
    either(push.receives, partial(unit_cells, near, early), far)


def choose_staging(worker: Worker, segment: Segment) -> Staging:
    """Tiles as large as the staging area takes, up to the plan's tile; buffers of what is added up.

    Where that leaves no place for a mailbox, which is worth more, down to tiles of MOST_ROWS.
    """
    assert worker.plan.tiling is not None
    tile = worker.plan.tiling.tile
    if near_lists(worker.plan, segment):
        tile = min(tile, LANES)
    sizes = list(_layouts(worker, segment, tile))
    fitting = [found for found in sizes if found.words <= worker.staging_words] or sizes[-1:]
    least = min(MOST_ROWS, fitting[0].tile)
    with_mailbox = (f for f in fitting if f.tile >= least and _mailbox_in(worker, segment, f) is not None)
    found = next(with_mailbox, fitting[0])
    worker.stage(found.words)
    return found


def _layouts(worker: Worker, segment: Segment, tile: int) -> Iterator[Staging]:
    """Layouts that get smaller."""
    adds = segment.transposed or segment.products
    while True:
        block = BLOCK if tile >= BLOCK else BLOCK // 2
        for buffers in (2, 1) if adds else (1,):
            yield narrow_staging(worker, segment, tile, block, buffers)
        if adds and block == BLOCK and sent_by(worker.plan, segment):
            yield narrow_staging(worker, segment, tile, BLOCK // 2, 1)
        if tile == 1:
            return
        tile //= 2


def narrow_staging(worker: Worker, segment: Segment, tile: int, block: int, buffers: int) -> Staging:
    """The staging area for tiles of `tile` vertices, whose sums are added up `block` at a time: operands and
    scratch of products in front."""
    if segment.repeated:
        return _staging_with_repeated(worker, segment, tile, block, buffers)
    units, taken = unit_share(segment.units, worker.workers), tile

    def in_registers(product: Product | TransposedProduct) -> bool:
        return worker.placement(product.parameter, segment.units).residency == REGISTER

    every: tuple[Product | TransposedProduct, ...] = (*segment.products, *segment.transposed)
    if uses_cores(worker.plan) and any(map(in_registers, every)):
        taken = max(tile, BLOCK // 2)  # these take so many at a time
    else:
        block = min(block, tile)

    def plane(tile: int, rows: int, product: Product | TransposedProduct) -> Plane:
        if isinstance(product, Product):
            return by_vertices(taken, rows) if in_registers(product) else by_rows(tile, rows)
        readers = [turned for turned in segment.transposed if turned.delta == product.delta]
        return by_vertices(taken, rows) if all(map(in_registers, readers)) else by_rows(tile, rows)

    held = [product for product in segment.products if in_registers(product)]
    operand = max((operand_stride(operand_columns(product)) for product in segment.products), default=0)
    operands = taken * operand
    sums = [scratch_words(rows_of(product.result, segment, units), block) for product in held]
    front = max(operands + buffers * max(sums, default=0), staged_words(worker, segment, tile))
    for turned in segment.transposed:
        if not in_registers(turned):
            front = max(front, transposed_words(turned.columns, tile, buffers))
    found = lay_out(segment, units, tile, front, plane)
    box = -(-found.words // 4) * 4
    words = box + (box_words(worker.plan, segment, tile) if worker.access.added else 0)
    return attrs.evolve(
        found, scratch=operands, operand_words=operand, block=block, buffers=buffers, box=box, words=words
    )


def _staging_with_repeated(worker: Worker, segment: Segment, tile: int, block: int, buffers: int) -> Staging:
    """The same where values are repeated: what stays of them behind what either part has."""
    whole, rest = repeated_parts(segment)
    found = narrow_staging(worker, rest, tile, block, buffers)
    if whole.mapping == VERTEX:
        scalars = staging_of_scalars(whole, tile, found.words)
        return attrs.evolve(found, words=scalars.words, repeated=scalars)
    made = narrow_staging(worker.repeating(), whole, tile, block, buffers)
    at, planes = -(-max(made.words, found.words) // 4) * 4, dict[Value, Plane]()
    for value in whole.cell.results:
        plane = by_vertices(tile, rows_of(value, whole, whole.units))
        planes[value] = attrs.evolve(plane, at=at)
        at += plane.words
    return attrs.evolve(found, words=at, repeated=attrs.evolve(made, deltas=planes, words=at))


def _products(tile: UnitTile, early: tuple[EarlyLoads, ...], started: Expr | None) -> None:
    """Sums of all products of the segment, for several vertices at a time where tiles are large. started:
    whether operands are under way; None: never."""
    first = tile.segment.products[0].pieces if tile.segment.products else ()
    group = _group(tile)

    def stage(pieces: tuple[Piece, ...]) -> None:
        def meanwhile() -> None:
            for loads in early if pieces == first else ():
                loads.start()

        stage_operand(tile.worker, pieces, tile.first, tile.count, group, 0, meanwhile, started)

    def multiply(product: Product) -> None:
        residency = tile.placement(product).residency
        if residency == REGISTER:
            forward_resident(tile, product)
        else:
            (forward_sparse if residency == SPARSE else forward)(tile, product, group)

    each_product(tile, stage, multiply)
