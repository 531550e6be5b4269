"""dnc calibrate on a GPU machine: a made-up driver, no compiler, builds that were carried there."""

from __future__ import annotations

import sys
from typing import Any

import attrs
import pytest

import dnc.runtime.cuda_backend
import dnc.runtime.cuda_driver
from dnc.cli import execute
from dnc.compiler import PlanOptions, compile_model
from dnc.machine_constants import known
from tests.support.command_line import SIZES, TREE, write_data
from tests.support.fake_gpu import FakeCall, FakeDevice, FakeKernel
from tests.unit.test_cuda_runs import Device
from tests.unit.test_trace_gpu import files

TARGET = "cuda:sm_90a"


class Launch(FakeCall):
    """Computes nothing; what lies there for the abort record is zeros."""

    def launch(self) -> None:
        self.kernel.check(self.shape)
        self.device.launches += 1


class Clocked(Device):
    """Launches that take as long as the events of `Device` say."""

    def call(self, kernel: FakeKernel, shape: Any, stream: Any) -> Any:
        return Launch(self, kernel, shape)


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """A folder of builds on a machine with a GPU and without TVM."""
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: files())
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    for cluster in (8, 16):
        folder = tmp_path / "builds" / f"clusters-of-{cluster}"
        compile_model(TREE, folder, (TARGET,), SIZES, PlanOptions(cluster=cluster))
    write_data(tmp_path / "train.jsonl", 5, 1)
    device = Clocked(None)
    monkeypatch.setattr(dnc.runtime.cuda_driver, "open_device", lambda ordinal=0: device)
    monkeypatch.setattr(dnc.runtime.cuda_driver, "current_gpu", lambda: 0)
    monkeypatch.setitem(sys.modules, "tvm", None)
    monkeypatch.setitem(sys.modules, "lark", None)
    monkeypatch.chdir(tmp_path)
    return device


def test_a_folder_of_builds(carried: FakeDevice, capsys) -> None:
    assert execute(["calibrate", "--builds", "builds", "--data", "train.jsonl", "--rounds", "1"]) == 0
    found = capsys.readouterr()
    assert "a made-up GPU (sm_90a), 8 kinds of launches" in found.out, found.err
    measured = known("sm_90a")
    assert measured is not None and measured.launches == 8  # 2 builds, 2 grids, batches of 1 and 4
    assert min(attrs.astuple(measured.constants)) >= 0
    assert (carried.held, carried.locked) == (0, 0)  # what it was measured with


def test_a_cache_that_cannot_be_written_is_told_first(carried: FakeDevice, capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "file"))
    assert execute(["calibrate", "--builds", "builds", "--data", "train.jsonl", "--rounds", "1"]) == 2
    place = tmp_path / "file" / "machines" / "a-made-up-GPU.json"
    assert capsys.readouterr().err == f"error: {place}: cannot be written: Not a directory\n"
    assert carried.launches == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("calibrate --data train.jsonl", "expected a build, or --builds with a folder of them"),
        ("calibrate --builds nowhere --data train.jsonl", "nowhere: does not exist"),
        ("calibrate --builds train.jsonl --data train.jsonl", "is a file, expected a folder of builds"),
        ("calibrate --builds cache --data train.jsonl", "cache: holds no builds"),
        ("calibrate --builds builds/clusters-of-8 --data train.jsonl", "it is a build itself"),
    ],
)
def test_mistakes(carried, capsys, line: str, message: str) -> None:
    assert execute(line.split()) == 2
    assert message in capsys.readouterr().err
