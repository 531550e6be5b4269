"""dnc tune on the CPU: what is timed is right, the fastest stays, and nothing else is touched."""

import shutil

import attrs
import numpy as np
import pytest

import dnc
import dnc.api.tuning
from dnc.api.timing import Measured
from dnc.cli import execute
from dnc.compiler import PlanOptions, compile_model
from dnc.machine_constants import known
from dnc.passes.candidates import CPU_TILES
from dnc.runtime.build import read_build
from tests.support.command_line import SIZES, TREE, Outcome, write_data

TUNE = "tune build --data train.jsonl --device cpu --rounds 1"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    compile_model(TREE, folder / "build", ("cpu",), SIZES)
    write_data(folder / "train.jsonl", 12, 1)
    return folder


@pytest.fixture
def command(capsys):
    """Runs a command line; unlike the fixture of other tests, with kernels."""

    def run(text):
        code = execute(text.split())
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def place(compiled, tmp_path, monkeypatch):
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fastest(tile, workers=None):
    """Times that make candidates with a tile, and so many workers, the fastest."""

    def measure(work, device, contestants, rounds, tell=None):
        good = [
            each.plan.tiling.tile == tile and workers in (None, each.workers) for each in contestants
        ]  # fmt: skip
        return [Measured(1.0 if found else 2.0) for found in good]

    return measure


def test_candidates_are_timed_and_the_fastest_stays(place, command, monkeypatch):
    before = dnc.load("build", "cpu", seed=3)
    done = command(f"{TUNE} --batch 4 --best 2")
    assert done.code == 0, done.error
    assert "9 candidates ranked" in done.out or "3 candidates ranked" in done.out
    assert "chosen" in done.out and "as it was" in done.out and "us a launch" in done.error
    (note,) = read_build("build").targets["cpu"].tuned
    assert note.batch == 4 and note.microseconds > 0 and 2 <= note.candidates <= 3
    after = dnc.load("build", "cpu", seed=3)
    assert after.backend.grid(4) == (note.replicas, note.workers)
    assert after.backend.grid(1000) == before.backend.grid(1000)
    losses = []
    for model in (before, after):
        model.attach("train.jsonl")
        losses.append([*model.steps([np.arange(4)])])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_another_kernel_takes_the_place_of_the_build_s(place, command, monkeypatch):
    monkeypatch.setattr(dnc.api.tuning, "measure", fastest(96, 1))
    assert command(f"{TUNE} --batch 4 --best 9").code == 0
    assert command(f"{TUNE} --batch 2 --best 9").code == 0
    found = read_build("build").targets["cpu"]
    assert found.options["tile"] == 96 and [each.batch for each in found.tuned] == [4, 2]
    assert dnc.load("build", "cpu").plan.tiling.tile == 96
    assert "batches of 2 to 8" in command("explain build").out
    monkeypatch.setattr(dnc.api.tuning, "measure", fastest(24))
    assert command(f"{TUNE} --batch 8 --best 9").code == 0
    found = read_build("build").targets["cpu"]
    assert found.options["tile"] == 24 and [each.batch for each in found.tuned] == [8]


def test_what_is_as_fast_is_kept(place, command, monkeypatch):
    monkeypatch.setattr(
        dnc.api.tuning, "measure", lambda work, kind, them, rounds: [Measured(1.0)] * len(them)
    )
    done = command(f"{TUNE} --batch 4")
    assert done.code == 0 and "keeps what it had" in done.error
    assert read_build("build").targets["cpu"].options["tile"] is None


def test_problems_are_text_not_markup(place, command, monkeypatch):
    wrong = Measured(None, "[/red]:x:")
    monkeypatch.setattr(
        dnc.api.tuning,
        "measure",
        lambda work, kind, them, rounds: [Measured(1.0), *[wrong] * (len(them) - 1)],
    )
    done = command(f"{TUNE} --batch 4 --best 2")
    assert done.code == 0 and "[/red]:x:" in done.out


def test_tiles_give_the_same_bits(place):
    found = []
    for tile in CPU_TILES:
        compile_model(TREE, f"b{tile}", ("cpu",), SIZES, PlanOptions(tile=tile))
        model = dnc.load(f"b{tile}", "cpu", seed=3, replicas=1, workers=1)
        model.attach("train.jsonl")
        losses = [*model.steps([np.arange(12), np.arange(5)])]
        found.append((losses, model.parameters()))
    for losses, parameters in found[1:]:
        assert losses == found[0][0]
        assert all(np.array_equal(parameters[name], found[0][1][name]) for name in parameters)


@pytest.mark.parametrize("option", ["", "--dry-run"])
def test_an_interrupt_and_a_dry_run_leave_the_build(place, command, monkeypatch, option):
    before = contents(place)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(dnc.api.tuning, "measure", fastest(96) if option else stop)
    done = command(f"{TUNE} --batch 4 {option}")
    assert done.code == (0 if option else 130) and contents(place) == before


