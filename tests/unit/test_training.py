"""Training as a user has it: schedules, early stopping, configurations, resuming, kills, full disks."""

import errno
import itertools
import json
import math
import os
import random
import signal
import sys
import time
import tomllib

import attrs
import numpy as np
import pytest

import dnc
from dnc import api
from dnc.diagnostics import DiagnosticError
from dnc.ir.optimizers import Hyper
from dnc.runtime.checkpoint import load_checkpoint
from dnc.runtime.curves import draw_curves
from dnc.runtime.rates import RateSchedule, rate_schedule
from dnc.runtime.results import Evaluation
from dnc.runtime.run_config import read_config
from dnc.runtime.run_folder import RunFolder
from dnc.runtime.trainer import Trainer, TrainOptions
from tests.support.command_line import command, finished_build, workplace
from tests.support.forests import ForestGrower
from tests.support.forked import Command
from tests.support.models import small_plan, small_session

__all__ = ["command", "finished_build", "workplace"]
TRAIN = "run build --data train.jsonl --device vm --batch 4"
FOREST = ForestGrower(small_plan("treelstm").program, 5).grow(7, 4, "random")
KILLS = 50
BEGIN = "a run that was killed before it wrote anything is begun again, with its first command"
GO_ON = "to begin another run from its weights: --checkpoint"


# ---- learning rates --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (rate_schedule(), [1] * 12),
        (rate_schedule("step", 0.5, 2), [1] * 6 + [0.5] * 6),
        (rate_schedule("exponential", 0.5), [0.5 ** (s / 3) for s in range(12)]),
        (rate_schedule("cosine", 0.2), [0.6 + 0.4 * math.cos(math.pi * s / 12) for s in range(12)]),
        (rate_schedule(warmup=4), [0.25, 0.5, 0.75] + [1] * 9),
        (
            rate_schedule("cosine", warmup=4),
            [0.25, 0.5, 0.75, 1] + [0.5 + 0.5 * math.cos(math.pi * s / 8) for s in range(8)],
        ),
    ],
)
def test_schedules(schedule, expected):
    """4 epochs of 3 steps."""
    found = [schedule.factor(step, 3, 4) for step in range(1, 13)]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"kind": "cosin"}, "unknown schedule 'cosin'; schedules: constant, step, exponential, cosine"),
        ({"decay": 0.5}, "a constant learning rate has no decay"),
        ({"kind": "cosine", "every": 2}, "a cosine learning rate has no steps"),
        ({"kind": "step", "decay": 1.5}, "the decay is 1.5, expected a number from 1e-06 to 1"),
        ({"warmup": -1}, "warmup is -1, expected 0 or more"),
        ({"kind": "step", "every": 0}, "decay every is 0, expected 1 or more"),
    ],
)
def test_schedules_that_cannot_be(arguments, message):
    with pytest.raises(DiagnosticError, match=message):
        rate_schedule(**arguments)


def test_every_step_has_its_rate():
    """The same as steps by hand, each with the rate that the schedule says."""
    schedule, hyper = RateSchedule("cosine", 0.1, warmup=2), Hyper("adam", 0.05)
    events = []
    options = TrainOptions(2, 3, hyper, seed=4, log_every=1, schedule=schedule)
    whole, alone = small_session("treelstm"), small_session("treelstm")
    trainer = Trainer(whole, whole.attach(FOREST), options, events.append, lambda kind: None)
    trainer.run()
    steps = [event for event in events if event["event"] == "step"]
    rates = [0.05 * schedule.factor(step, 3, 2) for step in range(1, 7)]
    assert [event["learning_rate"] for event in steps] == rates
    data, at = alone.attach(FOREST), 0
    for epoch in range(2):
        order = dnc.runtime.trainer.shuffled(7, 4, epoch)
        for begin in range(0, 7, 3):
            alone.step(data, order[begin : begin + 3], attrs.evolve(hyper, learning_rate=rates[at]))
            at += 1
    alone.sync()
    for name, value in whole.read_arrays().items():
        assert np.array_equal(value, alone.read_arrays()[name])


# ---- early stopping and checkpoints inside an epoch --------------------------------------------------


def with_scores(monkeypatch, scores):
    """A session whose accuracy on the dev set is the next of `scores`."""
    session, found = small_session("treelstm"), iter(scores)
    monkeypatch.setattr(
        session, "evaluate", lambda data: Evaluation(7, 1.0, {"accuracy": next(found)}), raising=True
    )
    return session


