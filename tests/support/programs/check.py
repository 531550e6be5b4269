"""Runs a program on every executor and compares: the meaning of a program text, from many sides.

In: a text and a `Case` (data, grid, passes left out). Out: nothing, or an error that says what differs;
`Unsuitable` where float32 cannot show the result. Whether it can is measured: the interpreter runs
again with the rounding of float32 put on every operation, and a result that this moves (ties, kinks,
cancellation) is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import attrs
import numpy as np

import dnc.ir.interpreter
from dnc.compiler import PlanOptions, digest, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir.cell import Cell, Value
from dnc.ir.forest import Forest
from dnc.ir.interpreter import Results, interpret
from dnc.ir.noise import NONE
from dnc.ir.opdef import CONSTANT, LIST, PRODUCT, VIEW
from dnc.ir.ops import OPS
from dnc.ir.parser import parse_program
from dnc.ir.plan import BF16, FP32, TF32, TF32X3, Plan
from dnc.ir.printer import print_program
from dnc.ir.program import BACKWARD, Program
from dnc.passes.distribute import NARROW
from dnc.runtime.backend import Backend
from dnc.runtime.data.usage import layout_of
from dnc.runtime.outside import pushed_values
from tests.support.executors import (
    DRAWN,
    NOISE,
    Bench,
    check_both,
    check_evaluation,
    check_group,
    check_outputs,
    check_parts,
    check_training,
    random_parameters,
    relative,
)
from tests.support.forced import forced, narrow_vectors, shared_products
from tests.support.forests import ForestGrower

Array = np.ndarray[Any, Any]

OPTIONAL_PASSES = ("hoist", "inline", "fuse", "canonicalize", "reassociate", "share", "merge")
LARGEST = 1e4
LIMIT = "are kept"  # of the elements of a gradient that is no product of two vectors
BY_PULLED = "gradient by "
ROUNDING = 2.0**-23
WHOLE_NUMBERS = ("row_argmax",)
"""Operations whose results are numbers of columns."""
OPERANDS = {FP32: 0.0, TF32X3: 0.0, TF32: 2.0**-11, BF16: 2.0**-8}
"""By precision what rounding takes of the operands of a product, relative, beside that of float32."""
TOLERANCE = {FP32: 2e-5, TF32X3: 2e-5, TF32: 5e-3, BF16: 2e-2}
"""Of a comparison, by precision. A recursion adds errors up."""
SHARE = {FP32: 0.2, TF32X3: 0.2, TF32: 0.5, BF16: 0.5}
"""Of the tolerance, what rounding may use."""


class Unsuitable(Exception):
    """The results are not finite, too large, or decided by the last bit."""


@attrs.frozen
class Case:
    """What a program is run on, and how. options: of its plan, but for `without`. apart: whether deltas are
    always added up apart. alike: whether leaves of one word always share a row. added: whether partial sums
    are always added up before they are written. shared: whether the grid always shares phases out. parts:
    whether parts of the recursion always have replicas of their own. common: whether products that stages
    have in common are shared however small they are. repeat, reduce: as in the options. narrow: elements of
    vectors that are not shared out by units where that saves an exchange."""

    seed: int = 0
    samples: int = 2
    vertices: int = 6
    shape: str = "random"
    sharing: float = 0.0
    replicas: int = 1
    workers: int = 1
    without: tuple[str, ...] = ()
    target: str = "cpu"
    options: PlanOptions = PlanOptions()
    apart: bool = False
    alike: bool = False
    added: bool = False
    shared: bool = False
    parts: bool = False
    common: bool = False
    repeat: bool | None = None
    reduce: bool | None = None
    narrow: int = NARROW


@attrs.frozen(eq=False)
class Prepared:
    """A program with its plan, data and parameters; `expected` is the definition's result."""

    program: Program
    plan: Plan
    inference: tuple[Program, Plan]
    forest: Forest
    values: dict[str, Array]
    expected: Results


def load(text: str) -> Program:
    """The checked program of a text."""
    return load_program(Source("random.dn", text), {})[0]


def prepare(text: str, case: Case) -> Prepared:
    """Compiles a text, prints and parses it on the way, and interprets it with the passes on and off."""
    with shared_products() if case.common else nullcontext(), narrow_vectors(case.narrow):
        return _prepared(text, case)


