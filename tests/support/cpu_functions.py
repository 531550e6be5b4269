"""Parts of CPU kernels as functions that a test can call: bodies of its own, and the shipped products."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.ir import IRModule
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code, tirx_cpu
from dnc.codegen.bodies.cpu_products import define_products
from dnc.codegen.bodies.cpu_worker import MEMORY, Functions
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa

SMALLEST = "model M\nstruct A = A(x: vector<2>)\nparam w: [2]\nloss sum(a in root) sum(w * a.x)\n"


def build(emit):
    """A compiled function of (pool, lists, words) from the emitter of its body."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        lists = tirx_cpu.flat_argument("lists", "int32")
        words = tirx_cpu.flat_argument("words", "int32")
        emit(pool, lists, words)
    return tirx_cpu.compile_module(tirx_cpu.module_of(builder))["kernel"]


def product_module():
    """The functions of `define_products`, each behind an entry `run_NAME`.

    An entry takes the memory of a worker and an int64 tensor: how often to go through how many calls of the
    function, and their arguments.
    """
    options = PlanOptions()
    program = transform(load_program(Source("m.dn", SMALLEST), {})[0], options)
    functions = Functions(make_plan(program, "cpu", options))
    define_products(functions)
    entries = {}
    for variable, function in functions.made.items():
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            tirx_cpu.begin_function(f"run_{variable.name_hint}")
            memory = [tirx_cpu.flat_argument(name, dtype) for name, dtype in MEMORY]
            numbers = tirx_cpu.flat_argument("numbers", "int64")
            own = function.params[len(MEMORY) + 1 :]
            with T.serial(0, tirx.Cast("int32", numbers[0])), T.serial(0, numbers[1]) as call:
                first = T.Bind(2 + call * len(own))
                values = [tirx.Cast(str(p.ty.dtype), numbers[first + at]) for at, p in enumerate(own)]
                pointers = [each.data for each in memory]
                functions.call(variable.name_hint, *pointers, tirx.const(0, "int32"), *values)
        entries[f"run_{variable.name_hint}"] = builder.get()
    return tirx_cpu.compile_module(IRModule({**functions.made, **entries})), functions


class ProductWorker:
    """A worker's memory, and calls of the product functions on it; several may share a pool."""

    def __init__(self, made, pool, scratch_floats):
        self.module, functions = made
        self.pool = pool
        self.words = cpu_code.aligned_zeros(64, "int32")
        self.scratch = cpu_code.aligned_zeros(scratch_floats)
        self.blocks_at = functions.blocks_at
        self.places = cpu_code.aligned_zeros(self.blocks_at + 256, "int64")
        for name in ("workers", "replicas"):
            self.words[isa.layout(functions.plan).header[name]] = 1

    def gather(self, positions, at=0):
        """The rows that the next calls read, or add to, from place `at` on."""
        self.places[at : at + len(positions)] = positions

    def choose(self, blocks):
        """The blocks of a weight that the next calls sum over; how many."""
        self.places[self.blocks_at : self.blocks_at + len(blocks)] = blocks
        return len(blocks)

    def call(self, name, *arguments):
        """Runs a product function."""
        self.calls(name, [arguments])

    def calls(self, name, calls, repetitions=1):
        """Runs a product function with one list of arguments after the other, so many times."""
        flat = [number for arguments in calls for number in arguments]
        numbers = cpu_code.aligned_zeros(len(flat) + 2, "int64")
        numbers[:] = (repetitions, len(calls), *flat)
        arrays = (self.pool, self.words, self.scratch, self.places, numbers)
        self.module[f"run_{name}"](*(cpu_code.vector(array) for array in arrays))


def aligned(sizes, end=64):
    """Places of arrays by name, each on a cache line of its own with room behind it; and the end."""
    at = {}
    for name, size in sizes.items():
        at[name] = end
        end += -(-size // 64) * 64 + 64
    return at, end


def close(actual, expected, terms):
    """Equality up to the rounding of sums of so many terms."""
    scale = max(1.0, np.sqrt(terms)) * max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * scale)
