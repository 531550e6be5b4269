"""Which epoch is the best: by the first metric, or by the one that is chosen."""

import itertools
from pathlib import Path

import pytest

import dnc
from dnc.runtime.checkpoint import load_checkpoint
from dnc.runtime.results import Evaluation
from dnc.runtime.run_config import HEAD, NOT_AGAIN, read_config
from tests.support.command_line import TREE

MORE = """metric  width = mean(t in root) logits(t)[0]
metric  everywhere = mean(t in all(Tree)) argmax(logits(t)) == t.label
metric  surprise = perplexity(t in root) cross_entropy(logits(t), t.label)
"""
RUN = "run b --data train.jsonl --dev dev.jsonl --device vm --batch 4 --epochs 4"
ROWS = [  # of an epoch: loss, accuracy, everywhere, surprise
    (0.9, 0.4, 0.9, 5.0),
    (0.8, 0.7, 0.5, 2.0),
    (0.3, 0.6, 0.6, 4.0),
    (0.5, 0.1, 0.1, 3.0),
    (0.6, 0.2, 0.3, 6.0),
]


@pytest.fixture
def scored(workplace, command, monkeypatch):
    """A build with several metrics, and what its epochs come to."""
    text = TREE.read_text()
    Path("m.dn").write_text(text.replace("output  label", f"{MORE}output  label"))
    assert command("compile m.dn -o b --set embed=4,hidden=4").code == 0
    rows = itertools.cycle(ROWS)

    def evaluate(*arguments):
        loss, *found = next(rows)
        return Evaluation(5, loss, dict(zip(("accuracy", "everywhere", "surprise"), found, strict=True)))

    monkeypatch.setattr("dnc.runtime.session.Session.evaluate", evaluate)


def best_epoch(run):
    return load_checkpoint(Path(run, "best.safetensors")).position.epoch


@pytest.mark.parametrize(
    "option, epoch", [("", 2), ("accuracy", 2), ("everywhere", 1), ("surprise", 2), ("loss", 3)]
)
def test_the_metric_that_is_chosen(scored, command, option, epoch):
    assert command(f"{RUN} --run-dir run {f'--best {option}' if option else ''}").code == 0
    assert best_epoch("run") == epoch and read_config("run/run.toml").best == (option or None)


def test_patience_counts_by_it(scored):
    model = dnc.load("b", "vm")
    model.train("train.jsonl", dev="dev.jsonl", epochs=9, patience=2, best="everywhere", run_dir="run")
    assert model.position.epoch == 3 and best_epoch("run") == 1
    assert read_config("run/run.toml").best == "everywhere"


@pytest.mark.parametrize(
    "best, message",
    [
        ("f2", "best: found 'f2'; expected one of accuracy, everywhere, surprise, loss"),
        ("width", "best: found 'width', of which neither more nor less is better; expected one of accuracy"),
        ("", "best: found ''; expected one of"),
    ],
)
def test_what_cannot_be_chosen(scored, command, best, message):
    done = command(f"{RUN} --best", best)
    assert done.code == 2 and f"error: {message}" in done.error and not Path("runs").exists()
    with pytest.raises(dnc.DiagnosticError, match="best: found"):
        dnc.load("b", "vm").train("train.jsonl", dev="dev.jsonl", best=[best])
    Path("c.toml").write_text(f'best = "{best}"\n')
    assert message in command(f"{RUN} --config c.toml").error


def test_it_needs_a_dev_set_and_training(scored, command):
    done = command("run b --data train.jsonl --device vm --best accuracy")
    assert done.code == 2 and "error: best is a score on the dev set, and there is none" in done.error
    done = command("run b --data train.jsonl --device vm --best accuracy --eval")
    assert done.code == 2 and "--best is for training" in done.error


def test_a_run_that_goes_on_keeps_it_or_has_another_best(scored, command):
    assert command(f"{RUN} --best everywhere --run-dir run").code == 0
    assert command("run --resume run --epochs 5").code == 0
    assert read_config("run/run.toml").best == "everywhere" and best_epoch("run") == 1
    assert Path("run/run.toml").read_text().startswith(HEAD.format(name="run.toml"))
    assert command("run --resume run --epochs 6 --best loss").code == 0
    assert best_epoch("run") == 6  # scores of another kind say nothing
    first = f"{NOT_AGAIN}had best everywhere up to step 15\n"
    assert Path("run/run.toml").read_text().startswith(first)


def test_a_default_that_is_named_is_the_same(scored, command):
    assert command(f"{RUN} --run-dir run").code == 0
    assert command("run --resume run --epochs 5 --best accuracy").code == 0
    assert best_epoch("run") == 2
    assert Path("run/run.toml").read_text().startswith(HEAD.format(name="run.toml"))
