"""From TIRx to code for the CPU at hand: store as text, compile, into the cache that `dnc.cpu_code` reads.

In: an `IRModule` of functions built with `IRBuilder`, or its stored text. Out: a compiled module, in memory
or as a file. Guaranteed: no compiler and no linker on the machine are needed; int64 positions stay int64, and
no pass moves, merges or reorders the memory of the program.

The cache holds machine code where there is a linker, else LLVM IR after optimisation, which leaves
instruction selection to whoever loads it: the same instructions, a second or more later.
"""

from __future__ import annotations

import _ctypes
import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.script.ir_builder import IRBuilder
from tvm.target.codegen import llvm_get_system_cpu
from tvm.tirx.script.builder import ir as T

from dnc.cache_folder import trim
from dnc.cpu_code import IR, LEVEL, LIBRARY, cached_as, seal

# All that is called is there when a library is loaded, or it is not; its own functions are called directly.
LINKING = ("-shared", "-nostdlib", "-s", "-Wl,-Bsymbolic", "-Wl,-z,now")
SEPARATE = "dnc.separate"  # of a private function: it is not to be put into its only caller


@cache
def host_target() -> tvm.target.Target:
    """The CPU at hand. (TVM accepts "native" and then ignores it.)"""
    target = tvm.target.Target({"kind": "llvm", "mcpu": llvm_get_system_cpu(), "opt-level": LEVEL})
    return target.with_host(target)


def begin_function(name: str) -> None:
    """Name the function being built and say that its buffers may overlap.

    To be called first inside `with T.prim_func(s_tir=True)`.
    """
    T.func_name(name)
    T.func_attr({"global_symbol": name, "tirx.noalias": False})


def flat_argument(name: str, dtype: str) -> Any:
    """A one-dimensional tensor argument of any length."""
    return T.match_buffer(T.arg(name, T.handle()), (T.int64(),), dtype)


def module_of(*builders: IRBuilder) -> IRModule:
    """The functions of finished builders as one module."""
    functions = [builder.get() for builder in builders]
    return IRModule({str(f.attrs["global_symbol"]): f for f in functions})


def lower(module: IRModule) -> IRModule:
    """The passes that this project's kernels need, and no others.

    TVM's default pipeline is written for schedules of tensor programs: it takes ten times as long on
    an interpreter, may narrow int64 positions to int32, and plans buffers anew.
    """
    passes = [
        tirx.transform.BindTarget(host_target()),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.LowerTVMBuiltin(),
        tirx.transform.LowerIntrin(),
    ]
    for step in passes:
        module = step(module)
    return _separate(module)


def _separate(module: IRModule) -> IRModule:
    """Functions that are to stay functions are visible to others, behind the passes that wrap such ones.

    LLVM puts a private function that is called once into its caller, however large it is: all instructions
    of a kernel into its loop, which takes three times as long to compile (of many 27 s instead of 8).
    """
    functions = dict(module.functions.items())
    for variable, function in functions.items():
        if function.attrs and function.attrs.get(SEPARATE):
            functions[variable] = function.with_attr("global_symbol", variable.name_hint)
    return IRModule(functions, attrs=module.attrs)


def compile_module(module: IRModule) -> Any:
    """Compile for the CPU at hand, in memory; `compiled[name]` is the callable."""
    return tvm.get_global_func("target.build.llvm")(lower(module), host_target())


def to_text(module: IRModule) -> str:
    """The module as TVMScript, which `from_text` reads back."""
    return str(module.script(show_meta=True))


def from_text(text: str) -> IRModule:
    """Read what `to_text` wrote. The text is run as Python by TVM: only from a trusted folder."""
    return tvm.script.from_source(text)


def compile_into(cache_folder: Path, text: str, module: IRModule) -> Path:
    """Compile a module, whose text is `text`, into the cache; the file's path.

    Where the cache cannot be written, as in a read-only home or on a full disk, the file goes into a folder
    of this process.
    """
    compiled = compile_module(module)
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        return _keep(compiled, cache_folder, text)
    except OSError:
        return _keep(compiled, _own_folder(), text)


def compile_text(cache_folder: Path, text: str) -> Path:
    """The same for a module that is only stored."""
    return compile_into(cache_folder, text, from_text(text))


def _keep(compiled: Any, folder: Path, text: str) -> Path:
    """The module as a file of a folder: whole or not at all, also among processes."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        partial = _linked(compiled, Path(made))
        if partial is None:
            partial = Path(made) / f"kernel{IR}"
            # TVM marks private functions as exported too, which LLVM does not read back.
            code = str(compiled.inspect_source("ll")).replace("private dllexport", "private")
            partial.write_bytes(code.encode())
        with partial.open("ab") as file:
            file.write(seal(partial.read_bytes()))
        kept_as = cached_as(folder, text).with_suffix(partial.suffix)
        os.replace(partial, kept_as)
    trim(folder)
    return kept_as


def _linked(compiled: Any, folder: Path) -> Path | None:
    """A library of the module, if this machine links one, and one in this folder can be loaded.

    LLVM writes into memory: it ends the process where a disk is full.
    """
    linker, made = shutil.which("cc"), folder / f"kernel{LIBRARY}"
    if linker is None or not hasattr(os, "memfd_create"):
        return None
    try:
        with os.fdopen(os.memfd_create("dnc")) as code:
            found = f"/proc/self/fd/{code.fileno()}"
            compiled.write_to_file(found, "o")
            subprocess.run(
                [linker, *LINKING, "-o", made, found],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=20,
                pass_fds=(code.fileno(),),
            )
        _ctypes.dlclose(ctypes.CDLL(str(made))._handle)
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    return made


@cache
def _own_folder() -> Path:
    """A folder that goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="dnc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def assembly(compiled: Any) -> str:
    """Machine code as text, for tests that assert what the compiler made of a body."""
    return str(compiled.inspect_source("asm"))
