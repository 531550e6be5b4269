"""A run folder is one process's at a time, and an epoch goes on over the same samples only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dnc
from dnc.runtime.run_folder import RunFolder
from tests.support.command_line import command, finished_build, workplace

__all__ = ["command", "finished_build", "workplace"]


def test_a_run_is_one_process_s(command, workplace):
    assert command("run build --data train.jsonl --device vm --epochs 1 --run-dir r").code == 0
    opened = """
import sys
from dnc.runtime.run_folder import RunFolder
folder = RunFolder("r", "r/last.safetensors", 3)
print("open", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", opened], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "open\n"
    before = Path("r/metrics.jsonl").read_bytes()
    done = command("run build --resume r --epochs 2 --device vm")
    assert done.code == 2 and "r: another process trains in it" in done.error
    assert Path("r/metrics.jsonl").read_bytes() == before
    other.kill()
    other.communicate()
    assert command("run build --resume r --epochs 2 --device vm").code == 0


def test_whoever_trains_has_written_another_checkpoint_meanwhile(workplace):
    """Which was told as a model that is not where its checkpoint is, as if that had not been loaded."""
    dnc.load("build", device="vm").train("train.jsonl", epochs=1, run_dir="r")
    late = dnc.load("build", device="vm", checkpoint="r/last.safetensors")
    first = dnc.load("build", device="vm", checkpoint="r/last.safetensors")
    known = {"epochs": 3, "run_dir": "r", "resumed": "r/last.safetensors"}
    told = []

    def report(event):
        if event["event"] == "epoch" and event["epoch"] == 3:  # the checkpoint is that of epoch 2 by now
            with pytest.raises(dnc.DiagnosticError) as caught:
                late.train("train.jsonl", **known)
            told.append(str(caught.value))

    first.train("train.jsonl", **known, report=report)
    assert told == ["error: r: another process trains in it"]
    with pytest.raises(dnc.DiagnosticError, match="the model is not where this checkpoint is"):
        late.train("train.jsonl", **known)


def test_a_folder_that_is_closed_or_gone_is_free(workplace):
    folder = RunFolder("r")
    with pytest.raises(dnc.DiagnosticError, match="another process trains in it"):
        RunFolder("r", again=True)
    folder.close()
    folder = RunFolder("r", again=True)
    del folder  # as behind an exception
    RunFolder("r", again=True).close()


def test_other_samples_inside_an_epoch_are_refused(workplace):
    """As many, in another order; between two epochs they are taken."""
    stops = iter([False, False, True])
    model = dnc.load("build", device="vm")
    model.train("train.jsonl", epochs=2, batch=4, run_dir="r", stop=lambda: next(stops))
    assert model.position.batch == 2
    lines = Path("train.jsonl").read_text().splitlines()
    Path("train.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    known = {"epochs": 2, "batch": 4, "run_dir": "r", "resumed": "r/last.safetensors"}
    model = dnc.load("build", device="vm", checkpoint="r/last.safetensors")
    with pytest.raises(dnc.DiagnosticError, match="over other samples than those of"):
        model.train("train.jsonl", **known)
    samples = [json.loads(line) for line in lines]
    model.train(samples, **known)  # the same, from elsewhere
    model.train("train.jsonl", **{**known, "epochs": 3})
    assert model.position.epoch == 3
