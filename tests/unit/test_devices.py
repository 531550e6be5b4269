"""Which place a build runs at, where a machine has several GPUs."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.runtime import cuda_driver
from dnc.runtime.devices import TIMED, Place, alone, choose

BUILD: Any = SimpleNamespace(
    path=Path("build"), targets={"cpu": None, "cuda:sm_80": None, "cuda:sm_90a": None}
)


class Status(IntEnum):
    CUDA_SUCCESS = 0


class Attribute:
    """Keys of attributes: their names."""

    def __getattr__(self, name: str) -> str:
        return name.removeprefix("CU_DEVICE_ATTRIBUTE_")


class TwoGPUs:
    """A driver of an sm_80 and an sm_90. stack: contexts that this thread has; 10 + n is that of GPU n."""

    CUdevice_attribute = Attribute()

    def __init__(self) -> None:
        self.stack: list[int] = []

    def __getattr__(self, name: str) -> Any:
        """Everything else succeeds and gives nothing."""
        return lambda *arguments: (Status.CUDA_SUCCESS, None)

    def cuDeviceGetCount(self) -> Any:
        return Status.CUDA_SUCCESS, 2

    def cuDeviceGet(self, number: int) -> Any:
        return Status.CUDA_SUCCESS, number

    def cuDevicePrimaryCtxRetain(self, number: int) -> Any:
        return Status.CUDA_SUCCESS, 10 + number

    def cuDeviceGetAttribute(self, key: str, number: int) -> Any:
        return Status.CUDA_SUCCESS, 8 + number if key == "COMPUTE_CAPABILITY_MAJOR" else 0

    def cuDeviceGetName(self, size: int, number: int) -> Any:
        return Status.CUDA_SUCCESS, b"GPU %d" % number

    def cuDriverGetVersion(self) -> Any:
        return Status.CUDA_SUCCESS, 13000

    def cuStreamCreate(self, flags: int) -> Any:
        assert self.stack, "a stream is made in a context"
        return Status.CUDA_SUCCESS, self.stack[-1]

    def cuCtxPushCurrent(self, context: int) -> Any:
        self.stack.append(context)
        return (Status.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self) -> Any:
        return Status.CUDA_SUCCESS, self.stack.pop()

    def cuCtxGetCurrent(self) -> Any:
        return Status.CUDA_SUCCESS, self.stack[-1] if self.stack else 0

    def cuCtxGetDevice(self) -> Any:
        return Status.CUDA_SUCCESS, self.stack[-1] - 10


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> TwoGPUs:
    found = TwoGPUs()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: found)
    return found


def test_numbered_gpus(driver: TwoGPUs) -> None:
    for device, place in (
        ("cuda:0", Place("cuda", "cuda:sm_80", 0)),
        ("cuda:1", Place("cuda", "cuda:sm_90a", 1)),
        ("cuda", Place("cuda", "cuda:sm_80", 0)),
        (None, Place("cuda", "cuda:sm_80", 0)),
        ("cpu", Place("cpu", "cpu")),
        ("vm", Place("vm", "cpu")),
    ):
        assert choose(BUILD, device) == place
    with pytest.raises(DiagnosticError, match=r"has kernels for .*; GPU 2 was asked for; 2 are visible"):
        choose(BUILD, "cuda:2")
    for wrong in ("cuda:", "cuda:-1", "cuda:1.0", "cuda:0 ", "cuda:1000", "gpu", 1):
        with pytest.raises(DiagnosticError, match=r"unknown device .*; devices: cpu, cuda, vm\n.*cuda:1"):
            choose(BUILD, wrong)  # type: ignore[arg-type]
    assert not driver.stack  # the thread has no context, as before


def test_gpus_that_train_together(driver: TwoGPUs, monkeypatch: pytest.MonkeyPatch) -> None:
    both = r"GPU 0 is sm_80, GPU 1 sm_90: only those alike train together"
    with pytest.raises(DiagnosticError, match=both):
        choose(BUILD, "cuda:0,1")
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", lambda key, number: (Status.CUDA_SUCCESS, 9))
    place = choose(SimpleNamespace(path=BUILD.path, targets={"cuda:sm_99": None}), "cuda:1,0")  # type: ignore[arg-type]
    assert place == Place("cuda", "cuda:sm_99", 1, (0,))
    with pytest.raises(DiagnosticError, match=r"kernels are timed on one device: choose one of cuda:1,0"):
        alone(place, TIMED)
    assert alone(choose(BUILD, "cpu"), TIMED) == Place("cpu", "cpu")
    assert choose(BUILD, "vm:0,1") == Place("vm", "cuda:sm_80", 0, (1,))
    for wrong, message in (
        ("cuda:0,0", "device 'cuda:0,0' names one twice"),
        ("cuda:0,2", r"GPU 2 was asked for; 2 are visible"),
        ("cuda:0,", r"unknown device .*\n.*cuda:0,1 are two that train together"),
        ("vm:0", r"unknown device"),
        ("cpu:0,1", r"unknown device"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            choose(BUILD, wrong)
    with pytest.raises(DiagnosticError, match=r"has no kernels for a GPU, only for cpu"):
        choose(SimpleNamespace(path=BUILD.path, targets={"cpu": None}), "vm:0,1")  # type: ignore[arg-type]


def test_the_gpu_that_is_current(driver: TwoGPUs) -> None:
    """As PyTorch has chosen it; and it still is."""
    driver.stack.append(11)
    for device in ("cuda", None):
        assert choose(BUILD, device) == Place("cuda", "cuda:sm_90a", 1)
    assert choose(BUILD, "cuda:0").gpu == 0
    assert cuda_driver.open_device(0).stream.handle == 10
    assert driver.stack == [11]


def test_a_context_that_is_left_by_an_error(driver: TwoGPUs) -> None:
    device = cuda_driver.open_device(1)
    with pytest.raises(KeyError), device.inside():
        assert driver.stack == [11]
        raise KeyError
    assert not driver.stack
    assert (device.name, device.arch, device.ordinal) == ("GPU 1", "sm_90", 1)
