"""Learning rates of a run that goes on with epochs of another length: what counts are the epochs done."""

import math
from pathlib import Path

import pytest

from dnc.runtime.rates import rate_schedule

RUN = "run build --data train.jsonl --device vm --log-every 1 --lr 0.1"


def rates(done):
    """The rate of every step, by epoch."""
    assert done.code == 0, done.error
    found = {}
    for event in done.events:
        if event["event"] == "step":
            found.setdefault(event["epoch"], []).append(event["learning_rate"])
    return found


@pytest.mark.parametrize("per_epoch, ahead", [(10, 0), (2, -32), (50, 160)])
def test_factors_behind_four_epochs(per_epoch, ahead):
    """Of 40 steps, in epochs of as many, of fewer, of more."""
    for kind, decay, expected in [("step", 0.5, 0.25), ("exponential", 0.5, 0.25), ("cosine", 0, 0.5)]:
        schedule = rate_schedule(kind, decay, None if kind == "cosine" else 2)
        assert schedule.factor(41, per_epoch, 8, ahead) == pytest.approx(expected)
    assert rate_schedule("constant", warmup=50).factor(41, per_epoch, 8, ahead) == 41 / 50


@pytest.mark.parametrize(
    "schedule, factor",
    [
        ("step --decay 0.5 --decay-every 2", lambda done: 0.5 ** (int(done) // 2)),
        ("exponential --decay 0.5", lambda done: 0.5**done),
        ("cosine", lambda done: 0.5 + 0.5 * math.cos(math.pi * done / 6)),
    ],
)
@pytest.mark.parametrize("batch", [1, 12])
def test_a_run_goes_on_with_other_batches(command, workplace, schedule, factor, batch):
    assert command(f"{RUN} --batch 4 --epochs 3 --schedule {schedule} --run-dir r").code == 0
    found = rates(command(f"run --resume r --epochs 6 --batch {batch}"))
    samples = len(Path("train.jsonl").read_text().splitlines())
    assert sorted(found) == [4, 5, 6]
    for epoch, steps in found.items():
        count = -(-samples // batch)
        assert steps == pytest.approx([0.1 * factor(epoch - 1 + at / count) for at in range(count)])


def test_a_run_goes_on_with_other_data(command, workplace):
    assert command(f"{RUN} --batch 2 --epochs 3 --schedule cosine --run-dir r").code == 0
    lines = Path("train.jsonl").read_text().splitlines(keepends=True)
    Path("few.jsonl").write_text("".join(lines[:4]))
    other = RUN.replace("train.jsonl", "few.jsonl") + " --batch 2 --epochs 6 --schedule cosine"
    found = [
        rates(command(f"{other} --checkpoint r/last.safetensors --run-dir s")),
        rates(command("run --resume r --epochs 6 --data few.jsonl")),
    ]
    for steps in found:
        assert sorted(steps) == [4, 5, 6]
        for epoch, each in steps.items():
            done = [epoch - 1, epoch - 0.5]
            assert each == pytest.approx([0.05 * (1 + math.cos(math.pi * at / 6)) for at in done])
