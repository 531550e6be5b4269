"""GFLOP/s of the CPU products over the number of vertices, on one thread and on two.

    python -m benchmarks.cpu_products [--shape 768x256 --shape 1280x512] [--seconds 0.002]

Prints the best of several repetitions of the functions that CPU kernels call, with gathered inputs.
With two threads each takes half of the blocks, as the workers of a replica do.
"""

import argparse
import platform
import threading
import time

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code, tirx_cpu
from dnc.codegen.bodies.cpu_products import FORWARD, GRADIENT, TRANSPOSED
from dnc.ir.weight_format import BLOCK, WeightFormat, whole_lanes
from tests.support.cpu_functions import ProductWorker, aligned, product_module

FORMAT = WeightFormat(column_major=True)
COUNTS = (1, 2, 4, 8, 16, 32, 48)
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


def best_time(runs):
    """Seconds until all threads are through, the least of several runs."""
    best = float("inf")
    for _ in range(REPEATS):
        threads = [threading.Thread(target=run) for run in runs[1:]]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        runs[0]()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - started)
    return best


def run_of(kind, shape, at, worker, blocks, n, repetitions):
    """A function that multiplies the rows of some blocks."""
    rows, columns, step = whole_lanes(shape[0]), shape[1], FORMAT.strides(shape)[1]
    weight = at["weight"]
    if kind == "forward":
        name = f"{FORWARD}_pool"
        calls = [(weight, rows, step, block, 0, 0, columns, n, 0, rows, 1) for block in blocks]
    elif kind == "transposed":
        name = TRANSPOSED
        worker.gather(at["out"] + np.arange(n) * columns)
        calls = [(weight, rows, step, worker.choose(blocks), 0, columns, n, 0, rows, 0)]
    else:
        name = f"{GRADIENT}_pool"
        begins = [block * BLOCK for block in blocks]
        calls = [(at["gradient"] + begin, step, min(rows - begin, BLOCK), columns, n, 0) for begin in begins]
    return lambda: worker.calls(name, calls, repetitions)


def measure(made, kind, shape, seconds):
    (rows, columns), most = shape, max(COUNTS)
    at, end = aligned(
        {
            "weight": FORMAT.floats(shape),
            "gradient": FORMAT.floats(shape),
            "x": ROWS_TO_GATHER * columns,
            "out": 2 * most * columns,
        }
    )
    rng = np.random.default_rng(0)
    pool = cpu_code.aligned_zeros(end)
    pool[:] = rng.standard_normal(end)
    blocks = list(range(-(-rows // BLOCK)))
    for threads in (1, 2):
        line = []
        for n in COUNTS:
            flops = 2 * rows * columns * n
            repetitions = max(1, int(seconds * 50e9 * threads / flops))
            runs = []
            for i in range(threads):
                worker = ProductWorker(made, pool, most * whole_lanes(rows))
                worker.scratch[:] = rng.standard_normal(worker.scratch.size)
                worker.gather(at["x"] + rng.integers(0, ROWS_TO_GATHER, n) * columns)
                own = blocks[len(blocks) * i // threads : len(blocks) * (i + 1) // threads]
                places = at | {"out": at["out"] + i * most * columns}
                runs.append(run_of(kind, shape, places, worker, own, n, repetitions))
            line.append(f"{flops * repetitions / best_time(runs) / 1e9:8.1f}")
        print(f"{kind:12}{shape[0]:6}x{shape[1]:<5}{threads:3}", *line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="ROWSxCOLUMNS of a weight")
    parser.add_argument("--seconds", type=float, default=0.003, help="length of one measurement")
    options = parser.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in options.shape or ["768x256", "1280x512"]]
    print(platform.processor() or platform.machine(), tirx_cpu.host_target().attrs["mcpu"])
    pool, words = cpu_code.aligned_zeros(416), cpu_code.aligned_zeros(16, "int32")
    words[0] = 200_000
    kernel, arguments = ceiling_kernel(), [cpu_code.vector(pool), cpu_code.vector(words)]
    seconds = best_time([lambda: kernel(*arguments)])
    print(f"ceiling {24 * 32 * int(words[0]) / seconds / 1e9:.1f} GFLOP/s a thread (FMA in registers)")
    print(f"{'product':12}{'shape':>11}{'threads':>8}", *(f"n={n:<6}" for n in COUNTS), "GFLOP/s")
    made = product_module()
    for shape in shapes:
        for kind in ("forward", "transposed", "gradient"):
            measure(made, kind, shape, options.seconds)


if __name__ == "__main__":
    main()