def _prepared(text: str, case: Case) -> Prepared:
    source = load(text)
    assert parse_program(print_program(source)) == source
    repeat = case.options.repeat if case.repeat is None else case.repeat
    reduce = case.options.reduce if case.reduce is None else case.reduce
    options = attrs.evolve(case.options, without=case.without, repeat=repeat, reduce=reduce)
    try:
        program = transform(source, options)
    except DiagnosticError as error:
        if LIMIT not in str(error):
            raise
        raise Unsuitable("too large a gradient") from None
    printed = print_program(program)
    again = parse_program(printed)
    assert again == program and print_program(again) == printed
    plan = make_plan(program, case.target, options)
    assert digest(make_plan(again, case.target, options)) == digest(plan)
    options = attrs.evolve(options, mode="infer")
    inference = transform(source, options)
    inference_plan = make_plan(inference, case.target, options)
    forest = grow(source, case)
    values = random_parameters(source, case.seed)
    with np.errstate(all="ignore"):
        # Evaluation has no noise; a prediction draws what a step does, and drops nothing.
        draws, drops = "sample(" in text, "dropout" in text
        for noise in (*[NONE] * (draws or drops), *[DRAWN] * (draws and drops), NOISE):
            expected = interpret(program, forest, values, noise=noise)
            check_conditioning(program, forest, values, expected, case, noise)
        plain = interpret(source, forest, values, noise=NOISE)
        changed = transform(source, PlanOptions(without=_complement(case.without)))
        other = interpret(changed, forest, values, noise=NOISE)
    _same_meaning(plain, expected, gradients=False)
    _same_meaning(other, expected, gradients=True)
    return Prepared(program, plan, (inference, inference_plan), forest, values, expected)


def grow(program: Program, case: Case) -> Forest:
    """Random structures; vertices are shared where the program asks for no neighbours."""
    sharing = 0.0 if layout_of(program).ordered else case.sharing
    return ForestGrower(program, case.seed).grow(case.samples, case.vertices, case.shape, sharing, 0.1)


def run(prepared: Prepared, backend: Backend, case: Case) -> None:
    """Compares a backend with the definition: training, evaluation, prediction."""
    bench = Bench(prepared.program, prepared.plan, backend, prepared.forest, case.seed)
    tolerance = TOLERANCE[prepared.plan.precision]
    decisions = (case.apart, case.alike, case.added, case.shared)
    early = case.shared or None  # who has no rows has none but its share of what the grid has
    with forced(None, *(each or None for each in decisions), parts=case.parts or None, early=early):
        check_training(bench, tolerance)
        check_evaluation(bench, tolerance)
        check_outputs(bench, tolerance)
        check_both(bench, tolerance)
        if case.samples > 1:
            check_parts(bench, tolerance)
            check_group(bench)


def check_inference(prepared: Prepared, backend: Backend, case: Case) -> None:
    """The program for inference, on a backend of its plan, against its own definition and the other's."""
    program, plan = prepared.inference
    assert not plan.trains and not any(stage.direction == BACKWARD for stage in program.stages)
    bench = Bench(program, plan, backend, prepared.forest, case.seed)
    check_evaluation(bench, TOLERANCE[plan.precision])
    check_outputs(bench, TOLERANCE[plan.precision])
    with np.errstate(all="ignore"):
        quiet = interpret(prepared.program, prepared.forest, prepared.values, noise=DRAWN)
        found = interpret(program, prepared.forest, prepared.values, noise=NOISE)
    _same_meaning(found, quiet, gradients=False)


def check_differences(prepared: Prepared, seed: int) -> None:
    """The gradient along one direction against a central difference, in float64."""
    random = np.random.default_rng(seed)
    trained = [p.name for p in prepared.program.parameters if p.trained]
    direction = {name: random.normal(size=prepared.values[name].shape) for name in trained}
    exact = sum(float((prepared.expected.gradients[name] * direction[name]).sum()) for name in trained)

    pushed = {
        name: prepared.forest.tables[space.struct].data[field][prepared.forest.vertices(space)]
        for name, (space, field) in pushed_values(prepared.program).items()
    }

    def moved(step: float) -> float:
        values = {n: v + step * direction[n] if n in direction else v for n, v in prepared.values.items()}
        found = interpret(prepared.program, prepared.forest, values, noise=NOISE)
        return found.loss + sum(float((found.outputs[name] * g).sum()) for name, g in pushed.items())

    slopes = [(moved(e) - moved(-e)) / (2 * e) for e in (1e-5, 3e-6)]
    scale = max(1.0, abs(exact), abs(prepared.expected.loss))
    if abs(slopes[0] - slopes[1]) > 1e-6 * scale:
        raise Unsuitable("a kink near the parameters")
    if abs(exact - slopes[1]) > 1e-5 * scale:
        here = moved(0.0)
        low, high = sorted(((moved(1e-5) - here) / 1e-5, (here - moved(-1e-5)) / 1e-5))
        if high - low > 1e-3 * scale and low < exact < high:
            raise Unsuitable("a kink at the parameters")  # as relu has, of zeros of a sparse one
    assert abs(exact - slopes[1]) <= 1e-5 * scale, (exact, slopes)


