"""Compiled functions: stored as text, kept in a cache, called with tensors."""

import errno
import os
import shutil
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
from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import compile_model
from dnc.ir.optimizers import Hyper
from dnc.runtime import cpu_backend
from dnc.runtime.cpu_backend import CpuBackend
from tests.support.executors import Bench, OnGrid
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES
from tests.support.plans import plan_of

ATTENTION = {"hidden": 20, "embed": 6, "targets": 11}


LINKS = pytest.mark.skipif(
    shutil.which("cc") is None or not hasattr(os, "memfd_create"), reason="no linker, or no memory for files"
)
WAYS = [pytest.param(True, marks=LINKS, id="library"), pytest.param(False, id="LLVM")]


def without_a_linker(monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(shutil, "which", lambda name: None)


def replace(path: Path, content: bytes) -> None:
    """Another file: what is mapped stays as it is."""
    path.unlink()
    path.write_bytes(content)


def damage(folder: Path) -> bool:
    """Cuts every file in half."""
    for path in folder.iterdir():
        replace(path, path.read_bytes()[: path.stat().st_size // 2])
    return True


def wipe(folder: Path, content: bytes) -> bool:
    """Puts something else in the place of every file."""
    for path in folder.iterdir():
        replace(path, content)
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


@pytest.mark.parametrize("links", WAYS)
def test_a_full_disk_is_no_place_for_a_cache(tmp_path: Path, monkeypatch, links: bool):
    """LLVM ended the process, and left what it had written."""
    module, plain, link = small_module(), Path.write_bytes, subprocess.run
    without_a_linker(monkeypatch, links)

    def full(path: Path, content: bytes) -> int:
        if tmp_path not in path.parents:
            return plain(path, content)
        plain(path, content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    def linked(command: list[object], **options: object) -> object:
        if tmp_path not in command[-2].parents:
            return link(command, **options)
        plain(command[-2], b"its beginning")
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(subprocess, "run", linked)
    found = tirx_cpu.compile_into(tmp_path / "cache", tirx_cpu.to_text(module), module)
    assert found.exists() and tmp_path not in found.parents and found.suffix == (".so" if links else ".ll")
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


@pytest.mark.parametrize("links", WAYS)
def test_text_and_cache(tmp_path: Path, monkeypatch, links: bool):
    module = small_module()
    without_a_linker(monkeypatch, links)
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
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".so" if links else ".ll"]
    assert all((r == results[0]).all() for r in results)
    np.testing.assert_allclose(results[0], np.tanh(values[:16]), rtol=1e-6)


@pytest.mark.parametrize("linker", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho no library > $7\n"])
def test_a_linker_that_makes_no_library(tmp_path: Path, monkeypatch, linker: str):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").write_text(linker)
    (tmp_path / "bin" / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    module = small_module()
    found = tirx_cpu.compile_into(tmp_path / "cache", tirx_cpu.to_text(module), module)
    assert found.suffix == ".ll" and list((tmp_path / "cache").iterdir()) == [found]


def no_memory_for_files(name: str) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_without_memory_for_files_there_is_no_library(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "memfd_create", no_memory_for_files, raising=False)
    module = small_module()
    assert tirx_cpu.compile_into(tmp_path, tirx_cpu.to_text(module), module).suffix == ".ll"


@LINKS
def test_a_library_that_only_others_can_load(tmp_path: Path, monkeypatch):
    """As on a disk from which no code may be run here: it stays, and LLVM's code comes beside it."""
    module = small_module()
    text, really = tirx_cpu.to_text(module), cpu_code._opened
    library = tirx_cpu.compile_into(tmp_path, text, module)

    def refused(path: Path) -> cpu_code.Module:
        if path == library:
            raise RuntimeError("failed to map segment from shared object")
        return really(path)

    monkeypatch.setattr(cpu_code, "_opened", refused)
    without_a_linker(monkeypatch, False)
    cpu_code.load(text, tmp_path, tirx_cpu.compile_text)
    kept = sorted(path.suffix for path in tmp_path.iterdir())
    assert kept == [".ll", ".so"] and cpu_code.is_whole(library)
    cpu_code.load(text, tmp_path, lambda *_: pytest.fail("LLVM's code is there"))
    wipe(tmp_path, b"")  # both damaged, in a cache that cannot be written
    monkeypatch.setattr(cpu_code, "_opened", really)
    found, move = [], os.replace

    def unwritable(*paths: Path) -> None:
        if tmp_path in paths[-1].parents:
            raise OSError(errno.EROFS, "Read-only file system")
        move(*paths)

    def compiled(folder: Path, text: str) -> Path:
        found.append(tirx_cpu.compile_text(folder, text))
        return found[0]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unwritable)
        patch.setattr(os, "replace", unwritable)
        with pytest.raises(OSError, match="Read-only"):
            os.replace(library, library)
        cpu_code.load(text, tmp_path, compiled)
    assert found[0].exists() and tmp_path not in found[0].parents
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"", b""]


@LINKS
def test_a_library_that_was_tried_is_unloaded(tmp_path: Path):
    module = small_module()
    tirx_cpu.compile_into(tmp_path, tirx_cpu.to_text(module), module)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@LINKS
def test_a_library_and_what_llvm_makes_as_it_loads_have_the_same_bits(tmp_path: Path, monkeypatch):
    plan, found = plan_of("attention", ATTENTION, "cpu"), []
    opened, really = [], cpu_code._opened
    for links in (True, False):
        with monkeypatch.context() as patch:
            without_a_linker(patch, links)
            patch.setenv("DNC_CACHE_DIR", str(tmp_path / str(links)))
            patch.setattr(cpu_code, "_opened", lambda path: opened.append(path.suffix) or really(path))
            cpu_backend._loaded.cache_clear()
            backend = CpuBackend(plan, build_cpu(plan))
        forest = ForestGrower(plan.program, 1).grow(9, 9)
        made = Bench(plan.program, plan, OnGrid(backend, (1, 2)), forest, 1)  # type: ignore[arg-type]
        _, results = made.launch("train", Hyper(learning_rate=0.1))
        found.append({"results": results, **made.parameters()})
    assert opened == [".so", ".ll"]
    for value, other in zip(found[0].values(), found[1].values(), strict=True):
        assert np.array_equal(value, other)


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
