"""GFLOP/s of the CPU products over the number of vertices, on one thread and on two.

    python -m benchmarks.cpu_products [--shape 768x256 --shape 1280x512] [--seconds 0.002]

Prints the best of several repetitions, with gathered inputs in two pieces. With two threads each
takes half of the blocks (forward, weight gradient) or half of the strips (transposed).
"""

import argparse
import platform
import threading
import time

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import tirx_cpu
from dnc.codegen.bodies import cpu_products as products

COUNTS = (1, 2, 4, 8, 16, 64, 256)
ROWS_TO_GATHER = 512
REPEATS = 25


def ceiling_kernel():
    """Independent FMA chains in registers: what the core can do at most."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        words = tirx_cpu.flat_argument("words", "int32")
        lanes = [tirx.Ramp(16 * i, 1, 16) for i in range(24)]
        sums = [T.alloc_buffer((1,), "float32x16", scope="global") for _ in lanes]
        for register, at in zip(sums, lanes, strict=True):
            T.buffer_store(register, pool[at], [0])
        factor = T.Bind(pool[tirx.Ramp(384, 1, 16)])
        addend = T.Bind(pool[tirx.Ramp(400, 1, 16)])
        with T.serial(0, words[0]):
            for register in sums:
                T.buffer_store(register, register[0] * factor + addend, [0])
        for register, at in zip(sums, lanes, strict=True):
            T.buffer_store(pool, register[0], [at])
    return tirx_cpu.compile_module(tirx_cpu.module_of(builder))["kernel"]


def product_kernel(kind, layout, at):
    """words: 0 repetitions, 1 n, 2 and 3 the worker's range."""
    rows, columns = layout.padded_rows, layout.columns
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        lists = tirx_cpu.flat_argument("lists", "int32")
        words = tirx_cpu.flat_argument("words", "int32")
        half = columns // 2
        pieces = [
            products.Piece(half, products.gathered(lists, 0)),
            products.Piece(columns - half, products.gathered(lists, ROWS_TO_GATHER)),
        ]
        deltas = products.strided(at["delta"], rows)
        n, share = T.Bind(words[1]), (T.Bind(words[2]), T.Bind(words[3]))
        with T.serial(0, words[0]):
            if kind == "forward":
                products.emit_product(
                    layout, weights=pool, weight_at=at["weight"], inputs=pool, pieces=pieces, n=n,
                    out=pool, out_row=products.strided(at["out"], rows), block_range=share,
                )  # fmt: skip
            elif kind == "transposed":
                products.emit_transposed_product(
                    layout, weights=pool, weight_at=at["weight"], deltas=pool, delta_row=deltas, n=n,
                    out=pool, pieces=[products.Piece(columns, products.strided(at["out"], columns))],
                    strip_range=share,
                )  # fmt: skip
            else:
                products.emit_weight_gradient(
                    layout, gradients=pool, gradient_at=at["gradient"], deltas=pool, delta_row=deltas,
                    inputs=pool, pieces=pieces, n=n, accumulate=False, block_range=share,
                )  # fmt: skip
    started = time.perf_counter()
    kernel = tirx_cpu.compile_module(tirx_cpu.module_of(builder))["kernel"]
    return kernel, time.perf_counter() - started


def best_time(kernel, arguments):
    """Seconds until all threads are through, the least of several runs."""
    best = float("inf")
    for _ in range(REPEATS):
        threads = [threading.Thread(target=kernel, args=a) for a in arguments[1:]]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        kernel(*arguments[0])
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - started)
    return best


def measure(kind, shape, seconds):
    layout = products.PackedLayout(*shape)
    most = max(COUNTS)
    sizes = {
        "weight": layout.size,
        "gradient": layout.size,
        "x": ROWS_TO_GATHER * layout.columns,
        "delta": most * layout.padded_rows,
        "out": most * max(layout.padded_rows, layout.columns),
    }
    at, end = {}, 0
    for name, size in sizes.items():
        at[name] = end
        end += -(-size // 64) * 64
    rng = np.random.default_rng(0)
    pool = tirx_cpu.aligned_zeros(end)
    pool[:] = rng.standard_normal(end)
    lists = tirx_cpu.aligned_zeros(2 * ROWS_TO_GATHER, "int32")
    lists[:] = (at["x"] + rng.integers(0, ROWS_TO_GATHER, lists.size) * layout.columns) // 4
    kernel, compile_seconds = product_kernel(kind, layout, at)
    strips = products.num_strips([products.Piece(layout.columns, lambda v: v)])
    units = strips if kind == "transposed" else layout.num_blocks
    shared = (tirx_cpu.tensor(pool), tirx_cpu.tensor(lists))
    for threads in (1, 2):
        line = []
        for n in COUNTS:
            flops = 2 * layout.rows * layout.columns * n
            repetitions = max(1, int(seconds * 50e9 * threads / flops))
            arguments = []
            for i in range(threads):
                words = tirx_cpu.aligned_zeros(16, "int32")
                words[:4] = repetitions, n, units * i // threads, units * (i + 1) // threads
                arguments.append((*shared, tirx_cpu.tensor(words)))
            line.append(f"{flops * repetitions / best_time(kernel, arguments) / 1e9:8.1f}")
        name = f"{kind:12}{shape[0]:6}x{shape[1]:<5}{threads:3}"
        print(name, *line, f"   {compile_seconds:.1f} s to compile", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="ROWSxCOLUMNS of a weight")
    parser.add_argument("--seconds", type=float, default=0.003, help="length of one measurement")
    options = parser.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in options.shape or ["768x256", "1280x512"]]
    print(platform.processor() or platform.machine(), tirx_cpu.host_target().attrs["mcpu"])
    pool, words = tirx_cpu.aligned_zeros(416), tirx_cpu.aligned_zeros(16, "int32")
    words[0] = 200_000
    seconds = best_time(ceiling_kernel(), [(tirx_cpu.tensor(pool), tirx_cpu.tensor(words))])
    print(f"ceiling {24 * 32 * int(words[0]) / seconds / 1e9:.1f} GFLOP/s a thread (FMA in registers)")
    print(f"{'product':12}{'shape':>11}{'threads':>8}", *(f"n={n:<6}" for n in COUNTS), "GFLOP/s")
    for shape in shapes:
        for kind in ("forward", "transposed", "gradient"):
            measure(kind, shape, options.seconds)


if __name__ == "__main__":
    main()