def test_kernels_are_emitted_and_then_timed_where_no_compiler_is(place, command, monkeypatch):
    done = command("tune build --emit 9 --batch 4")
    assert done.code == 0 and "build: holds 3 of" in done.error, done.error
    found = read_build("build")
    assert [each.options["tile"] for each in found.candidates["cpu"]] != []
    assert len(found.candidate_kernels("cpu")) == 2
    monkeypatch.setattr(dnc.api.tuning, "measure", fastest(24))
    assert command(f"{TUNE} --batch 4 --best 9").code == 0
    found = read_build("build")
    assert found.targets["cpu"].options["tile"] == 24
    tiles = {each.options["tile"] for each in found.candidates["cpu"]}
    assert tiles == {None, 96} and not any(each.tuned for each in found.candidates["cpu"])
    monkeypatch.setattr(dnc.api.tuning, "has_compiler", lambda: False)
    done = command(f"{TUNE} --batch 4")
    assert done.code == 2 and "there is no TVM here" in done.error and done.error.count("\n") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tune build", "expected --data"),
        ("tune nowhere --data train.jsonl", "there is no such build"),
        ("tune build --data nowhere.jsonl", "nowhere.jsonl"),
        ("tune build --data train.jsonl --batch 13", "holds 12 samples, fewer than a batch of 13"),
        ("tune build --data train.jsonl --device vm", "no device to be timed"),
        ("tune build --data train.jsonl --device tpu", "unknown device 'tpu'"),
        ("tune build --data train.jsonl --device cuda", "no kernels for a GPU"),
        ("tune build --data train.jsonl --batch 0", "--batch"),
        ("tune build --emit 2 --device cuda", "no kernels for cuda"),
        ("tune build --emit 2 --device cuda", "dnc compile --target cpu,cuda makes kernels for both"),
        ("tune build --emit 2 --device vm", "expected cpu or cuda"),
        ("tune build --emit 0", "--emit"),
    ],
)
def test_mistakes(place, command, monkeypatch, line, message):
    before = contents(place)
    done = command(line)
    assert done.code == 2 and message in done.error and "Traceback" not in done.error
    assert contents(place) == before


def test_a_build_with_other_files_is_refused_before_anything_is_timed(place, command, monkeypatch):
    (place / "build" / "notes.txt").write_text("mine")
    monkeypatch.setattr(dnc.api.tuning, "measure", None)
    done = command(f"{TUNE} --batch 4")
    assert done.code == 2 and "holds notes.txt beside the build" in done.error


def test_candidates_that_do_not_run_are_said_to(place, command, monkeypatch):
    monkeypatch.setattr(
        dnc.api.tuning, "measure", lambda work, kind, them, rounds: [Measured(None, "no room")] * len(them)
    )
    done = command(f"{TUNE} --batch 4")
    assert done.code == 2 and "no candidate for cpu runs here: no room" in done.error


def test_the_build_in_another_state_is_of_the_same_model(place, command, monkeypatch):
    """Tuning leaves the model's digest, so checkpoints go on to fit."""
    before = read_build("build")
    monkeypatch.setattr(dnc.api.tuning, "measure", fastest(96))
    assert command(f"{TUNE} --batch 4 --best 9").code == 0
    after = read_build("build")
    assert after.digest == before.digest and after.program == before.program
    assert attrs.evolve(after.targets["cpu"], options={}, plan="", files={}, tuned=()) == attrs.evolve(
        before.targets["cpu"], options={}, plan="", files={}
    )


def test_constants_are_measured_and_then_used(place, command, monkeypatch):
    monkeypatch.setenv("DNC_CACHE_DIR", str(place / "cache"))
    before = contents(place / "build")
    done = command("calibrate build --data train.jsonl --device cpu --rounds 1")
    assert done.code == 0 and "tiled_flop" in done.out and "median error" in done.out, done.error
    assert contents(place / "build") == before
    assert known("cpu").launches >= 3 and min(attrs.astuple(known("cpu").constants)) >= 0
    assert "measured on CPU" in command("explain build --candidates --batch 2 --data train.jsonl").out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("calibrate build", "--data"),
        ("calibrate nowhere --data train.jsonl", "there is no such build"),
        ("calibrate build --data train.jsonl --device vm", "no device to be timed"),
        ("calibrate build --data nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_mistakes_of_calibration(place, command, line, message):
    done = command(line)
    assert done.code == 2 and message in done.error and "Traceback" not in done.error


def test_a_calibration_without_a_launch_says_why(place, command, monkeypatch):
    def none_runs(work, device, contestants, rounds):
        return [Measured(None, "the device is full")] * len(contestants)

    monkeypatch.setattr("dnc.api.calibration.measure", none_runs)
    done = command("calibrate build --data train.jsonl --device cpu --rounds 1")
    assert done.code == 2 and "no launch could be timed\n  build: the device is full" in done.error


def test_few_samples_of_a_small_model_have_one_worker(place, command):
    """A step of its recursion is less work than meeting over it, in training as in prediction."""
    backend = dnc.load("build", "cpu").backend
    backend.cores = 2
    for trains in (True, False):
        assert backend.grid(1, trains) == backend.grid(3, trains) == (1, 1)
        assert backend.grid(4, trains) == (2, 1)
