"""Bodies of CPU kernels against NumPy in float64."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import tirx_cpu
from dnc.codegen import cpu_sync
from dnc.codegen.bodies import cpu_math
from dnc.codegen.bodies import cpu_products as products

SHAPES = [(5, (16,)), (48, (20, 12)), (64, (128,)), (100, (7, 130, 3)), (200, (64, 36)), (768, (256,))]
COUNTS = [0, 1, 2, 3, 4, 5, 6, 7, 13, 33, 70]


def build(emit):
    """A compiled function of (pool, lists, words) from the emitter of its body."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        lists = tirx_cpu.flat_argument("lists", "int32")
        words = tirx_cpu.flat_argument("words", "int32")
        emit(pool, lists, words)
    return tirx_cpu.compile_module(tirx_cpu.module_of(builder))["kernel"]


class Case:
    """A pool with one packed weight, gathered input rows, and room for the results."""

    ROOM = 256  # rows to gather from

    def __init__(self, rows, widths):
        self.layout = products.PackedLayout(rows, sum(widths))
        self.widths = widths
        self.capacity = max(COUNTS)
        self.stride = [-(-w // 4) * 4 for w in widths]  # rows start at multiples of 4 floats
        self.out_stride = max(self.layout.padded_rows, -(-sum(widths) // 4) * 4)
        sizes = {
            "weight": self.layout.size,
            "bias": self.layout.padded_rows,
            "delta": self.capacity * self.layout.padded_rows,
            "out": self.capacity * self.out_stride,
            "gradient": self.layout.size,
        } | {f"x{i}": self.ROOM * s for i, s in enumerate(self.stride)}
        self.at, end = {}, 64
        for name, size in sizes.items():
            self.at[name] = end
            end += -(-size // 64) * 64 + 64
        self.sizes = sizes
        self.pool = tirx_cpu.aligned_zeros(end)
        self.lists = tirx_cpu.aligned_zeros(self.capacity * len(widths), "int32")
        self.words = tirx_cpu.aligned_zeros(16, "int32")
        rng = np.random.default_rng(rows)
        self.weight = rng.standard_normal((rows, sum(widths))).astype("f4")
        self.bias = rng.standard_normal(rows).astype("f4")
        self.delta = rng.standard_normal((self.capacity, rows)).astype("f4")
        self.view("weight")[:] = self.layout.pack(self.weight)
        self.view("bias")[:rows] = self.bias
        self.view("delta").reshape(self.capacity, -1)[:, :rows] = self.delta
        columns = []
        for i, width in enumerate(widths):
            self.view(f"x{i}")[:] = rng.standard_normal(self.sizes[f"x{i}"])
            chosen = rng.integers(0, self.ROOM, self.capacity)
            positions = self.at[f"x{i}"] + chosen * self.stride[i]
            self.lists[i * self.capacity :][: self.capacity] = positions // 4
            columns.append(self.view(f"x{i}").reshape(self.ROOM, -1)[chosen, :width])
        self.x = np.concatenate(columns, 1).astype("f8")

    def view(self, name):
        return self.pool[self.at[name] : self.at[name] + self.sizes[name]]

    def pieces(self, lists):
        return [
            products.Piece(w, products.gathered(lists, i * self.capacity)) for i, w in enumerate(self.widths)
        ]

    def run(self, kernel, *words):
        self.words[: len(words)] = words
        kernel(*(tirx_cpu.tensor(a) for a in (self.pool, self.lists, self.words)))


def close(actual, expected, terms):
    scale = max(1.0, np.sqrt(terms)) * max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_product(rows, widths, accumulate):
    case = Case(rows, widths)
    layout = case.layout

    def emit(pool, lists, words):
        products.emit_product(
            layout, weights=pool, weight_at=case.at["weight"], inputs=pool, pieces=case.pieces(lists),
            n=words[0], out=pool, out_row=products.strided(case.at["out"], layout.padded_rows),
            bias_at=None if accumulate else case.at["bias"], accumulate=accumulate,
            block_range=(words[1], words[2]),
        )  # fmt: skip

    kernel = build(emit)
    for n in COUNTS:
        case.view("out")[:] = 2.0
        case.run(kernel, n, 0, layout.num_blocks // 2)
        case.run(kernel, n, layout.num_blocks // 2, layout.num_blocks)
        out = case.view("out")[: n * layout.padded_rows].reshape(n, layout.padded_rows)[:, :rows]
        start = 2.0 if accumulate else case.bias
        close(out, case.x[:n] @ case.weight.astype("f8").T + start, layout.columns)
        assert (case.view("out")[n * layout.padded_rows :] == 2.0).all()


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_transposed_product(rows, widths, accumulate):
    case = Case(rows, widths)
    layout = case.layout
    stride = case.out_stride

    def emit(pool, lists, words):
        pieces, column = [], 0
        for width in widths:
            pieces.append(products.Piece(width, products.strided(case.at["out"] + column, stride)))
            column += width
        products.emit_transposed_product(
            layout, weights=pool, weight_at=case.at["weight"], deltas=pool,
            delta_row=products.strided(case.at["delta"], layout.padded_rows), n=words[0], out=pool,
            pieces=pieces, accumulate=accumulate, strip_range=(words[1], words[2]),
        )  # fmt: skip

    kernel = build(emit)
    strips = products.num_strips([products.Piece(w, lambda v: v) for w in widths])
    for n in COUNTS:
        case.view("out")[:] = 2.0
        case.run(kernel, n, 0, strips // 2)
        case.run(kernel, n, strips // 2, strips)
        out = case.view("out").reshape(case.capacity, stride)
        expected = case.delta[:n].astype("f8") @ case.weight + 2.0 * accumulate
        close(out[:n, : layout.columns], expected, rows)
        assert (out[n:] == 2.0).all()
        assert (out[:, layout.columns :] == 2.0).all()


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_weight_gradient(rows, widths, accumulate):
    case = Case(rows, widths)
    layout = case.layout

    def emit(pool, lists, words):
        products.emit_weight_gradient(
            layout, gradients=pool, gradient_at=case.at["gradient"], deltas=pool,
            delta_row=products.strided(case.at["delta"], layout.padded_rows), inputs=pool,
            pieces=case.pieces(lists), n=words[0], accumulate=accumulate,
            block_range=(words[1], words[2]),
        )  # fmt: skip

    kernel = build(emit)
    for n in COUNTS:
        case.view("gradient")[:] = 2.0
        case.run(kernel, n, 0, layout.num_blocks // 2)
        case.run(kernel, n, layout.num_blocks // 2, layout.num_blocks)
        expected = case.delta[:n].astype("f8").T @ case.x[:n] + 2.0 * accumulate
        close(layout.unpack(case.view("gradient")), expected, n)


def test_a_row_does_not_depend_on_its_neighbours():
    """The same bits whether a vertex is computed alone, in a tile, or in the rest of one."""
    case = Case(200, (64, 36))
    layout = case.layout

    def emit(pool, lists, words):
        products.emit_product(
            layout, weights=pool, weight_at=case.at["weight"], inputs=pool, pieces=case.pieces(lists),
            n=words[0], out=pool, out_row=products.strided(case.at["out"], layout.padded_rows),
        )  # fmt: skip

    kernel = build(emit)
    rows = []
    for n in range(1, 14):
        case.run(kernel, n)
        rows.append(case.view("out")[: layout.padded_rows].copy())
    assert all((row == rows[0]).all() for row in rows)


@pytest.mark.parametrize("shape", [(5, 16), (64, 3), (130, 40), (1280, 512)])
def test_layout_round_trip(shape):
    weight = np.random.default_rng(0).standard_normal(shape).astype("f4")
    layout = products.PackedLayout(*shape)
    np.testing.assert_array_equal(layout.unpack(layout.pack(weight)), weight)


def test_pieces_must_fill_the_columns():
    with pytest.raises(ValueError, match="pieces hold 12 columns; the weight has 16"):
        products.emit_product(
            products.PackedLayout(5, 16), weights=None, weight_at=0, inputs=None, n=1, out=None,
            pieces=[products.Piece(12, lambda v: v)], out_row=lambda v: v,
        )  # fmt: skip


def test_accumulators_stay_in_registers():
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        row = products.strided(0, 1024)
        products.emit_product(
            products.PackedLayout(128, 256), weights=pool, weight_at=0, inputs=pool, n=6, out=pool,
            pieces=[products.Piece(256, row)], out_row=row,
        )  # fmt: skip
    text = tirx_cpu.assembly(tirx_cpu.compile_module(tirx_cpu.module_of(builder)))
    if "zmm" not in text:
        pytest.skip("no AVX-512 on this machine")
    assert "TVMBackendAllocWorkspace" not in text
    assert text.count("vfmadd231ps") >= 24 * 2
    assert not [line for line in text.splitlines() if "zmm" in line and "(%rsp" in line]


SMALL = np.geomspace(1e-30, 1, 1024)
POSITIVE = np.geomspace(1e-44, 3e38, 3072)
FUNCTIONS = {
    "exp": (cpu_math.exp, np.exp, np.linspace(-87, 88.7, 4096)),
    "tanh": (cpu_math.tanh, np.tanh, np.concatenate([np.linspace(-20, 20, 3072), SMALL])),
    "sigmoid": (cpu_math.sigmoid, lambda x: 1 / (1 + np.exp(-x)), np.linspace(-87, 87, 4096)),
    "log": (cpu_math.log, np.log, np.concatenate([POSITIVE, np.linspace(0.5, 2, 1024)])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_functions(name, lanes):
    function, reference, values = FUNCTIONS[name]

    def emit(pool, lists, words):
        with T.serial(0, words[0]) as i:
            at = i if lanes == 1 else tirx.Ramp(i * lanes, 1, lanes)
            T.buffer_store(pool, function(T.Bind(pool[at])), [at])

    kernel = build(emit)
    special = np.array([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 200.0, -200.0] * 2)
    x = tirx_cpu.aligned_zeros(values.size + special.size)
    x[: values.size], x[values.size :] = values, special
    with np.errstate(all="ignore"):
        expected = reference(x.astype("f8"))
        limits = expected.astype("f4")
    words = tirx_cpu.aligned_zeros(16, "int32")
    words[0] = x.size // lanes
    kernel(tirx_cpu.tensor(x), tirx_cpu.tensor(words), tirx_cpu.tensor(words))
    np.testing.assert_allclose(x[: values.size], expected[: values.size], rtol=4e-7, atol=1e-38)
    np.testing.assert_allclose(x[values.size :], limits[values.size :], rtol=4e-7, atol=1e-37)


def barrier_kernel(yield_limit):
    """words: 0 worker, 1 parties, 2 rounds. Each round checks what the other workers wrote."""

    def emit(pool, lists, words):
        with cpu_sync.primitives(), T.serial(0, words[2]) as step:
            T.buffer_store(pool, tirx.Cast("float32", step), [words[0] * 16])
            cpu_sync.emit_barrier(lists, at=64, parties=words[1], abort_at=0, yield_limit=yield_limit)
            with T.serial(0, words[1]) as other:
                wrong = pool[other * 16] != tirx.Cast("float32", step)
                with T.If(wrong), T.Then():
                    T.buffer_store(words, words[3] + 1, [3])
            cpu_sync.emit_barrier(lists, at=64, parties=words[1], abort_at=0, yield_limit=yield_limit)

    return build(emit)


def test_barrier_with_more_workers_than_cores():
    kernel = barrier_kernel(cpu_sync.DEFAULT_YIELD_LIMIT)
    parties, rounds = 4, 300
    pool = tirx_cpu.tensor(tirx_cpu.aligned_zeros(256))
    lists = tirx_cpu.aligned_zeros(256, "int32")
    words = [tirx_cpu.aligned_zeros(16, "int32") for _ in range(parties)]
    threads = []
    for i, w in enumerate(words):
        w[:3] = i, parties, rounds
        arguments = (pool, tirx_cpu.tensor(lists), tirx_cpu.tensor(w))
        threads.append(threading.Thread(target=kernel, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lists[0] == 0
    assert lists[64 + 16] == 2 * rounds
    assert [int(w[3]) for w in words] == [0] * parties


def test_a_barrier_that_nobody_joins_aborts():
    kernel = barrier_kernel(yield_limit=100)
    lists, words = tirx_cpu.aligned_zeros(256, "int32"), tirx_cpu.aligned_zeros(16, "int32")
    words[:3] = 0, 2, 1
    kernel(*(tirx_cpu.tensor(a) for a in (tirx_cpu.aligned_zeros(256), lists, words)))
    assert lists[0] == cpu_sync.ABORT_TIMEOUT


def damage(folder: Path) -> bool:
    """Cuts every file in half."""
    for path in folder.iterdir():
        path.write_text(path.read_text()[: path.stat().st_size // 2])
    return True


def test_text_and_cache(tmp_path: Path):
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        words = tirx_cpu.flat_argument("words", "int32")
        with cpu_sync.primitives():
            cpu_sync.emit_barrier(words, at=64, parties=words[0], abort_at=1)
            x = T.Bind(pool[tirx.Ramp(0, 1, 16)])
            T.buffer_store(pool, cpu_math.tanh(x), [tirx.Ramp(16, 1, 16)])
    module = tirx_cpu.module_of(builder)
    text = tirx_cpu.to_text(module)
    tvm.ir.assert_structural_equal(tirx_cpu.from_text(text), module)
    values = tirx_cpu.aligned_zeros(64)
    values[:16] = np.linspace(-3, 3, 16)
    words = tirx_cpu.aligned_zeros(128, "int32")
    words[0] = 1
    results = []
    unwritable = tmp_path / "file"
    for load in (
        lambda: tirx_cpu.compile_module(module),
        lambda: tirx_cpu.load(text, tmp_path / "cache"),
        lambda: tirx_cpu.load(text, tmp_path / "cache"),
        lambda: damage(tmp_path / "cache") and tirx_cpu.load(text, tmp_path / "cache"),
        lambda: unwritable.write_text("not a folder") and tirx_cpu.load(text, unwritable),
    ):
        compiled = load()
        values[16:] = 0
        compiled["kernel"](tirx_cpu.tensor(values), tirx_cpu.tensor(words))
        results.append(values[16:32].copy())
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert all((r == results[0]).all() for r in results)
    np.testing.assert_allclose(results[0], np.tanh(values[:16]), rtol=1e-6)


def test_unaligned_arrays_are_refused():
    with pytest.raises(ValueError, match="aligned to 64 bytes"):
        tirx_cpu.tensor(tirx_cpu.aligned_zeros(17)[1:])
