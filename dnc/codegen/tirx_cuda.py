"""TIRx to CUDA C++ text, on a machine with or without a GPU.

In comes one TIRx kernel (a ``PrimFunc`` with a device entry), whose buffers have one dimension, and
whose views say in their layout where they begin, as those of ``make_view``; out comes a ``CudaSource``:
the translation unit, the symbol to launch and the order of its parameters.
Guaranteed: no ``__restrict__`` anywhere (TVM marks every device function ``noalias``; the
compiler would then read the shared pool through the read-only path and drop the reload
after an acquire), no local that hides a function, and no include, so that NVRTC needs no header.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline

from dnc.codegen.nvrtc import LACKING

PIPELINE = "dnc_cuda"
DEVICE_KERNEL = 2  # tvm::CallingConv::kDeviceKernelLaunch

_PRELUDE = """\
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
"""
_MATH_CONSTANTS = """\
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
"""
_RUNTIME_HEADERS = re.compile(r"#ifdef __CUDACC_RTC__\n.*?\n#else\n.*?\n#endif\n", re.DOTALL)
# The address of shared memory, kept in a register: left alone, the compiler works it out again in every block
# of code, which begins with reading the number of the processor in its cluster. But not in kernels that lack
# that register (`nvrtc.LACKING`).
_SHARED = "extern __shared__ __align__(128) uchar shared_ptr[];"
_KEPT_SHARED = f"""
#ifdef {LACKING}
  {_SHARED}
#else
  extern __shared__ __align__(128) uchar dnc_shared[];
  uint dnc_shared_at = (uint)__cvta_generic_to_shared(dnc_shared);
  asm volatile("" : "+r"(dnc_shared_at));
  uchar* const shared_ptr = (uchar*)__cvta_shared_to_generic(dnc_shared_at);
#endif"""
_LOCAL = re.compile(r"^ *(?:const )?\w+[*]? (\w+)(?:\[\w+\])?(?: =|;)", re.MULTILINE)
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")
_BARE_EXPRESSION = re.compile(r"^ *\(+int\)(?:blockIdx|threadIdx)\.[xyz]\);\n", re.MULTILINE)


class CodegenError(Exception):
    """The emitted text breaks a guarantee of this module."""


@attrs.frozen
class CudaSource:
    """One kernel as CUDA text.

    ``parameters`` names the kernel's parameters in the order of its signature. TVM sorts
    them (pointers first) and drops those the body does not use, so the launcher binds
    its arguments by name through this list.
    """

    text: str
    symbol: str
    parameters: tuple[str, ...]


def emit_cuda(kernel: tirx.PrimFunc, arch: str) -> CudaSource:
    """Lower ``kernel`` for ``arch`` (``sm_90a``) and check the guarantees."""
    module = tvm.IRModule.from_expr(kernel)
    collected: list[tuple[str, tuple[str, ...]]] = []
    compilation_pipeline.register_tir_pipeline(PIPELINE, lambda: _pipeline(collected))
    built = tvm.compile(module, target={"kind": "cuda", "arch": arch}, tir_pipeline=PIPELINE)
    if len(collected) != 1:
        raise CodegenError(f"one device kernel expected, TVM made {len(collected)}")
    symbol, parameters = collected[0]
    text = _strip_headers(built.mod.imports[0].inspect_source())
    # One worker per multiprocessor: without the 1 the compiler may spill to make room for two.
    text = re.sub(r"__launch_bounds__\((\d+)\)", r"__launch_bounds__(\1, 1)", text)
    text = text.replace(_SHARED, _KEPT_SHARED)
    if "__restrict__" in text:
        raise CodegenError(f"{symbol}: __restrict__ in the emitted text")
    if hidden := set(_LOCAL.findall(text)) & set(_CALLED.findall(text)):
        raise CodegenError(f"{symbol}: locals hide the functions {', '.join(sorted(hidden))}")
    return CudaSource(text, symbol, parameters)


def _pipeline(collected: list[tuple[str, tuple[str, ...]]]) -> tuple[Any, Any, Any]:
    """`_lower`, then ``noalias`` off and the signature of every device kernel."""

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def run(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        module = _lower(module)
        for name, function in list(module.functions.items()):
            if int(function.attrs.get("calling_conv", 0)) != DEVICE_KERNEL:
                continue
            module.update_func(name, function.without_attr("tirx.noalias"))
            parameters = tuple(str(p.name).removesuffix("_ptr") for p in function.params)
            collected.append((str(function.attrs["global_symbol"]), parameters))
        return module

    return run, compilation_pipeline.finalize_host_passes, _finish_device


def _lower(module: tvm.IRModule) -> tvm.IRModule:
    """TVM's TIRx pipeline, without the passes that find nothing to do in this project's kernels.

    Simplified is once, in `_finish_device`: before too would make the same machine code, in a fifth more
    time. Buffers are flat as they are made (`make_view`): `FlattenBuffer` would take a quarter. What
    `CommonSubexprElim` names is put back by simplifying: NVRTC finds it, too.
    """
    passes = [
        tirx.transform.LowerTIRx(),
        tvm.s_tir.transform.UnifyThreadBinding(),
        tirx.transform.LowerTIRxOpaque(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    return tvm.ir.transform.Sequential(passes)(module)


def _finish_device() -> Any:
    """What is left for device kernels: shorter indices, and functions of the target."""
    return tvm.ir.transform.Sequential([tirx.transform.StmtSimplify(), tirx.transform.LowerIntrin()])


def _strip_headers(text: str) -> str:
    """TVM's prelude without its ``cuda/std`` includes (0.9 s of compile time), fixed-size
    integers kept; and without the statements with no effect that name the thread axes."""
    text, replaced = _RUNTIME_HEADERS.subn(_PRELUDE, text, count=1)
    text = text.replace("#include <math_constants.h>\n", _MATH_CONSTANTS)
    if replaced != 1 or "#include" in text:
        raise CodegenError("TVM's CUDA prelude is not the one this module knows")
    return _BARE_EXPRESSION.sub("", text)
