"""Compiled kernels of the CPU: kept in a cache, loaded, called, through the C interface of TVM's libraries.

In: the text of a module, and who compiles it (`dnc.tirx_cpu`) if no such machine did before. Out: functions
that take vectors and integers, and release the GIL while they run. Guaranteed: a compiled module is reused
only for the same text, CPU, LLVM and TVM; what is in the cache is loaded and run without TVM's Python
package, whose import takes seconds, also because it imports PyTorch where that is installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
import weakref
from collections.abc import Callable
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.cache_folder import mark_used
from dnc.diagnostics import fail

ALIGNMENT = 64  # bytes; TIRx on LLVM assumes it of every tensor, unchecked
# LLVM's level of optimisation. At 3 kernels are as fast, and compiled for longer; at 1 products and sums are
# fused in some bodies of a cell and not in others, so that what is equal differs in the last bit.
LEVEL = 2

# Of `tvm/ffi/c_api.h` and `dlpack.h`.
INTEGER, TENSOR, STRING, SHORT_TEXT, TEXT = 1, 7, 8, 11, 65
OBJECT_HEADER = 24  # bytes in front of what an object holds
DLPACK_CODES = {"i": 0, "u": 1, "f": 2}
LIBRARY, IR = KINDS = (".so", ".ll")
"""Files of the cache: machine code, which is there at once, and LLVM's, which becomes that when it is loaded,
in a second or more."""
ENDINGS = {"win32": "{}.dll", "darwin": "lib{}.dylib"}


class Value(ctypes.Structure):
    """TVMFFIAny: an argument or a result. word: a number, or an address."""

    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_uint32), ("word", ctypes.c_int64))


class Bytes(ctypes.Structure):
    """TVMFFIByteArray."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Described(ctypes.Structure):
    """DLTensor: a vector."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Vector:
    """An array as an argument; shares its memory and keeps it alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self._size, self._stride = ctypes.c_int64(array.size), ctypes.c_int64(1)
        shape, strides = ctypes.pointer(self._size), ctypes.pointer(self._stride)
        code, bits = DLPACK_CODES[array.dtype.kind], array.itemsize * 8
        self._described = Described(array.ctypes.data, 1, 0, 1, code, bits, 1, shape, strides, 0)
        self.address = ctypes.addressof(self._described)

    def __dlpack__(self, **options: Any) -> Any:
        """The array, for functions of TVM itself."""
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Where the array is."""
        return self.array.__dlpack_device__()


class Function:
    """A function of TVM, or of a compiled module. RuntimeError with TVM's message where it fails."""

    def __init__(self, handle: int) -> None:
        self._handle, self._call = ctypes.c_void_p(handle), _library().TVMFFIFunctionCall

    def __call__(self, *arguments: Vector | int | str | Value) -> Value:
        """The result; an object is the caller's, to be released or kept."""
        count = len(arguments)
        values, found = (Value * count)(), Value()
        texts = []
        for value, argument in zip(values, arguments, strict=True):
            if isinstance(argument, Vector):
                value.kind, value.word = TENSOR, argument.address
            elif isinstance(argument, int):
                value.kind, value.word = INTEGER, argument
            elif isinstance(argument, str):
                texts.append(ctypes.create_string_buffer(argument.encode()))
                value.kind, value.word = STRING, ctypes.addressof(texts[-1])
            else:
                value.kind, value.word = argument.kind, argument.word
        if self._call(self._handle, values, count, ctypes.byref(found)):
            raise RuntimeError(_raised())
        return found


class Module:
    """A compiled module: functions by name. It goes when neither it nor one of its functions is in use."""

    def __init__(self, value: Value) -> None:
        self._value = value
        _release_with(self, value)

    def __getitem__(self, name: str) -> Function:
        found = _global("ffi.ModuleGetFunction")(self._value, name, 0)
        if not found.word:
            raise RuntimeError(f"the compiled module has no function '{name}'")
        function = Function(found.word)
        _release_with(function, found)
        return function


def load(text: str, cache_folder: Path, compile_into: Callable[[Path, str], Path]) -> Module:
    """The compiled module of a stored text; compiled into the cache if no such machine did before.

    Always through the file: the first run and later runs execute the same code, bit for bit. A
    damaged file is made again.
    """
    stem = cached_as(cache_folder, text)
    for kind in KINDS:
        found = _usable(stem.with_suffix(kind))
        if found is not None:
            return found
    return _opened(compile_into(cache_folder, text))


def _usable(cached: Path) -> Module | None:
    """The module of a file, if it is there and can be loaded. A damaged one is removed; one that is whole may
    be of use to others, as where only here no code may be run from this disk."""
    try:
        if is_whole(cached):
            module = _opened(cached)
            mark_used(cached)
            return module
        cached.unlink()
    except (OSError, RuntimeError):
        pass
    return None


def is_kept(cache_folder: Path, text: str) -> bool:
    """Whether there is a file of a text for the CPU at hand."""
    stem = cached_as(cache_folder, text)
    return any(is_whole(path) for kind in KINDS if (path := stem.with_suffix(kind)).is_file())


def cached_as(cache_folder: Path, text: str) -> Path:
    """What the files of a text for the CPU at hand are called, without the ending: one of the `KINDS`."""
    key = hashlib.sha256(f"sealed {fingerprint()}\n{text}".encode()).hexdigest()[:32]
    return cache_folder / key


