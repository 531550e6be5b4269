"""Compiled functions: stored as text, kept in a cache, called with tensors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target.codegen import llvm_get_system_cpu
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code, tirx_cpu
from dnc.codegen import cpu_sync
from dnc.codegen.bodies import cpu_math
from dnc.compiler import compile_model
from tests.support.models import EXAMPLES


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
    values = cpu_code.aligned_zeros(64)
    values[:16] = np.linspace(-3, 3, 16)
    words = cpu_code.aligned_zeros(128, "int32")
    results = []
    unwritable = tmp_path / "file"
    for load in (
        lambda: tirx_cpu.compile_module(module),
        lambda: cpu_code.load(text, tmp_path / "cache", tirx_cpu.compile_text),
        lambda: cpu_code.load(text, tmp_path / "cache", tirx_cpu.compile_text),
        lambda: damage(tmp_path / "cache") and cpu_code.load(text, tmp_path / "cache", tirx_cpu.compile_text),
        lambda: (
            unwritable.write_text("not a folder") and cpu_code.load(text, unwritable, tirx_cpu.compile_text)
        ),
    ):
        compiled = load()
        values[16:] = 0
        compiled["kernel"](cpu_code.vector(values), cpu_code.vector(words))
        results.append(values[16:32].copy())
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert all((r == results[0]).all() for r in results)
    np.testing.assert_allclose(results[0], np.tanh(values[:16]), rtol=1e-6)


def test_unaligned_arrays_are_refused():
    with pytest.raises(ValueError, match="aligned to 64 bytes"):
        cpu_code.vector(cpu_code.aligned_zeros(17)[1:])


def test_a_build_runs_without_the_package_of_tvm(tmp_path: Path):
    """And so without PyTorch, which that imports: a command that opens a build starts in a moment."""
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 8, "hidden": 8})
    script = """import sys, dnc
model = dnc.load(sys.argv[1], "cpu")
model.attach([{"word": "good", "label": 3}])
model.step([0])
assert model.sync() > 0
assert not {"tvm", "tvm_ffi", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "build")], check=True)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of a process as Linux tells it")
def test_a_model_that_is_gone_leaves_no_code(tmp_path: Path):
    """The code of a kernel and what LLVM keeps beside it are megabytes."""
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 8, "hidden": 8})
    script = """import gc, sys, dnc
def megabytes(models):
    for _ in range(models):
        dnc.load(sys.argv[1], "cpu")
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
first = megabytes(3)
assert megabytes(5) - first < 20
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "build")], check=True)


def test_what_fails_in_tvm_is_told():
    assert cpu_code.system_cpu() == llvm_get_system_cpu()
    with pytest.raises(RuntimeError, match="TypeError: "):
        cpu_code._global("ffi.ModuleGetFunction")(1)
    with pytest.raises(RuntimeError, match=r"no function .dnc\.nothing."):
        cpu_code._global("dnc.nothing")
    with pytest.raises(RuntimeError, match=r"has no function .nothing."):
        cpu_code.Module(cpu_code._global("ffi.SystemLib")())["nothing"]
