"""The launcher: ``cuda.bindings.driver``, and of dnc only how errors are told.

In come a cubin, buffers and a launch shape; out come launches, counted. Guaranteed: every
status is checked, and whatever fails raises ``CudaError`` in plain words (no GPU, wrong
architecture, out of memory, a launch that cannot be resident, an aborted kernel).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import DTypeLike, NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.runtime.alone import ALONE, make_calls, watch, when_alone

Scalar = Literal["int32", "uint32", "int64", "uint64", "float32", "pointer"]
_CTYPES: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "pointer": ctypes.c_void_p,
}
# Queues of the device that streams are mapped to: with fewer than streams, one would wait for another.
CONNECTIONS = "32"
_WORDS = {
    "CUDA_ERROR_NO_DEVICE": "no NVIDIA GPU is visible",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU is out of memory",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was built for another GPU architecture; recompile",
    "CUDA_ERROR_INVALID_IMAGE": "the cubin is damaged, or newer than the driver understands",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "more workers than can be resident at once",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "no cluster of this size can be resident",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "the kernel read or wrote outside its memory",
    "CUDA_ERROR_LAUNCH_FAILED": "the kernel failed while running",
}


class CudaError(DiagnosticError):
    """The GPU, the driver or a kernel refused; the message says what and why."""

    def __init__(self, message: str, *notes: str) -> None:
        super().__init__(Diagnostic(message, notes=notes))
        self.message = message


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CudaError("the package cuda-bindings is not installed") from error
    return driver


def _check(result: tuple[Any, ...], doing: str) -> Any:
    status, *values = result
    if int(status) != 0:
        words = _WORDS.get(status.name, "the driver says")
        raise CudaError(f"cannot {doing}: {words} ({status.name})")
    return values[0] if len(values) == 1 else tuple(values)


@attrs.frozen
class DeviceBuffer:
    """``size`` bytes of GPU memory at ``address``."""

    address: int
    size: int

    def free(self) -> None:
        """Nothing: they are a part of other memory."""


@attrs.frozen(eq=False)
class OwnBuffer(DeviceBuffer):
    """GPU memory that is given back by `free`, or with the last reference to this; 256-byte aligned."""

    context: Any
    forget: Any = attrs.field(init=False, repr=False)

    @forget.default
    def _with_the_last_reference(self) -> Any:
        return _with_the_last_reference(self, "cuMemFree", self.address, self.context)

    def free(self) -> None:
        """Give the memory back."""
        with ALONE:
            if self.forget.detach():
                _check(_driver().cuMemFree(self.address), "free GPU memory")


def _with_the_last_reference(owner: Any, call: str, address: int, context: Any) -> Any:
    """What gives memory back by a call of the driver once nothing refers to its owner."""
    watch()
    found = weakref.finalize(owner, when_alone, partial(_forget, call, address, context))
    found.atexit = False
    return found


def _forget(call: str, address: int, context: Any) -> None:
    """Gives memory back in whatever thread: in another process, which a fork has made, nothing happens."""
    if int(_driver().cuCtxPushCurrent(context)[0]) == 0:
        getattr(_driver(), call)(address)
        _driver().cuCtxPopCurrent()


@attrs.frozen(eq=False)
class LentBuffer(DeviceBuffer):
    """GPU memory of someone else, which goes with the last reference to ``array``."""

    array: Any

    def free(self) -> None:
        """Nothing: the references go."""


@attrs.frozen(eq=False)
class PinnedBuffer:
    """Page-locked host memory; ``bytes`` is the same memory as an array of uint8.

    It is given back by `free`, or with the last reference to this, which whoever has a view has to keep.
    """

    address: int
    bytes: NDArray[np.uint8]
    context: Any
    forget: Any = attrs.field(init=False, repr=False)

    @forget.default
    def _with_the_last_reference(self) -> Any:
        return _with_the_last_reference(self, "cuMemFreeHost", self.address, self.context)

    def view(self, dtype: DTypeLike) -> NDArray[Any]:
        """The memory as an array of ``dtype``."""
        return self.bytes.view(dtype)

    def free(self) -> None:
        """Give the memory back."""
        with ALONE:
            if self.forget.detach():
                _check(_driver().cuMemFreeHost(self.address), "free pinned memory")


@attrs.frozen
class Event:
    """A point in a stream that the host can wait for."""

    handle: Any

    def synchronize(self) -> None:
        """Block until it is reached; a failed kernel is reported here."""
        _check(_driver().cuEventSynchronize(self.handle), "wait for the GPU")

    def microseconds_since(self, start: Event) -> float:
        """Time between two finished events, in microseconds."""
        driver = _driver()
        call = getattr(driver, "cuEventElapsedTime_v2", None) or driver.cuEventElapsedTime
        return 1e3 * float(_check(call(start.handle, self.handle), "read the GPU's time"))


@attrs.frozen
class Stream:
    """A queue of GPU work, in order."""

    handle: Any

    def synchronize(self) -> None:
        """Block until it is reached; a failed kernel is reported here."""
        _check(_driver().cuStreamSynchronize(self.handle), "finish the GPU's work")

    def record(self) -> Event:
        """An event behind the work queued so far."""
        driver = _driver()
        event = _check(driver.cuEventCreate(0), "create an event")
        _check(driver.cuEventRecord(event, self.handle), "record an event")
        return Event(event)

    def mark(self, event: Event) -> None:
        """Moves an event behind the work queued so far."""
        _check(_driver().cuEventRecord(event.handle, self.handle), "record an event")

    def wait(self, event: Event) -> None:
        """What is queued from now on waits for an event."""
        _check(_driver().cuStreamWaitEvent(self.handle, event.handle, 0), "order two streams")

    def upload(self, to: DeviceBuffer, source: PinnedBuffer, size: int | None = None) -> None:
        """Copy the first ``size`` bytes to the GPU, asynchronously."""
        count = source.bytes.nbytes if size is None else size
        _check(_driver().cuMemcpyHtoDAsync(to.address, source.address, count, self.handle), "copy to the GPU")

    def download(self, to: PinnedBuffer, source: DeviceBuffer, size: int | None = None) -> None:
        """Copy the first ``size`` bytes from the GPU, asynchronously."""
        count = to.bytes.nbytes if size is None else size
        _check(
            _driver().cuMemcpyDtoHAsync(to.address, source.address, count, self.handle), "copy from the GPU"
        )

    def download_to(self, host: int, address: int, size: int) -> None:
        """Copy ``size`` bytes from the GPU to page-locked memory at ``host``, asynchronously."""
        _check(_driver().cuMemcpyDtoHAsync(host, address, size, self.handle), "copy from the GPU")

    def download_rows(self, to: PinnedBuffer, source: DeviceBuffer, rows: int, pitch: int) -> None:
        """Copy ``rows`` times ``source.size`` bytes, ``pitch`` bytes apart on the GPU, asynchronously."""
        driver = _driver()
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.srcPitch = source.address, pitch
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.dstHost, copy.dstPitch = to.address, source.size
        copy.WidthInBytes, copy.Height = source.size, rows
        _check(driver.cuMemcpy2DAsync(copy, self.handle), "copy from the GPU")

    def fill_zero(self, buffer: DeviceBuffer) -> None:
        """Host-side resets only; a batch never needs one (one launch a batch)."""
        _check(_driver().cuMemsetD8Async(buffer.address, 0, buffer.size, self.handle), "clear")


@attrs.frozen
class LaunchShape:
    """``workers`` CTAs of ``threads``; ``cluster`` consecutive ones form a cluster (1: none)."""

    workers: int
    threads: int
    shared_bytes: int
    cluster: int = 1


@attrs.frozen
class Kernel:
    """A loaded kernel; ``parameters`` gives name and type in signature order."""

    function: Any
    symbol: str
    parameters: tuple[tuple[str, Scalar], ...]

    def prepare(self, shape: LaunchShape) -> None:
        """Raise the limits this shape needs; once, before queries and launches."""
        driver = _driver()
        attribute = driver.CUfunction_attribute
        wanted = [(attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shape.shared_bytes)]
        if shape.cluster > 8:  # 16 is legal on Hopper but not portable
            wanted.append((attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        for name, value in wanted:
            _check(
                driver.cuFuncSetAttribute(self.function, name, value),
                f"reserve {shape.shared_bytes} bytes of shared memory a worker",
            )

    def resident_clusters(self, shape: LaunchShape) -> int:
        """Clusters of this shape that the whole GPU holds at once (0: none fits)."""
        config = _launch_config(shape, None)
        query = _driver().cuOccupancyMaxActiveClusters(self.function, config)
        return int(_check(query, "ask how many clusters fit"))

    def resident_workers_per_sm(self, shape: LaunchShape) -> int:
        """CTAs of this shape that one SM holds at once (cooperative launches need all resident)."""
        query = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            self.function, shape.threads, shape.shared_bytes
        )
        return int(_check(query, "ask how many workers fit"))


@attrs.frozen
class Context:
    """Of a GPU: current in the thread that is within it, which behind it has its own again, or none."""

    handle: Any

    def __enter__(self) -> None:
        _check(_driver().cuCtxPushCurrent(self.handle), "use the context")

    def __exit__(self, *raised: object) -> None:
        _driver().cuCtxPopCurrent()


@attrs.frozen
class Device:
    """One GPU, number ``ordinal`` of those visible, and its primary context.

    ``launches`` counts kernel launches. The driver works on the context that is current in the calling
    thread: within `inside` it is this one, behind `enter` from then on.
    """

    name: str
    arch: str
    multiprocessors: int
    driver_version: int
    stream: Stream
    context: Any = None
    ordinal: int = 0
    _launches: list[int] = attrs.field(factory=lambda: [0], repr=False)

    @property
    def launches(self) -> int:
        """Kernel launches so far."""
        return self._launches[0]

    def allocate(self, size: int) -> DeviceBuffer:
        """Uninitialised GPU memory."""
        with ALONE:
            make_calls()
            address = _check(_driver().cuMemAlloc(max(size, 1)), f"allocate {size} bytes on the GPU")
            return OwnBuffer(int(address), size, self.context)

    def free_memory(self) -> int:
        """Bytes that could be allocated now."""
        free, _ = _check(_driver().cuMemGetInfo(), "ask for free memory")
        return int(free)

    def copy_to(self, address: int, values: NDArray[Any]) -> None:
        """Copies an array to the GPU; returns when it is there."""
        flat = np.ascontiguousarray(values)
        _check(_driver().cuMemcpyHtoD(address, flat.ctypes.data, flat.nbytes), "copy to the GPU")

    def copy_from(self, values: NDArray[Any], address: int) -> None:
        """Fills a contiguous array from the GPU."""
        _check(_driver().cuMemcpyDtoH(values.ctypes.data, address, values.nbytes), "copy from the GPU")

    def pinned(self, size: int) -> PinnedBuffer:
        """Uninitialised page-locked host memory."""
        with ALONE:
            make_calls()
            address = int(_check(_driver().cuMemHostAlloc(size, 0), f"pin {size} bytes"))
            memory = (ctypes.c_uint8 * size).from_address(address)
            return PinnedBuffer(address, np.ctypeslib.as_array(memory), self.context)

    def inside(self) -> Context:
        """For a `with` around calls."""
        return Context(self.context)

    def enter(self) -> None:
        """Makes the context current in this thread from now on."""
        _check(_driver().cuCtxSetCurrent(self.context), "use the context")

    def reach(self, other: Device) -> None:
        """Kernels here may read and write the memory of another GPU from now on."""
        driver = _driver()
        here, there = (_check(driver.cuDeviceGet(each.ordinal), "open the GPU") for each in (self, other))
        if not _check(driver.cuDeviceCanAccessPeer(here, there), "ask for the links between GPUs"):
            raise CudaError(f"GPU {self.ordinal} does not reach the memory of GPU {other.ordinal}")
        (status,) = driver.cuCtxEnablePeerAccess(other.context, 0)
        if status != driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
            _check((status,), f"reach the memory of GPU {other.ordinal}")

    def new_stream(self) -> Stream:
        """Another stream, which waits for none."""
        return Stream(_check(_driver().cuStreamCreate(1), "create a stream"))

    def stream_of(self, handle: int) -> Stream:
        """A stream that someone else made, by the number that it has in every CUDA library."""
        return Stream(_driver().CUstream(handle))

    def load(self, cubin: bytes, symbol: str, parameters: Sequence[tuple[str, Scalar]]) -> Kernel:
        """The kernel ``symbol`` of a cubin; ``parameters`` in signature order."""
        driver = _driver()
        with ALONE:
            module = _check(driver.cuModuleLoadData(cubin), f"load the kernel {symbol} on {self.name}")
        function = _check(driver.cuModuleGetFunction(module, symbol.encode()), f"find {symbol}")
        return Kernel(function, symbol, tuple(parameters))

    def call(self, kernel: Kernel, shape: LaunchShape, stream: Stream | None = None) -> Call:
        """A launch of `shape` that is set up once and started as often as needed."""
        return Call(self, kernel, shape, stream or self.stream)

    def launch(
        self,
        kernel: Kernel,
        shape: LaunchShape,
        arguments: Mapping[str, Any],
        stream: Stream | None = None,
    ) -> None:
        """One kernel launch, asynchronous on ``stream``."""
        call = self.call(kernel, shape, stream)
        call.set(**arguments)
        call.launch()


class Call:
    """A kernel launch with its configuration and the memory of its arguments."""

    def __init__(self, device: Device, kernel: Kernel, shape: LaunchShape, stream: Stream) -> None:
        self.device, self.kernel, self.shape = device, kernel, shape
        self._config = _launch_config(shape, stream.handle)
        self._values = {name: _CTYPES[kind]() for name, kind in kernel.parameters}
        addresses = [ctypes.addressof(value) for value in self._values.values()]
        self._pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self._address = ctypes.addressof(self._pointers)
        self._missing = set(self._values)

    def set(self, **arguments: Any) -> None:
        """Arguments by name; they stay for later launches."""
        for name, value in arguments.items():
            if name in self._values:
                self._values[name].value = value.address if isinstance(value, DeviceBuffer) else value
        self._missing.difference_update(arguments)

    def launch(self) -> None:
        """Starts the kernel; the arguments are copied before this returns."""
        if self._missing:
            missing = self._missing
            raise CudaError(f"{self.kernel.symbol}: no argument for {', '.join(sorted(missing))}")
        result = _driver().cuLaunchKernelEx(self._config, self.kernel.function, self._address, 0)
        _check(result, f"launch {self.shape.workers} workers of {self.kernel.symbol}")
        self.device._launches[0] += 1


def current_gpu() -> int:
    """The GPU that is current in this thread, as `torch.cuda.set_device` chooses one; else the first."""
    driver = _start()
    if not int(_check(driver.cuCtxGetCurrent(), "ask for the context")):
        return 0
    return int(_check(driver.cuCtxGetDevice(), "ask for the context's GPU"))


def _start() -> Any:
    driver = _driver()
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", CONNECTIONS)
    try:
        _check(driver.cuInit(0), "start CUDA")
    except RuntimeError as error:  # cuda.bindings: the driver library is not there
        raise CudaError("cannot start CUDA: no NVIDIA driver is installed") from error
    return driver


def open_device(ordinal: int = 0) -> Device:
    """The GPU ``ordinal`` with its primary context."""
    driver = _start()
    count = _check(driver.cuDeviceGetCount(), "count GPUs")
    if ordinal >= count:
        raise CudaError(f"GPU {ordinal} was asked for; {count} {'is' if count == 1 else 'are'} visible")
    handle = _check(driver.cuDeviceGet(ordinal), "open the GPU")
    context = _check(driver.cuDevicePrimaryCtxRetain(handle), "create a context")
    kind = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(kind, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_check(driver.cuDeviceGetAttribute(key, handle), f"read {name}"))

    major = attribute("COMPUTE_CAPABILITY_MAJOR")
    minor = attribute("COMPUTE_CAPABILITY_MINOR")
    raw_name = _check(driver.cuDeviceGetName(128, handle), "read the GPU's name")
    with Context(context):
        stream = Stream(_check(driver.cuStreamCreate(1), "create a stream"))
    return Device(
        name=raw_name.split(b"\0")[0].decode(),
        arch=f"sm_{major}{minor}",
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        driver_version=int(_check(driver.cuDriverGetVersion(), "read the driver version")),
        stream=stream,
        context=context,
        ordinal=ordinal,
    )


def raise_on_abort(record: Mapping[str, int], names: Sequence[str] = ()) -> None:
    """Turn a nonzero abort record (by field name) into an error that names the place."""
    if record["waiter"] == 0:
        return
    code = record["exchange"]
    exchange = names[code] if code < len(names) else str(code)
    raise CudaError(
        f"the kernel gave up waiting: worker {record['waiter'] - 1}, instruction "
        f"{record['instruction']}, exchange {exchange}, {record['missing']} arrivals missing"
    )


def _launch_config(shape: LaunchShape, stream: Any) -> Any:
    driver = _driver()
    kind = driver.CUlaunchAttributeID
    attributes = []
    if shape.cluster > 1:
        cluster = driver.CUlaunchAttribute()
        cluster.id = kind.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = shape.cluster
        cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
        attributes.append(cluster)
    cooperative = driver.CUlaunchAttribute()
    cooperative.id = kind.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    cooperative.value.cooperative = 1
    attributes.append(cooperative)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.workers, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
    config.sharedMemBytes = shape.shared_bytes
    if stream is not None:
        config.hStream = stream
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