@pytest.mark.parametrize(
    "scores, epochs, best", [([0.5, 0.4, 0.6, 0.6, 0.1], 5, 3), ([0.9, 0.1, 0.9], 3, 1), ([0.1] * 3, 3, 1)]
)
def test_training_ends_when_nothing_gets_better(monkeypatch, scores, epochs, best):
    session = with_scores(monkeypatch, scores)
    data, saved = session.attach(FOREST), []
    options = TrainOptions(10, 3, Hyper("sgd", 0.01), patience=2)
    made = Trainer(session, data, options, lambda event: None, saved.append, dev=data)
    assert made.run() and made.position.epoch == epochs and made.best_epoch == best
    assert made.best == scores[best - 1] and made.exhausted()
    again = attrs.evolve(made)  # goes on from its end: nothing is left to do
    assert again.run() and again.position == made.position


def test_the_best_is_kept_before_the_last(monkeypatch):
    """Whoever goes on from "last" finds the "best" that it knows of."""
    session = with_scores(monkeypatch, [0.5, 0.4])
    data, order = session.attach(FOREST), []
    options = TrainOptions(2, 3, Hyper("sgd", 0.01))
    report = lambda event: order.append(event["event"])  # noqa: E731
    Trainer(session, data, options, report, order.append, dev=data).run()
    assert order == ["epoch", "best", "last", "epoch", "last"]


def test_checkpoints_inside_an_epoch():
    session, places = small_session("treelstm"), []
    options = TrainOptions(2, 1, Hyper("adagrad", 0.1), save_every=3)
    made = Trainer(session, session.attach(FOREST), options, lambda event: None, lambda kind: None)
    made.save = lambda kind: places.append((made.position.epoch, made.position.batch, made.position.seen))
    assert made.run()
    assert places == [(0, 3, 3), (0, 6, 6), (1, 0, 0), (1, 3, 3), (1, 6, 6), (2, 0, 0)]


# ---- configurations and resuming ---------------------------------------------------------------------


