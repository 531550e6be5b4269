"""Configuration files of runs with a mistake, and where a command may write its result."""

from concurrent.futures import ThreadPoolExecutor
from typing import get_args, get_type_hints

import pytest

import dnc
from dnc import api
from dnc.diagnostics import DiagnosticError
from dnc.runtime.run_config import RunConfig, with_values
from dnc.runtime.run_folder import new_run
from tests.support.command_line import command, finished_build, workplace

__all__ = ["command", "finished_build", "workplace"]
TRAIN = "run build --data train.jsonl --device vm --batch 4"


@pytest.mark.parametrize(
    "text, message",
    [
        ("epoch = 3", "run.toml:1: there is no option 'epoch'; did you mean 'epochs'?"),
        ("learning_rate = 3", "run.toml:1: there is no option 'learning_rate'; did you mean 'lr'?"),
        ("log-every = 3", "run.toml:1: there is no option 'log-every'; did you mean 'log_every'?"),
        ("lr = 1\nepochs = 'x'", 'run.toml:2: epochs is "x", expected a whole number'),
        ("epochs = 1.5", "run.toml:1: epochs is 1.5, expected a whole number"),
        ("lr = true", "run.toml:1: lr is true, expected a number"),
        ("tensorboard = 1", "run.toml:1: tensorboard is 1, expected true or false"),
        ("# all\n\n[data]\na = 1", "run.toml:3: data is a table, expected a text"),
        ("lr = 1\nschedule = 'cosin'", 'run.toml:2: schedule is "cosin", expected one of constant, step,'),
        ("optimizer = 'adamm'", 'run.toml:1: optimizer is "adamm", expected one of sgd, momentum,'),
        ("embeddings = [1]", "run.toml:1: embeddings is a list, expected a table of paths by name"),
        ("vocabulary = 'x'", 'run.toml:1: vocabulary is "x", expected a table of paths by name'),
        ("[embeddings]\nE = 3", "run.toml:1: embeddings is a table, expected a table of paths by name"),
        ("epochs = ", "run.toml: not TOML: Invalid value"),
        ("epochs = " + 2000 * "[", "run.toml: nested too deeply"),
        ("epochs = 1\ndata = ''", 'run.toml:2: data is "", expected a path'),
        ("epochs = 0", "run.toml:1: epochs is 0, expected 1 or more"),
        ("data = 'train.jsonl'", "Missing argument 'build' (see dnc run --help)"),
        ("build = 'build'", "Missing option '--data' (see dnc run --help)"),
    ],
)
def test_configurations_with_a_mistake(command, workplace, text, message):
    (workplace / "run.toml").write_text(text)
    done = command("run --config run.toml")
    assert done.code == 2 and done.error.startswith(f"error: {message}") and done.error.count("\n") == 1


WHOLE = [name for name, kind in get_type_hints(RunConfig).items() if int in get_args(kind)]


@pytest.mark.parametrize("name", WHOLE)
def test_every_whole_number_of_a_configuration_has_limits(command, workplace, name):
    for value in (-1, 2**31):
        (workplace / "run.toml").write_text(f"build = 'build'\n{name} = {value}\n")
        done = command("run --config run.toml")
        assert done.code == 2 and done.error.startswith(f"error: run.toml:2: {name} is {value}, expected ")


FRACTIONS = [name for name, kind in get_type_hints(RunConfig).items() if float in get_args(kind)]


@pytest.mark.parametrize("name", FRACTIONS)
def test_every_other_number_has_limits(command, workplace, name):
    """It is told as the whole ones are: by its option, or by its line."""
    for value in ("nan", "-1", "-inf", *(() if name == "clip" else ("inf",))):
        done = command(f"{TRAIN} --{name.replace('_', '-')} {value}")
        assert done.code == 2
        assert done.error.startswith(f"error: --{name.replace('_', '-')}: found {value}, expected a ")
        (workplace / "run.toml").write_text(f"build = 'build'\n{name} = {value}\n")
        done = command("run --config run.toml")
        assert done.code == 2 and done.error.startswith(f"error: run.toml:2: {name} is {value}, expected a ")


@pytest.mark.parametrize("schedule, least", [("step", "1e-06"), ("exponential", "1e-06"), ("cosine", "0")])
def test_the_limits_of_a_decay_are_its_schedules(command, workplace, schedule, least):
    done = command(f"{TRAIN} --schedule {schedule} --decay 1.5")
    expected = f"expected a number from {least} to 1 that a 32-bit float holds"
    assert done.code == 2 and done.error == f"error: --decay: found 1.5, {expected}\n"
    (workplace / "run.toml").write_text(f"schedule = '{schedule}'\ndecay = 0\n")
    done = command("run --config run.toml")
    message = "Missing argument" if least == "0" else "run.toml:2: decay is 0"
    assert done.error.startswith(f"error: {message}")