# ---- what a precision can show ---------------------------------------------------------------------


def check_conditioning(
    program: Program, forest: Forest, values: dict[str, Array], expected: Results, case: Case, noise: int
) -> None:
    """Unsuitable, where the precision's rounding would move a result by more than a comparison allows."""
    precision = case.options.precision
    allowed, operands = SHARE[precision] * TOLERANCE[precision], OPERANDS[precision]
    arrays = _compared(expected)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise Unsuitable("not finite")
    if any(np.abs(array).max(initial=0) > LARGEST for array in arrays.values()):
        raise Unsuitable("too large")
    for turn, alike in enumerate((False, True, True, True)):
        with _rounding(case.seed + turn, alike, operands):
            rounded = _compared(interpret(program, forest, values, noise=noise))
        for name, array in arrays.items():
            moved = float(np.linalg.norm(rounded[name] - array))
            if moved > allowed * float(np.linalg.norm(array)) + 2e-7 or not np.isfinite(moved):
                raise Unsuitable(f"{name} is decided by rounding")


def _compared(results: Results) -> dict[str, Array]:
    """Everything of a run that is compared, as arrays."""
    found = {"loss": np.asarray(results.loss)}
    # A correlation with a constant is not a number: 2 is no correlation.
    found |= {f"metric {name}": np.nan_to_num(value, nan=2.0) for name, value in results.metrics.items()}
    found |= {f"output {name}": array for name, array in results.outputs.items()}
    found |= {BY_PULLED + name: array for name, array in results.pulled.items()}
    return found | {f"gradient {name}": array for name, array in results.gradients.items()}


@contextmanager
def _rounding(seed: int, alike: bool, operands: float) -> Iterator[None]:
    """Every operation's result is off by a random part of float32's last bit, infinite beyond its range.

    alike: by a part that follows from the value, so that errors of vertices which are alike add up, as in
    a kernel. operands: those of products are off by a random part of this, relative.
    """
    random = np.random.default_rng(seed)

    def part(value: Array) -> Array:
        return np.sin(1e7 * value + seed) if alike else random.uniform(-1, 1, value.shape)

    def evaluate(cell: Cell, arguments: list[Array]) -> list[Array]:
        known: dict[Value, Array] = dict(zip(cell.inputs, arguments, strict=True))
        for op in cell.ops:
            entry = OPS[op.opcode]
            given = [known[operand] for operand in op.operands]
            if operands and entry.has(PRODUCT):
                given = [each * (1 + operands * part(each)) for each in given]
            value = entry.evaluate(given, dict(op.attributes))
            exact = entry.has(VIEW) or entry.has(CONSTANT) or entry.has(LIST) or op.opcode in WHOLE_NUMBERS
            if value.dtype.kind == "f" and not exact:
                value = value * (1 + ROUNDING * part(value))
                value = np.where(np.abs(value) > np.finfo(np.float32).max, np.copysign(np.inf, value), value)
            known[op.result] = value
        return [known[result] for result in cell.results]

    before: Callable[..., list[Array]] = dnc.ir.interpreter.evaluate_cell
    dnc.ir.interpreter.evaluate_cell = evaluate
    try:
        yield
    finally:
        dnc.ir.interpreter.evaluate_cell = before


def _complement(without: tuple[str, ...]) -> tuple[str, ...]:
    """The passes left out where the others stay, and the other way round; two have no programs."""
    plans = ("fuse", "reassociate")
    return tuple(name for name in OPTIONAL_PASSES if name not in without and name not in plans)


def _same_meaning(found: Results, expected: Results, gradients: bool) -> None:
    """Two interpretations in float64 agree.

    By a pulled field that nothing depends on there may be no gradient, which is one of zeros.
    """
    one, other = _compared(found), _compared(expected)
    names = {**one, **other} if gradients else [name for name in other if not name.startswith("gradient")]
    for name in names:
        sides = [side[name] for side in (one, other) if name in side]
        if len(sides) < 2 and name.startswith(BY_PULLED):
            sides.append(np.zeros_like(sides[0]))
        assert len(sides) == 2, f"{name} is in one of two results"
        close = np.allclose(*sides, rtol=0, atol=1e-10)
        assert close or relative(*sides) <= 1e-9, name