def events(folder):
    """What does not depend on the clock, without where the run began and ended."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "samples_per_second")
    kept = [{k: v for k, v in event.items() if k not in clock} for event in found]
    return [event for event in kept if event["event"] in ("step", "epoch")]


FULL = (
    f"{TRAIN} --epochs 3 --dev dev.jsonl --optimizer adamw --lr 0.02 --beta1 0.8 --weight-decay 0.1 --clip 3 "
    "--schedule cosine --decay 0.1 --warmup 2 --patience 3 --seed 5 --log-every 1 --save-every 2"
)


def test_a_run_is_made_again_from_its_configuration(command, workplace):
    assert command(f"{FULL} --run-dir first").code == 0
    values = tomllib.loads((workplace / "first" / "run.toml").read_text())
    assert values == {
        "build": str(workplace / "build"),
        "data": str(workplace / "train.jsonl"),
        "dev": str(workplace / "dev.jsonl"),
        "device": "vm",
        **{"epochs": 3, "batch": 4, "optimizer": "adamw", "lr": 0.02, "beta1": 0.8, "beta2": 0.999},
        **{"epsilon": 1e-8, "weight_decay": 0.1, "clip": 3.0, "schedule": "cosine", "decay": 0.1},
        **{"warmup": 2, "patience": 3, "seed": 5, "log_every": 1, "save_every": 2},
    }
    assert command("run --config first/run.toml --run-dir second").code == 0
    for kind in ("last", "best"):
        first, second = (workplace / name / f"{kind}.safetensors" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
    assert events(workplace / "first") == events(workplace / "second")


def test_a_run_in_python_is_made_again_from_its_configuration(command, workplace):
    """Without a configuration of its own, and resumed in Python or by the command."""
    schedule = rate_schedule("step", 0.5, warmup=2)

    def trained(folder, epochs, **options):
        model = dnc.load("build", "vm", seed=5, checkpoint=options.get("resumed"))
        if "resumed" not in options:
            model.configure("momentum", 0.02, momentum=0.8)
        return model.train(
            "train.jsonl",
            epochs=epochs,
            batch=4,
            dev="dev.jsonl",
            schedule=schedule,
            run_dir=folder,
            **options,
        )

    trained("first", 3)
    values = tomllib.loads((workplace / "first" / "run.toml").read_text())
    assert values == {
        **{name: str(workplace / file) for name, file in (("data", "train.jsonl"), ("dev", "dev.jsonl"))},
        **{"build": str(workplace / "build"), "epochs": 3, "batch": 4, "seed": 5, "log_every": 10},
        **{"optimizer": "momentum", "lr": 0.02, "momentum": 0.8, "weight_decay": 0.0},
        **{"schedule": "step", "decay": 0.5, "decay_every": 1, "warmup": 2},
    }
    assert command("run --config first/run.toml --run-dir second --device vm").code == 0
    trained("third", 1)
    trained("third", 3, resumed="third/last.safetensors")
    trained("fourth", 1)
    assert command("run --resume fourth --epochs 3 --device vm").code == 0
    whole = (workplace / "first" / "last.safetensors").read_bytes()
    for name in ("second", "third", "fourth"):
        assert (workplace / name / "last.safetensors").read_bytes() == whole, name


def test_a_run_whose_last_checkpoint_is_gone(command, workplace):
    """Where there never was one, it begins again and says so; where there was one, nothing is lost."""
    assert command(f"{TRAIN} --epochs 2 --run-dir run").code == 0
    whole, last = (workplace / "run" / name for name in ("metrics.jsonl", "last.safetensors"))
    before, events = last.read_bytes(), whole.read_text()
    last.unlink()
    done = command("run --resume run --epochs 3 --device vm")
    line = "error: run/last.safetensors: is missing, and metrics.jsonl knows of 2 epochs"
    assert done.code == 2 and line in done.error and whole.read_text() == events
    whole.write_text("")  # as if it had been killed in its first epoch
    done = command("run --resume run --device vm")
    assert done.code == 0 and "run has no checkpoint yet: training begins again\n" in done.error
    assert last.read_bytes() == before


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupts_in_python_end_with_a_checkpoint(command, workplace, number):
    assert command(f"{TRAIN} --epochs 3 --run-dir whole").code == 0
    model, before = dnc.load("build", "vm"), signal.getsignal(number)

    def interrupt(event):
        if event.get("step") == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        model.train("train.jsonl", epochs=3, batch=4, run_dir="parts", report=interrupt, log_every=1)
    assert signal.getsignal(number) == before
    assert json.loads((workplace / "parts/metrics.jsonl").read_text().splitlines()[-1])["finished"] is False
    assert command("run --resume parts --device vm").code == 0
    whole, parts = (workplace / name / "last.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_another_optimizer_than_that_of_the_configuration(command, workplace):
    """It begins with its own defaults, unless they stand beside it."""
    assert command(f"{FULL} --run-dir first").code == 0
    assert command("run --config first/run.toml --optimizer sgd --run-dir second").code == 0
    values = tomllib.loads((workplace / "second" / "run.toml").read_text())
    assert (values["optimizer"], values["schedule"], "beta1" in values) == ("sgd", "cosine", False)
    more = "--epochs 4 --patience 9 --optimizer momentum --lr 0.001"
    assert command(f"run --resume first {more}").code == 0
    values = tomllib.loads((workplace / "first" / "run.toml").read_text())
    assert (values["optimizer"], values["lr"], values["momentum"]) == ("momentum", 0.001, 0.9)


@pytest.mark.parametrize(
    "name, value", [("schedule", "cosine"), ("config", {}), ("run_dir", 5), ("patience", "a")]
)
def test_wrong_arguments_in_python_leave_no_folder(workplace, name, value):
    model = dnc.load("build", "vm")
    with pytest.raises(DiagnosticError, match=f"{name} is "):
        model.train("train.jsonl", dev="dev.jsonl", **{"run_dir": "new", name: value})
    assert not (workplace / "new").exists() and not (workplace / "runs").exists()


def test_options_win_over_the_file_and_paths_count_from_it(command, workplace):
    (workplace / "configs").mkdir()
    (workplace / "configs" / "small.toml").write_text(
        'build = "../build"\ndata = "../train.jsonl"\ndevice = "vm"\nlr = 0.5\noptimizer = "sgd"\nbatch = 6\n'
    )
    done = command("run --config configs/small.toml --lr 0.25 --run-dir made")
    assert done.code == 0
    assert (done.events[0]["learning_rate"], done.events[0]["batch"]) == (0.25, 6)
    assert command("run --config configs/small.toml --eval --run-dir made").code == 0


@pytest.mark.parametrize(
    "line, message",
    [
        ("--config none.toml", "none.toml: there is no such file"),
        ("--resume none", f"none: there is no such run\n  {BEGIN}"),
        ("--resume build", f"build: holds no run.toml\n  {BEGIN}"),
        ("--resume bare", f"bare: holds no run.toml\n  {GO_ON} bare/last.safetensors"),
        ("--resume runs --config x", "--resume and --config exclude each other"),
        ("--resume runs --eval", "--resume and --eval or --predict exclude each other"),
    ],
)
def test_what_cannot_be_resumed(command, workplace, line, message):
    (workplace / "bare").mkdir()
    (workplace / "bare" / "last.safetensors").write_bytes(b"")
    done = command(f"run {line}")
    assert done.code == 2 and done.error == f"error: {message}\n"


@pytest.mark.parametrize(
    "more, message",
    [
        ("--momentum 0.5", "adagrad has no momentum; these have: momentum, nesterov"),
        ("--optimizer adam --beta1 1", "--beta1: found 1, expected a number of at least 0 and below 1"),
        ("--weight-decay -1", "--weight-decay: found -1, expected a number of at least 0"),
        ("--patience 2", "patience counts epochs without a better score on the dev set, and there is none"),
        ("--dev dev.jsonl --patience 0", "--patience: found 0, expected 1 or more"),
        ("--save-every 0", "--save-every: found 0, expected 1 or more"),
        ("--schedule step --decay-every 0", "--decay-every: found 0, expected 1 or more"),
        (f"--memory {2**31}", f"--memory: found {2**31}, expected less than {2**31}"),
        ("--schedule linear", "unknown schedule 'linear'"),
    ],
)
def test_options_with_a_mistake(command, workplace, more, message):
    done = command(f"{TRAIN} {more}")
    assert done.code == 2 and f"error: {message}" in done.error and not (workplace / "runs").exists()


def test_a_stopped_run_is_resumed_to_the_same_bits(command, workplace, monkeypatch):
    assert command(f"{FULL} --run-dir whole").code == 0
    stops = iter([False] * 8 + [True])  # the command and `train` ask before every batch
    with monkeypatch.context() as patch:
        patch.setattr("dnc.runtime.interrupts.Interrupts.asked", lambda self: next(stops, True))
        assert "stopped; to go on: --resume parts\n" in command(f"{FULL} --run-dir parts").error
    assert load_checkpoint(workplace / "parts" / "last.safetensors").position.batch == 1
    with (workplace / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"event":"step","step":99}\n{"event":"st')  # what a kill leaves
    done = command("run --resume parts")
    assert done.code == 0 and "wrote parts" in done.error
    for kind in ("last", "best"):
        whole, parts = (workplace / name / f"{kind}.safetensors" for name in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()
    assert events(workplace / "whole") == events(workplace / "parts")
    done = command("run --resume parts")
    assert done.code == 2 and "nothing to train: 3 of 3 epochs are done" in done.error
    assert command("run --resume parts --epochs 4").code == 0


def test_a_run_that_had_ended_trains_nothing(command, workplace):
    """And keeps its configuration, until it trains on."""
    rest = "--dev dev.jsonl --patience 1 --epochs 9 --lr 1e-30"  # which changes no weight
    assert command(f"{TRAIN} {rest} --run-dir early").code == 0
    before = (workplace / "early" / "last.safetensors").read_bytes()
    done = command("run --resume early")
    assert done.code == 0 and "the training of early had ended by --patience" in done.error
    assert (workplace / "early" / "last.safetensors").read_bytes() == before
    before = (workplace / "early" / "run.toml").read_text()
    done = command("run --resume early --batch 3")
    assert done.code == 0 and "nothing was trained" in done.error
    assert (workplace / "early" / "run.toml").read_text() == before
    assert command("run --resume early --patience 9").code == 0
    assert read_config(workplace / "early" / "run.toml").patience == 9


def test_a_killed_run_resumes_to_the_same_bits(workplace):
    """SIGKILL at random moments, KILLS times."""
    rest = f"--dev dev.jsonl --batch 1 --epochs {8 + KILLS} --save-every 2 --optimizer adam --schedule cosine"
    first = f"run build --data train.jsonl --device vm {rest}".split()

    with Command(*first, "--run-dir", "whole") as whole:
        whole.stdout.readline()
        begin = time.perf_counter()
        whole.communicate()
        seconds = time.perf_counter() - begin
    assert whole.returncode == 0
    choice, killed, steps = random.Random(3), 0, set()
    for number in itertools.count():  # a run that was faster than thought ends, and there is another one
        folder = workplace / f"killed{number}"
        again, running = [*first, "--run-dir", folder.name], None
        while running is None or running.returncode == -signal.SIGKILL:
            with Command(*again) as running:
                if killed < KILLS:
                    if choice.random() < 0.8:  # else somewhere in the start
                        running.stdout.readline()
                    time.sleep(choice.random() * seconds / KILLS)
                    running.send_signal(signal.SIGKILL)
                _, error = running.communicate()
            killed += running.returncode == -signal.SIGKILL
            if (folder / "last.safetensors").exists():
                steps.add((number, load_checkpoint(folder / "last.safetensors").position.step))
            if (folder / "run.toml").exists():
                again = ["run", "--resume", folder.name]
        assert running.returncode == 0 or b"nothing to train" in error, error.decode()
        for kind in ("last", "best"):
            whole_bytes = (workplace / "whole" / f"{kind}.safetensors").read_bytes()
            assert (folder / f"{kind}.safetensors").read_bytes() == whole_bytes
        assert events(workplace / "whole") == events(folder)
        assert not list(folder.glob(".*"))
        if killed == KILLS:
            break
    print(f"{killed} kills in {number + 1} runs, checkpoints of {len(steps)} steps")


# ---- disks -------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line(command, workplace, monkeypatch):
    assert command(f"{TRAIN} --epochs 1 --run-dir run").code == 0
    before = (workplace / "run" / "last.safetensors").read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("dnc.runtime.atomic.os.fsync", full)
        done = command(f"{TRAIN} --run-dir other")
        assert done.code == 2
        assert done.error.splitlines()[-1].endswith("cannot be written: No space left on device")
        done = command("run --resume run --epochs 2")
        assert done.code == 2 and "Traceback" not in done.error
    assert (workplace / "run" / "last.safetensors").read_bytes() == before
    assert not list((workplace / "run").glob(".*.part"))
    assert command("run --resume run --epochs 2").code == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_metrics_on_a_full_disk_are_one_line(command, workplace, monkeypatch):
    opened = RunFolder.__init__

    def full(self, *arguments):
        opened(self, *arguments)
        self._metrics = open("/dev/full", "w")  # noqa: SIM115 (the run folder closes it)

    monkeypatch.setattr(RunFolder, "__init__", full)
    done = command(f"{TRAIN} --run-dir run")
    line = "error: run/metrics.jsonl: cannot be written: No space left on device"
    assert done.code == 2 and done.error.splitlines()[-1] == line and "Traceback" not in done.error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(command, workplace):
    (workplace / "run").mkdir(mode=0o500)
    done = command(f"{TRAIN} --run-dir run")
    assert (
        done.code == 2 and done.error.splitlines()[-1] == "error: run: cannot be written: Permission denied"
    )


# ---- curves ------------------------------------------------------------------------------------------


def test_curves(command, workplace, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install dnc[plot])")
    monkeypatch.setattr("dnc.api.runs.draw_curves", draw_curves)
    assert command(f"{TRAIN} --epochs 2 --dev dev.jsonl --run-dir run --log-every 1").code == 0
    picture = workplace / "run" / "curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
    picture.unlink()
    assert api.draw_run(workplace / "run") == picture and picture.exists()


def test_curves_and_events_without_their_libraries(command, workplace, monkeypatch):
    monkeypatch.setattr("dnc.api.runs.draw_curves", draw_curves)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = command(f"{TRAIN} --run-dir run")
    assert done.code == 0
    assert (
        "no curves: matplotlib is not installed (in dnc's folder: pip install -e '.[plot]')\nwrote run\n"
        in done.error
    )
    done = command(f"{TRAIN} --run-dir other --tensorboard")
    assert done.code == 2
    how = "in dnc's folder: pip install -e '.[tensorboard]'"
    line = f"error: no TensorBoard events: tensorboardX is not installed ({how})"
    assert done.error.splitlines()[-1] == line
    assert not (workplace / "other").exists()  # the next attempt would find a run there


def test_tensorboard_events(command, workplace):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed (pip install dnc[tensorboard])")
    assert command(f"{TRAIN} --dev dev.jsonl --run-dir run --log-every 1 --tensorboard").code == 0
    (path,) = (workplace / "run").glob("events.out.tfevents.*")
    content = path.read_bytes()
    for name in (b"batch/loss", b"batch/learning_rate", b"train/loss", b"dev/accuracy"):
        assert name in content


def test_tensorboard_events_of_a_run_that_was_killed(command, workplace):
    """They are those of its metrics, once it has gone on: none is missing, and none is twice."""
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed (pip install dnc[tensorboard])")
    run = f"{TRAIN} --dev dev.jsonl --log-every 1 --tensorboard"
    assert command(f"{run} --run-dir whole").code == 0
    assert command(f"{run} --run-dir parts --epochs 1").code == 0
    (old,) = (workplace / "parts").glob("events.out.tfevents.*")
    old.write_bytes(old.read_bytes()[:40])  # what a kill leaves
    assert command("run --resume parts --epochs 2").code == 0
    assert command("run --resume whole --epochs 2").code == 0
    sizes = []
    for name in ("whole", "parts"):
        (path,) = (workplace / name).glob("events.out.tfevents.*")
        sizes.append(path.stat().st_size)
        assert path.read_bytes().count(b"train/loss") == 2
    assert sizes[0] == sizes[1]
