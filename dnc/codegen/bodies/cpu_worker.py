"""The CPU worker: the memory, numbers and functions that all instruction bodies use.

In: a plan. Out: `Functions`, which builds one private TIRx function per body, and `Worker`, what a
body sees inside its function. Guaranteed: mutable locals are stack slots. `scratch` (float32) and
`places` (int64) belong to one worker; a body uses them as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import tvm
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from dnc import tirx_cpu
from dnc.codegen.access import Access
from dnc.codegen.bodies import cpu_math
from dnc.codegen.emit import Expr, floats, lanes, let, local, locals_in, loop, named, put, wide
from dnc.codegen.math import random
from dnc.ir.plan import Plan
from dnc.ir.weight_format import LANES

CHUNK = 64  # vertices whose deltas a weight gradient holds in L1
MEMORY = (("pool", "float32"), ("words", "int32"), ("scratch", "float32"), ("places", "int64"))


class CpuMath:
    """`Math` of the op table on scalars and vectors: polynomials that stay in registers."""

    exp = staticmethod(cpu_math.exp)
    log = staticmethod(cpu_math.log)
    tanh = staticmethod(cpu_math.tanh)
    sigmoid = staticmethod(cpu_math.sigmoid)

    def constant(self, value: float) -> Expr:
        """A float32 literal."""
        return T.float32(value)

    def sqrt(self, a: Expr) -> Expr:
        """The square root: an instruction of the vector unit."""
        return T.sqrt(a)

    def maximum(self, a: Expr, b: Expr) -> Expr:
        """The larger one."""
        return T.max(*alike(a, b))

    def greater(self, a: Expr, b: Expr) -> Expr:
        """a > b."""
        a, b = alike(a, b)
        return a > b

    def equal(self, a: Expr, b: Expr) -> Expr:
        """a == b."""
        a, b = alike(a, b)
        return tirx.EQ(a, b)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """`a` where the condition holds, else `b`."""
        return tirx.Select(*alike(condition, a, b))

    def to_float(self, a: Expr) -> Expr:
        """An int32 as float32."""
        return T.cast(a, "float32")

    random = staticmethod(random)


def alike(*values: Expr) -> list[Expr]:
    """The values with equally many lanes."""
    width = max(lanes(value) for value in values)
    return [v if lanes(v) == width else tirx.Broadcast(v, width) for v in values]


@attrs.frozen(eq=False)
class Worker:
    """What bodies read: the plan, memory, and where this worker stands."""

    plan: Plan
    functions: Functions
    access: Access
    math: CpuMath
    pool: Any
    words: Any
    scratch: Any
    places: Any
    number: Expr
    grid: Expr
    rank: Expr
    workers: Expr

    @property
    def tile(self) -> int:
        """Vertices worked on at a time."""
        return self.functions.tile

    def call(self, name: str, *arguments: Expr) -> None:
        """Calls another function with this worker's memory."""
        self.functions.call(name, *self.memory(), *arguments)

    def memory(self) -> tuple[Expr, ...]:
        """The arguments that every function starts with."""
        return self.pool.data, self.words.data, self.scratch.data, self.places.data, self.number


class Functions:
    """The private functions of a module under construction."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[Any, Any] = {}
        self.called: set[str] = set()
        self._variables: dict[str, Any] = {}
        self.scratch_floats = LANES
        assert plan.tiling is not None
        self.tile = plan.tiling.tile  # vertices of a UNIT segment worked on at a time
        products = [product for segment in plan.segments for product in segment.products]
        # In `places`: a tile of rows for every piece of a product, the direction of a pass, blocks.
        self.direction_at = self.tile * max((len(product.pieces) for product in products), default=1)
        self.blocks_at = self.direction_at + 1
        self.places = max(self.blocks_at, CHUNK)

    def define(
        self,
        name: str,
        arguments: tuple[tuple[str, str], ...],
        body: Callable[..., None],
        separate: bool = False,
    ) -> None:
        """A function of the memory and `arguments` (name, dtype); body(worker, *values) emits it.

        separate: it stays a function where it is called only once.
        """
        with locals_in("global"), IRBuilder() as builder, T.prim_func(s_tir=True, is_private=True):
            T.func_name(name)
            T.func_attr({"tirx.noalias": False, tirx_cpu.SEPARATE: separate})
            pointers = [T.arg(f"{n}_data", T.handle(dtype, "global")) for n, dtype in MEMORY]
            number = T.arg("worker", T.int32())
            values = [T.arg(n, T.int32() if dtype == "int32" else T.int64()) for n, dtype in arguments]
            memory = [
                named(n, T.decl_buffer((1 << 40,), dtype, data=pointer))
                for (n, dtype), pointer in zip(MEMORY, pointers, strict=True)
            ]
            body(self._worker(memory, number), *values)
        self.made[self.variable(name)] = builder.get()

    def variable(self, name: str) -> Any:
        """The name of a function, defined now or later."""
        return self._variables.setdefault(name, GlobalVar(name))

    def call(self, name: str, *arguments: Expr) -> None:
        """Emits a call."""
        self.called.add(name)
        T.evaluate(tvm.ir.Call(self.variable(name), list(arguments), ret_ty=tvm.ir.PrimType("int32")))

    def need(self, scratch_floats: int, places: int = 0) -> None:
        """A body uses that much of its worker's own memory."""
        self.scratch_floats = max(self.scratch_floats, scratch_floats)
        self.places = max(self.places, places)

    def _worker(self, memory: list[Any], number: Expr) -> Worker:
        pool, words, scratch, places = memory
        header = Access(self.plan, pool, words, 1, 0)
        workers = let("workers", header.header("workers"))
        rank = let("rank", tirx.truncmod(number, workers))
        grid = let("grid", workers * header.header("replicas"))
        access = Access(self.plan, pool, words, workers, rank)
        return Worker(
            self.plan, self, access, CpuMath(), pool, words, scratch, places, number, grid, rank, workers
        )


def elements(extent: Expr, body: Callable[[Expr], None], begin: Expr = 0) -> None:
    """body(i) for begin <= i < extent: sixteen neighbours at a time (i is a ramp), then the rest."""
    count = extent - begin
    if isinstance(count, int):
        vectors = count // LANES
    else:
        vectors = let("vectors", tirx.truncdiv(T.max(count, 0), LANES))
    with loop("vector", vectors) as vector:
        body(ramp(wide(begin) + wide(vector) * LANES))
    with T.serial(begin + vectors * LANES, extent) as rest:
        body(rest)


def ramp(base: Expr) -> Expr:
    """Sixteen neighbouring positions from `base` on."""
    return tirx.Ramp(base, tirx.const(1, "int64"), LANES)


def lane_sum(vector: Expr) -> Expr:
    """The sum over the lanes of a vector."""
    parts = [tirx.Shuffle([vector], [tirx.const(lane, "int32")]) for lane in range(LANES)]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return let("lane_sum", parts[0])


def total(extent: Expr, term: Callable[[Expr], Expr]) -> Expr:
    """The sum of term(i): lanes take every 16th, then all are added in order, then the rest."""
    register = local("lanes", *floats(0.0, ramp(tirx.const(0, "int64"))))
    vectors = let("vectors", tirx.truncdiv(extent, LANES)) if not isinstance(extent, int) else extent // LANES
    with loop("vector", vectors) as vector:
        put(register, 0, register[0] + term(ramp(wide(vector) * LANES)))
    rest = local("rest", "float32", lane_sum(let("lane_sums", register[0])))
    with T.serial(vectors * LANES, extent) as index:
        put(rest, 0, rest[0] + term(index))
    return let("total", rest[0])
