"""The product functions of CPU kernels against NumPy in float64."""

import numpy as np
import pytest

from dnc import cpu_code, tirx_cpu
from dnc.codegen.bodies.cpu_products import FORWARD, GRADIENT, TRANSPOSED
from dnc.ir.weight_format import BLOCK, LANES, WeightFormat, column_stride, whole_lanes
from tests.support.cpu_functions import ProductWorker, aligned, close, product_module

SHAPES = [(5, (16,)), (48, (20, 12)), (64, (128,)), (100, (7, 130, 3)), (200, (64, 36)), (768, (256,))]
COUNTS = [0, 1, 2, 3, 4, 5, 6, 7, 13, 33, 48]
FORMAT = WeightFormat(column_major=True)
ROOM = 256  # rows to gather from
GATHERED = 3  # place of the first row of a product


@pytest.fixture(scope="module")
def made():
    return product_module()


class Case:
    """A pool with one packed weight, gathered input rows in pool or scratch, and room for the results."""

    def __init__(self, made, rows, widths, source="pool"):
        self.shape, self.widths, self.source = (rows, sum(widths)), widths, source
        self.most, self.padded, self.step = max(COUNTS), whole_lanes(rows), FORMAT.strides(self.shape)[1]
        self.blocks = list(range(-(-rows // BLOCK)))
        padded, size = self.padded, FORMAT.floats(self.shape)
        inputs = {f"x{i}": ROOM * width for i, width in enumerate(widths)}
        pool = {"weight": size, "gradient": size, "out": self.most * sum(widths)}
        scratch = {"sums": self.most * padded, "deltas": self.most * padded, "block": self.most * BLOCK}
        self.sizes = pool | scratch | inputs
        self.at, end = aligned(pool | (inputs if source == "pool" else {}))
        here, floats = aligned(scratch | (inputs if source == "scratch" else {}), 0)
        self.at |= here
        self.in_scratch = set(here)
        self.worker = ProductWorker(made, cpu_code.aligned_zeros(end), floats)
        rng = np.random.default_rng(rows)
        self.weight = rng.standard_normal((rows, sum(widths))).astype("f4")
        self.delta = rng.standard_normal((self.most, rows)).astype("f4")
        self.view("weight")[:] = FORMAT.pack(self.weight)
        self.view("deltas").reshape(self.most, padded)[:, :rows] = self.delta
        self.chosen = [rng.integers(0, ROOM, self.most) for _ in widths]
        columns = []
        for i, width in enumerate(widths):
            self.view(f"x{i}")[:] = rng.standard_normal(self.sizes[f"x{i}"])
            columns.append(self.view(f"x{i}").reshape(ROOM, width)[self.chosen[i]])
        self.x = np.concatenate(columns, 1).astype("f8")

    def view(self, name):
        memory = self.worker.scratch if name in self.in_scratch else self.worker.pool
        return memory[self.at[name] : self.at[name] + self.sizes[name]]

    def pieces(self, n, at=0):
        """(first column, width) of every piece, its rows gathered from place `at` on."""
        first = 0
        for i, width in enumerate(self.widths):
            self.worker.gather(self.at[f"x{i}"] + self.chosen[i][:n] * width, at)
            yield first, width
            first += width

    def forward(self, n, blocks, fresh=True):
        for first, width in self.pieces(n, GATHERED):
            calls = [
                (self.at["weight"], self.padded, self.step, block, GATHERED, first, width, n,
                 self.at["sums"], self.padded, fresh and first == 0)
                for block in blocks
            ]  # fmt: skip
            self.worker.calls(f"{FORWARD}_{self.source}", calls)
        return self.view("sums").reshape(self.most, self.padded)


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("source", ["pool", "scratch"])
@pytest.mark.parametrize("fresh", [True, False])
def test_product(made, rows, widths, source, fresh):
    case = Case(made, rows, widths, source)
    blocks = case.blocks
    for n in COUNTS:
        case.view("sums")[:] = 2.0
        case.forward(n, blocks[: len(blocks) // 2], fresh)
        out = case.forward(n, blocks[len(blocks) // 2 :], fresh)
        expected = case.x[:n] @ case.weight.astype("f8").T + (0.0 if fresh else 2.0)
        close(out[:n, :rows], expected, sum(widths))
        assert (out[n:] == 2.0).all()


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("back", [False, True])
def test_transposed_product(made, rows, widths, back):
    """Columns a part at a time, each over all rows, and over some blocks of rows alone."""
    case = Case(made, rows, widths)
    columns = sum(widths)
    out = case.view("out").reshape(case.most, columns)
    for blocks in (case.blocks, case.blocks[1::2]):
        own = np.isin(np.arange(rows) // BLOCK, blocks)
        for n in COUNTS:
            out[:] = 2.0
            first = 0
            for width in widths:
                case.worker.gather(case.at["out"] + np.arange(n) * columns + first)
                case.worker.call(
                    TRANSPOSED, case.at["weight"], case.padded, case.step, case.worker.choose(blocks),
                    first, width, n, case.at["deltas"], case.padded, back,
                )  # fmt: skip
                first += width
            close(out[:n], case.delta[:n, own].astype("f8") @ case.weight[own], rows)
            assert (out[n:] == 2.0).all()


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("source", ["pool", "scratch"])
@pytest.mark.parametrize("add", [True, False])
def test_weight_gradient(made, rows, widths, source, add):
    case = Case(made, rows, widths, source)
    for n in COUNTS:
        case.view("gradient")[:] = 2.0
        for begin in range(0, case.padded, BLOCK):
            deltas = case.view("block").reshape(case.most, BLOCK)
            deltas[:] = 0
            own, height = case.delta[:n, begin : begin + BLOCK], min(case.padded - begin, BLOCK)
            deltas[:n, : own.shape[1]] = own
            for first, width in case.pieces(n):
                at = case.at["gradient"] + begin + first * case.step
                # The deltas of a block lie at the start of scratch memory.
                case.worker.scratch[: deltas.size] = deltas.ravel()
                case.worker.call(f"{GRADIENT}_{source}", at, case.step, height, width, n, add)
        expected = case.delta[:n].astype("f8").T @ case.x[:n] + (2.0 if add else 0.0)
        close(FORMAT.unpack(case.view("gradient"), case.shape), expected, n)


def test_a_row_does_not_depend_on_its_neighbours(made):
    """The same bits whether a vertex is computed alone, in a tile, or in the rest of one."""
    case = Case(made, 200, (64, 36))
    rows = [case.forward(n, case.blocks)[0].copy() for n in range(1, 14)]
    assert all((row == rows[0]).all() for row in rows)


@pytest.mark.parametrize("column_major", [True, False])
@pytest.mark.parametrize("shape", [(7,), (5, 16), (64, 3), (130, 40), (1280, 512)])
def test_format_round_trip(shape, column_major):
    weight, form = np.random.default_rng(0).standard_normal(shape).astype("f4"), WeightFormat(column_major)
    packed = form.pack(weight)
    np.testing.assert_array_equal(form.unpack(packed, shape), weight)
    assert packed.size == form.floats(shape)
    assert packed.size % LANES == 0
    assert np.count_nonzero(packed) == weight.size


def test_columns_lie_dense_but_not_in_the_same_sets_of_a_cache():
    assert [column_stride(rows) for rows in (5, 16, 100, 1024, 1280)] == [16, 16, 112, 1040, 1280]


def test_accumulators_stay_in_registers(made):
    text = tirx_cpu.assembly(made[0])
    if "zmm" not in text:
        pytest.skip("no AVX-512 on this machine")
    assert "TVMBackendAllocWorkspace" not in text
    assert text.count("vfmadd231ps") >= 24 * 2
    spilled = [line for line in text.splitlines() if "zmm" in line and "(%rsp" in line]
    assert not spilled, spilled[:5]