def test_a_configuration_with_a_byte_order_mark(workplace):
    (workplace / "run.toml").write_bytes(b"\xef\xbb\xbfepochs = 3\r\n")
    assert api.read_config("run.toml").epochs == 3


@pytest.mark.parametrize(
    "line",
    [
        "run build --data dev.jsonl --device vm --predict OUT --run-dir kept",
        "run build --data dev.jsonl --device vm --trace OUT --eval --run-dir kept",
        "explain build --html OUT",
        "export-weights kept -o OUT",
        "import text words.txt -o OUT",
        "opt build/model.dn -o OUT",
    ],
)
def test_results_go_neither_over_a_run_nor_into_a_build(command, workplace, line):
    (workplace / "words.txt").write_text("a b\n")
    assert command(f"{TRAIN} --dev dev.jsonl --run-dir kept").code == 0
    kept = {
        path: path.read_bytes() for path in [*(workplace / "kept").iterdir(), *workplace.glob("build/*.*")]
    }
    for name in ("run.toml", "metrics.jsonl", "vocabulary.json", "last.safetensors", "best.safetensors"):
        done = command(line.replace("OUT", f"kept/{name}"))
        assert done.code == 2 and done.error.startswith(f"error: kept/{name}: "), done.error
    done = command(line.replace("OUT", "build/manifest.json"))
    assert done.code == 2 and "lies in the build" in done.error
    assert {path: path.read_bytes() for path in kept} == kept
    assert "vm --trace" in line or command(line.replace("OUT", "kept/other")).code == 0  # which has no clock


@pytest.mark.parametrize("option", ["--predict OUT", "--trace OUT --epochs 1"])
def test_results_go_over_nothing_that_is_read(command, workplace, option):
    text = "build = 'build'\ndata = 'dev.jsonl'\ndevice = 'vm'\n"
    (workplace / "c.toml").write_text(text)
    done = command(f"run --config c.toml --run-dir r {option.replace('OUT', 'c.toml')}")
    assert done.code == 2 and "c.toml" in done.error and (workplace / "c.toml").read_text() == text
    if "trace" in option:
        (workplace / "v.txt").write_text("a 1\n")
        line = f"{TRAIN} --run-dir r --embeddings E=v.txt {option.replace('OUT', 'v.txt')}"
        assert command(line).code == 2 and (workplace / "v.txt").read_text() == "a 1\n"


@pytest.mark.parametrize("line", ["export-weights kept -o OUT", "run build --data more.jsonl --predict OUT"])
@pytest.mark.parametrize("name", ["train.jsonl", "dev.jsonl", "v.txt"])
def test_results_go_over_nothing_that_a_run_reads(command, workplace, line, name):
    """It could not be gone on with; what it says of that may be damaged, and then is not heeded."""
    (workplace / "v.txt").write_text("good 1 2 3 4\n")
    (workplace / "more.jsonl").write_bytes((workplace / "dev.jsonl").read_bytes())
    assert command(f"{TRAIN} --dev dev.jsonl --embeddings E=v.txt --run-dir kept").code == 0
    before = (workplace / name).read_bytes()
    line = line.replace("more.jsonl", "more.jsonl --device vm --run-dir kept").replace("OUT", name)
    done = command(line)
    assert done.code == 2 and f"{name}: is read by the run in kept and would be lost" in done.error
    assert (workplace / name).read_bytes() == before
    (workplace / "kept" / "run.toml").write_text("data = [")
    assert command(line).code == 0


def test_another_schedule_has_defaults_of_its_own():
    config = RunConfig(schedule="step", decay=0.1, decay_every=2, warmup=3)
    assert with_values(config, schedule="step") == config
    assert with_values(config, schedule="cosine") == RunConfig(schedule="cosine", warmup=3)
    assert with_values(config, schedule="step", decay=0.2).decay_every == 2


def test_a_new_run_has_a_folder_of_its_own(workplace):
    assert len({new_run("M") for _ in range(3)}) == 3
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: new_run("M"), range(40)))) == 40


def test_a_checkpoint_that_was_not_loaded_is_not_gone_on_with(workplace):
    model = dnc.load("build", "vm")
    model.train("dev.jsonl", epochs=1, batch=4, run_dir="own")
    events = (workplace / "own" / "metrics.jsonl").read_bytes()
    again = dnc.load("build", "vm")
    with pytest.raises(DiagnosticError, match="the model is not where this checkpoint is"):
        again.train("dev.jsonl", epochs=1, batch=4, run_dir="own", resumed="own/last.safetensors")
    with pytest.raises(DiagnosticError, match="there is no such file"):
        again.train("dev.jsonl", epochs=1, batch=4, run_dir="own", resumed="own/none.safetensors")
    assert (workplace / "own" / "metrics.jsonl").read_bytes() == events
    again.restore("own/last.safetensors")
    again.train("dev.jsonl", epochs=2, batch=4, run_dir="own", resumed="own/last.safetensors")
