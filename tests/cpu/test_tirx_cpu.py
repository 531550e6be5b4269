"""Compiled functions: stored as text, kept in a cache, called with tensors."""

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
            cpu_sync.store_release(words, 1, cpu_sync.fetch_add(words, 0, 1))
            x = T.Bind(pool[tirx.Ramp(0, 1, 16)])
            T.buffer_store(pool, cpu_math.tanh(x), [tirx.Ramp(16, 1, 16)])
    module = tirx_cpu.module_of(builder)
    text = tirx_cpu.to_text(module)
    tvm.ir.assert_structural_equal(tirx_cpu.from_text(text), module)
    values = tirx_cpu.aligned_zeros(64)
    values[:16] = np.linspace(-3, 3, 16)
    words = tirx_cpu.aligned_zeros(128, "int32")
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
