"""First values of parameters, and values by name from a safetensors file.

In: a program, the rows of its tables, a seed. Out: an array per parameter. Guaranteed: a
parameter's values depend on the seed, its own name and its shape alone, so the order of
declarations does not matter and a grown vocabulary keeps the first rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.ir.program import STACK, TABLE, Initializer, Parameter, Program
from dnc.ir.sparse import pruned
from dnc.runtime.tensors import read_tensors

Floats = NDArray[np.float32]


def shapes(program: Program, table_rows: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter; tables take their rows from `table_rows`."""
    found = {}
    for parameter in program.parameters:
        sizes = [dimension.size for dimension in parameter.dimensions]
        if parameter.name in table_rows:
            sizes[0] = table_rows[parameter.name]
        found[parameter.name] = tuple(int(size or 0) for size in sizes)
    return found


def initialize(program: Program, table_rows: Mapping[str, int], seed: int) -> dict[str, Floats]:
    """First values as the program declares them."""
    sizes = shapes(program, table_rows)
    found = {}
    for parameter in program.parameters:
        rule, random = parameter.initializer, generator(seed, parameter)
        if parameter.kind == STACK:
            shape = parameter.type.shape
            values = np.stack([initial_values(rule, shape, random) for _ in range(parameter.count)])
        else:
            values = initial_values(rule, sizes[parameter.name], random)
        found[parameter.name] = pruned(parameter, values)
    return found


def generator(seed: int, parameter: Parameter) -> np.random.Generator:
    """The source of a parameter's first values."""
    name = hashlib.sha256(parameter.name.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(name[:8], "little")])


def initial_values(rule: Initializer, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Values of `shape` by one rule; ValueError for a rule that does not exist."""
    if rule.pieces:
        return np.repeat(np.asarray(rule.pieces, np.float32), shape[0] // len(rule.pieces))
    if rule.kind == "zeros":
        return np.zeros(shape, np.float32)
    if rule.kind == "constant":
        return np.full(shape, rule.value, np.float32)
    if rule.kind == "uniform":
        return random.uniform(-rule.value, rule.value, shape).astype(np.float32)
    if rule.kind == "normal":
        return random.normal(0.0, rule.value, shape).astype(np.float32)
    if rule.kind == "xavier":  # Glorot and Bengio 2010, equation 16
        bound = np.sqrt(6.0 / (shape[0] + shape[-1]))
        return random.uniform(-bound, bound, shape).astype(np.float32)
    if rule.kind == "orthogonal":  # Saxe et al. 2014: orthonormal rows or columns, whichever are fewer
        tall = random.normal(size=(max(shape), min(shape)))
        basis, triangle = np.linalg.qr(tall)
        basis *= np.sign(np.diagonal(triangle))
        return np.ascontiguousarray(basis if shape[0] >= shape[1] else basis.T, np.float32)
    if rule.kind == "identity":
        return np.eye(*shape, dtype=np.float32)
    raise ValueError(f"no initializer is called {rule.kind}")


def load_weights(
    path: str | Path, program: Program, table_rows: Mapping[str, int], values: Mapping[str, Floats]
) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """`values` with every parameter replaced that the file holds, and the names replaced.

    DiagnosticError names every array whose shape does not fit and every unknown name.
    """
    tensors, _ = read_tensors(path)
    given = {name: value for name, value in tensors.items() if "/" not in name}
    expected = shapes(program, table_rows)
    problems = [
        Diagnostic(f"{path}: {name} {_difference(program, name, value.shape, expected[name])}")
        for name, value in given.items()
        if name in expected and value.shape != expected[name]
    ]
    unknown = [name for name in given if name not in expected]
    if unknown:
        known = ", ".join(expected)
        problems.append(Diagnostic(f"{path}: no parameter is called {', '.join(unknown)}; known: {known}"))
    if problems:
        raise DiagnosticError(*problems)
    if not given:
        raise fail(f"{path}: holds no weights")
    check_floats(given, str(path))
    check_finite(given, str(path))
    replaced = {name: np.asarray(value, np.float32) for name, value in given.items()}
    return {**values, **replaced}, tuple(given)


def check_floats(values: Mapping[str, NDArray[np.generic]], where: str) -> None:
    """DiagnosticError that names an array of a file which holds no floats: codes of a quantised model."""
    for name, value in values.items():
        if value.dtype.kind != "f":
            raise fail(f"{where}: {name} holds {value.dtype}, expected floats")


def check_finite(values: Mapping[str, NDArray[np.generic]], where: str, *notes: str) -> None:
    """DiagnosticError that names the arrays which hold infinities, NaN, or what float32 does not hold."""
    with np.errstate(over="ignore"):
        broken = [
            name for name, value in values.items() if not np.isfinite(np.asarray(value, np.float32)).all()
        ]
    if broken:
        hold = "holds" if len(broken) == 1 else "hold"
        finite = all(np.isfinite(values[name]).all() for name in broken)
        what = "that a 32-bit float cannot hold" if finite else "that are not finite"
        raise fail(f"{where}: {', '.join(broken)} {hold} numbers {what}", *notes)


def _difference(program: Program, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What is said of a shape; of a table that has other rows, whose they are."""
    parameter = program.parameter(name)
    if parameter.kind == TABLE and found[1:] == expected[1:]:
        each = f"one for each of the {expected[0]:,} entries of '{parameter.dimensions[0].name}'"
        return f"has {found[0]:,} rows, expected {each}"
    return f"is {_shape(found)}, expected {_shape(expected)}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
