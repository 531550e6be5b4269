"""The CUDA backend shared with PyTorch, on a driver of host memory that runs kernels on the VM.

What a GPU would do is real here in everything but place: memory that PyTorch allocates, copies of schedules,
launches in order, streams by number. So the code that shares the pool runs on any machine.
"""

from __future__ import annotations

import ctypes
import json
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.api  # noqa: E402
import dnc.kernel_cache  # noqa: E402
import dnc.torch  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.runtime import cuda_driver, devices  # noqa: E402
from dnc.runtime.cuda_backend import CudaBackend  # noqa: E402
from dnc.runtime.reference_vm import ReferenceVM  # noqa: E402
from dnc.torch import memory  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402

WORKERS, BESIDE = 2, 5  # what streams are called that the backend makes
TREES = [
    {"word": "good", "label": 4},
    {"left": {"word": "bad", "label": 0}, "right": {"word": "film", "label": 2}, "label": 1},
]


class Status(IntEnum):
    CUDA_SUCCESS = 0


class Copy2D(SimpleNamespace):
    pass


class HostDriver:
    """The functions of the driver that the runtime calls; addresses are those of the host."""

    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2, CU_MEMORYTYPE_HOST=1)
    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION=1, CU_LAUNCH_ATTRIBUTE_COOPERATIVE=2
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=1,
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED=2,
    )

    def __init__(self, plan) -> None:
        self.machine, self.plan, self.kept, self.pool = ReferenceVM(plan, 0), plan, [], None
        self.copies, self.kernels, self.waits = [], [], []

    def __getattr__(self, name):
        """Everything else succeeds and gives nothing."""
        return lambda *arguments: (Status.CUDA_SUCCESS, None)

    def CUmemcpy2D(self):
        return Copy2D()

    CUDA_MEMCPY2D = CUmemcpy2D

    def CUstream(self, number):
        return number

    def CUlaunchConfig(self):
        return SimpleNamespace(hStream=None)

    def CUlaunchAttribute(self):
        return SimpleNamespace(
            id=0, value=SimpleNamespace(clusterDim=SimpleNamespace(x=0, y=0, z=0), cooperative=0)
        )

    def cuStreamCreate(self, flags):
        return Status.CUDA_SUCCESS, BESIDE

    def cuEventCreate(self, flags):
        return Status.CUDA_SUCCESS, object()

    def cuStreamWaitEvent(self, stream, event, flags):
        self.waits.append(stream)
        return (Status.CUDA_SUCCESS,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        return Status.CUDA_SUCCESS, 1

    def cuMemGetInfo(self):
        return Status.CUDA_SUCCESS, 1 << 28, 1 << 30

    def cuMemHostAlloc(self, size, flags):
        self.kept.append(np.zeros(size, np.uint8))
        return Status.CUDA_SUCCESS, self.kept[-1].ctypes.data

    def cuMemcpyHtoD(self, to, source, size):
        ctypes.memmove(int(to), int(source), size)
        return (Status.CUDA_SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemcpyHtoDAsync(self, to, source, size, stream):
        self.copies.append(stream)
        return self.cuMemcpyHtoD(to, source, size)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    def cuMemsetD8Async(self, address, value, size, stream):
        ctypes.memset(int(address), value, size)
        return (Status.CUDA_SUCCESS,)

    def cuMemcpy2DAsync(self, copy, stream):
        for row in range(copy.Height):
            source, to = copy.srcDevice + row * copy.srcPitch, copy.dstHost + row * copy.dstPitch
            ctypes.memmove(int(to), int(source), copy.WidthInBytes)
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        """Runs the schedule that lies at `words` on the VM."""
        values = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
        pool_at, words_at = (
            ctypes.cast(values[at], ctypes.POINTER(ctypes.c_void_p)).contents.value for at in (0, 1)
        )
        pool = self.pool.numpy()
        assert pool_at == pool.ctypes.data
        first = (words_at - pool_at) // 4
        size = int(pool[first + 1 : first + 2].view(np.int32)[0])
        words = pool[first : first + size].view(np.int32).copy()
        self.kernels.append(config.hStream)
        self.machine.run(words, pool, len(pool))
        return (Status.CUDA_SUCCESS,)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A build, and a driver that stands for a GPU."""
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    sizes = {"embed": 4, "hidden": 4}
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cuda:sm_90a", "cpu"), sizes)
    made = []

    def opened(place, plan, build, replicas, workers):
        driver = HostDriver(plan)
        made.append(driver)
        monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
        device = cuda_driver.Device("host", "sm_90", 4, 13000, cuda_driver.Stream(1), context=1)
        described = {"symbol": "k", "workers": WORKERS, "cluster": 1, "threads": 32, "shared_bytes": 0}
        names = ["pool", "words", "counters", "grid", "limit_us"]
        files = {"kernel.json": json.dumps({**described, "parameters": names}).encode(), "kernel.cubin": b""}
        return CudaBackend(plan, files, device, replicas=1)

    def allocate(gpu, size):
        made[-1].pool = torch.zeros(size // 4)
        return cuda_driver.LentBuffer(made[-1].pool.data_ptr(), size, made[-1].pool)

    monkeypatch.setattr(cuda_driver, "_forget", lambda *memory: None)  # some goes when no driver is left
    monkeypatch.setattr(devices, "_gpu", lambda number: (0, "sm_90", ""))
    monkeypatch.setattr(dnc.api, "open_backend", opened)
    monkeypatch.setattr(memory, "allocate", allocate)
    monkeypatch.setattr(memory, "idle", lambda gpu: 0)
    monkeypatch.setattr(memory, "current_stream", lambda gpu: 7)
    return tmp_path / "build", made


def test_a_pool_of_pytorch_and_its_streams(gpu, monkeypatch):
    build, made = gpu
    net = dnc.torch.Module(build, TREES, device="cuda")
    driver = made[0]
    first = net._memory.floats.data_ptr()
    assert net._memory.floats is driver.pool
    assert first <= net.W.data_ptr() < first + driver.pool.numel() * 4
    loss = net([0, 1])["loss"]
    loss.backward()
    # Copies, too: PyTorch's reads of a schedule are queued behind the kernel, and before the next copy.
    assert driver.kernels == [7] and set(driver.copies) == {7} and driver.waits == [7]
    gradient = net.U.grad.clone()
    assert gradient.abs().sum() > 0
    monkeypatch.setattr(memory, "current_stream", lambda gpu: 9)
    net.zero_grad()
    net([1, 0])["loss"].backward()
    assert driver.kernels == [7, 9] and driver.copies[-1] == 9 and driver.waits == [7, 9]
    torch.testing.assert_close(net.U.grad, gradient)
    before = net.W.detach().clone()
    torch.optim.SGD(net.parameters(), lr=0.5).step()
    assert torch.equal(torch.from_numpy(net.dnc.parameters()["W"]), net.W) and not torch.equal(before, net.W)
    net.eval()
    assert net.predict(TREES)["p"].shape == (2, 5)


def test_it_agrees_with_the_reference_vm(gpu, monkeypatch):
    build, _ = gpu
    net = dnc.torch.Module(build, TREES, device="cuda")
    net([0, 1])["loss"].backward()
    monkeypatch.undo()
    plain = dnc.torch.Module(build, TREES, device="vm")
    plain.load_state_dict(net.state_dict())
    plain([0, 1])["loss"].backward()
    for (name, found), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=name)


def test_the_pool_grows(gpu):
    build, made = gpu
    net = dnc.torch.Module(build, [*TREES, *(TREES[1] for _ in range(40))], device="cuda")
    value, pool = net.W.detach().clone(), made[0].pool
    net(list(range(42)))["loss"].backward()
    assert made[0].pool is not pool and net._memory.floats is made[0].pool
    assert torch.equal(net.W, value) and net.W.grad.abs().sum() > 0
