"""Compiled functions: stored as text, kept in a cache, called with tensors."""

import errno
import os
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


def wipe(folder: Path, content: bytes) -> bool:
    """Puts something else in the place of every file."""
    for path in folder.iterdir():
        path.write_bytes(content)
    return True


def small_module():
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tirx_cpu.begin_function("kernel")
        pool = tirx_cpu.flat_argument("pool", "float32")
        words = tirx_cpu.flat_argument("words", "int32")
        with cpu_sync.primitives():
            cpu_sync.store_release(words, 1, cpu_sync.fetch_add(words, 0, 1))
            x = T.Bind(pool[tirx.Ramp(0, 1, 16)])
            T.buffer_store(pool, cpu_math.tanh(x), [tirx.Ramp(16, 1, 16)])
    return tirx_cpu.module_of(builder)


def test_a_full_disk_is_no_place_for_a_cache(tmp_path: Path, monkeypatch):
    """LLVM ended the process, and left what it had written."""
    module, plain = small_module(), Path.write_text

    def full(path: Path, text: str) -> int:
        if tmp_path not in path.parents:
            return plain(path, text)
        plain(path, text[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    found = tirx_cpu.compile_into(tmp_path / "cache", tirx_cpu.to_text(module), module)
    assert found.exists() and tmp_path not in found.parents
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_without_tvm_a_cpu_build_says_so(tmp_path: Path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('tvm', 'tvm_ffi')))\n"
        "import dnc\n"
        "try: dnc.load(sys.argv[1])\n"
        "except dnc.DiagnosticError as error: print(error)"
    )
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 8, "hidden": 8})
    found = subprocess.run([sys.executable, "-c", code, tmp_path / "build"], capture_output=True, text=True)
    assert found.stdout == "error: a CPU build needs the package apache-tvm, which is not installed here\n"


@pytest.mark.parametrize(("module", "package"), [("tvm", "apache-tvm"), ("lark", "lark")])
def test_without_what_a_command_needs_it_is_one_line(tmp_path: Path, module: str, package: str):
    code = (
        "import sys; sys.modules[sys.argv[1]] = None\nimport dnc.cli; sys.exit(dnc.cli.execute(sys.argv[2:]))"
    )
    command = ["compile", EXAMPLES / "treelstm.dn", "-o", tmp_path / "build", "--set", "embed=24,hidden=20"]
    environment = os.environ | {"DNC_CACHE_DIR": str(tmp_path / "cache")}
    found = subprocess.run(
        [sys.executable, "-c", code, module, *command], capture_output=True, text=True, env=environment
    )
    assert found.returncode == 2
    assert found.stderr == f"error: this needs the package {package}, which is not installed here\n"


def test_text_and_cache(tmp_path: Path):
    module = small_module()
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
        *(
            lambda content=content: (
                wipe(tmp_path / "cache", content)
                and cpu_code.load(text, tmp_path / "cache", tirx_cpu.compile_text)
            )
            for content in (b"", bytes(5000))  # what a power cut leaves
        ),
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
