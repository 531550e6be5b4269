"""How tiled products are shared out over threads: every tile has a layout that takes it."""

from __future__ import annotations

import pytest

from dnc.codegen.bodies import cuda_wide_products, cuda_wide_transposed
from dnc.codegen.bodies.cuda_wide import tile_units
from dnc.codegen.bodies.cuda_wide_products import MOST_ROWS
from dnc.ir.machine import THREADS
from dnc.ir.plan import unit_share
from tests.support.plans import plan_of


@pytest.mark.parametrize("rows", [4, 20, 32, 60, 96, 128, 160, 192, 256, 320, 628])
def test_layouts_of_products(rows: int) -> None:
    shape, together = cuda_wide_products.thread_shape(rows), cuda_wide_products.block_rows(rows, False)
    assert shape.lanes * shape.own >= together > shape.lanes * (shape.own - 1)
    for size in shape.sizes:
        for along in cuda_wide_products.ALONG:
            tile = shape.across * size * along
            found = cuda_wide_products.layouts(rows, tile)
            wides = [one.wide for one in found]
            assert wides == sorted(set(wides)) and wides[-1] >= tile > (wides[-2] if wides[1:] else 0)
            assert all(one.parts * one.along * 32 == THREADS for one in found)
            scarce = cuda_wide_products.layouts(rows, tile, 0)
            assert all(one.parts == 1 for one in scarce)
            assert all(size % 2 == 0 for size in shape.sizes)  # as the order of sums wants it


@pytest.mark.parametrize("columns", [64, 200, 256, 512, 1024, 2500])
@pytest.mark.parametrize("tile", [24, 40, 64, 96, 128])
def test_layouts_of_transposed_products(columns: int, tile: int) -> None:
    found = cuda_wide_transposed.layouts(tile, columns)
    wides = [one.wide for one in found]
    assert wides == sorted(set(wides)) and wides[-1] >= tile
    assert all(one.along == 8 or one.columns < 2 * columns for one in found)


@pytest.mark.parametrize("columns", [256, 512, 1024, 2500])
@pytest.mark.parametrize("tile", [24, 64, 128])
def test_steps_of_half_as_many_weights_have_whole_rounds(columns: int, tile: int) -> None:
    heights = [4 * one.along for one in cuda_wide_transposed.layouts(tile, columns)]
    whole = all(height % (4 * cuda_wide_transposed.rounds_of(8, True)) == 0 for height in heights)
    assert cuda_wide_transposed.takes_half(tile, columns) == whole


@pytest.mark.parametrize("vocab, blocks", [(640, 1), (644, 2), (1028, 2), (10000, 16)])
def test_blocks_of_units(vocab: int, blocks: int) -> None:
    """A worker's units are cut where they are too many rows, but not where sums of all of them follow."""
    plan = plan_of("language_model", {"vocab": vocab, "hidden": 32}, cluster=4, residency="streamed")
    segments = {segment.name: segment for segment in plan.segments}
    units = tile_units(plan, segments["shared/0"], MOST_ROWS)
    share = unit_share(vocab, 4)
    assert units % 4 == 0 and units <= max(share, MOST_ROWS) and -(-share // units) == blocks
    assert tile_units(plan, segments["loss.grad/0"], MOST_ROWS) == share