def seal(content: bytes) -> bytes:
    """What stands behind the content of a file of the cache: its digest, a comment for LLVM, and behind the
    end of a library. After a power cut a file may have lost its end, or be empty, or zeros."""
    return b"\n; " + hashlib.sha256(content).hexdigest().encode() + b"\n"


def is_whole(cached: Path) -> bool:
    """Whether a file of the cache is as it was written."""
    written = cached.read_bytes()
    content = written[: -len(seal(b""))]
    return written == content + seal(content)


@cache
def fingerprint() -> str:
    """What compiled code depends on besides its text."""
    name = system_cpu()
    target = _global("target.Target")(f'{{"kind": "llvm", "mcpu": "{name}"}}')
    # A map of features, {"avx": "", ...}.
    listed = _text(_global("ffi.ReprPrint")(_global("target.llvm_get_cpu_features")(target)))
    features = sorted(re.findall(r'"([^"]+)":', listed))
    llvm = _global("target.llvm_version_major")().word
    return f"tvm {metadata.version('apache-tvm')} llvm {llvm} O{LEVEL} {name} {' '.join(features)}"


def system_cpu() -> str:
    """LLVM's name of the CPU at hand."""
    return _text(_global("target.llvm_get_system_cpu")())


def aligned_zeros(size: int, dtype: str = "float32") -> NDArray[Any]:
    """A zeroed vector of `size` elements at a 64-byte boundary."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size * itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size * itemsize].view(dtype)


def vector(array: NDArray[Any]) -> Vector:
    """An aligned array of one dimension as an argument."""
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous or array.ndim != 1:
        raise ValueError(f"a kernel argument must be contiguous and aligned to {ALIGNMENT} bytes")
    return Vector(array)


# ---- TVM's libraries ----------------------------------------------------------------------------


@cache
def _library() -> ctypes.CDLL:
    """The library with the C interface, once all are loaded: where TVM's packages have them, else by TVM."""
    ending = ENDINGS.get(sys.platform, "lib{}.so")
    found = [
        Path(folder) / "lib" / ending.format(name)
        for package, name in (("tvm_ffi", "tvm_ffi"), ("tvm", "tvm_runtime"), ("tvm", "tvm_compiler"))
        for folder in _folders(package)
    ]
    if len(found) == 3 and all(path.exists() for path in found):
        first, runtime, compiler = map(str, found)
        library = ctypes.CDLL(first, ctypes.RTLD_GLOBAL)
        _LOADED.extend((ctypes.CDLL(runtime, ctypes.RTLD_GLOBAL), ctypes.CDLL(compiler, ctypes.RTLD_LOCAL)))
        return library
    try:
        import tvm  # noqa: F401
        import tvm_ffi
    except ModuleNotFoundError:
        raise fail("a CPU build needs the package apache-tvm, which is not installed here") from None
    return tvm_ffi.LIB  # type: ignore[no-any-return]


_LOADED: list[ctypes.CDLL] = []


def _folders(package: str) -> list[str]:
    """Where a package is, without importing it."""
    spec = util.find_spec(package)
    return list((spec and spec.submodule_search_locations) or [])[:1]


@cache
def _global(name: str) -> Function:
    """A function that TVM's libraries have registered."""
    found, encoded = ctypes.c_void_p(), ctypes.create_string_buffer(name.encode())
    described = Bytes(ctypes.addressof(encoded), len(encoded.value))
    _library().TVMFFIFunctionGetGlobal(ctypes.byref(described), ctypes.byref(found))
    if not found.value:
        raise RuntimeError(
            f"TVM has no function '{name}'; dnc needs the version that its pyproject.toml names"
        )
    return Function(found.value)


def _release_with(owner: object, value: Value) -> None:
    """TVM's object goes with what stands for it here: code and tables of a kernel are some megabytes."""
    handle = ctypes.c_void_p(value.word)
    weakref.finalize(owner, _library().TVMFFIObjectDecRef, handle).atexit = False


def _text(value: Value) -> str:
    """A result that is a text."""
    if value.kind == SHORT_TEXT:  # lies in the value itself, and its length in front
        at = ctypes.addressof(value) + Value.word.offset
        return ctypes.string_at(at, value.padding).decode()
    if value.kind != TEXT:
        raise RuntimeError(f"TVM gave a value of type {value.kind}, expected a text")
    return _of_bytes(value.word + OBJECT_HEADER)


def _of_bytes(address: int) -> str:
    found = Bytes.from_address(address)
    return ctypes.string_at(found.data, found.size).decode(errors="replace")


def _raised() -> str:
    """The message of the error that this thread has just had."""
    error = ctypes.c_void_p()
    _library().TVMFFIErrorMoveFromRaised(ctypes.byref(error))
    if not error.value:
        return "TVM failed without a message"
    kind, message = (_of_bytes(error.value + OBJECT_HEADER + at * ctypes.sizeof(Bytes)) for at in (0, 1))
    _library().TVMFFIObjectDecRef(error)
    return f"{kind}: {message}"


def _opened(path: Path) -> Module:
    return Module(_global("ffi.ModuleLoadFromFile")(str(path)))
