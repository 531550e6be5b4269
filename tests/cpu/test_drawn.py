"""Classes that are drawn: by a seed, from softmax, the same class wherever the same expression stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnc
from tests.support.models import SUPPORT, opened

GREEDY = (SUPPORT / "decoder.dn").read_text()
DRAWING = (SUPPORT / "drawing.dn").read_text()
# What is drawn from depends on nothing but the parameter b and the field; what is dropped is seen in `kept`.
DICE = """model Dice(classes = 6, d = 40)
struct Throw = Throw(loaded: float)
struct Game = Game(throws: [Throw])
param b: [classes] = normal(1), x: [d] = normal(1)
frozen param P: [classes, classes] = identity
fn odds(t: Throw) -> [classes] = b * t.loaded
loss sum(t in all(Throw)) sum(b) + sum(dropout(x, 0.5))
fn shown(t: Throw) -> [classes]:
    o = odds(t)
    P[sample(o)]
output faces = [sample(odds(t)) for t in all(Throw)], again = [argmax(shown(t)) for t in all(Throw)]
output others = [sample(odds(t) + 0) for t in all(Throw)], kept = [dropout(x, 0.5) for t in all(Throw)]
"""
SOURCES: list[dict[str, Any]] = [
    {"source": [{"form": 3}, {"form": 5}]},
    {"source": [{"form": 8}]},
    {"source": [{"form": at} for at in range(6)]},
]
MOST = 12


def decoding(folder: Path, text: str, device: str = "cpu", mode: str = "infer") -> dnc.Model:
    model = opened(folder, text, device, mode)
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    return model


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> dnc.Model:
    return decoding(tmp_path_factory.mktemp("drawing"), DRAWING)


@pytest.fixture(scope="module")
def dice(tmp_path_factory: pytest.TempPathFactory) -> dnc.Model:
    return opened(tmp_path_factory.mktemp("dice"), DICE)


def with_targets(count: int = MOST) -> list[dict[str, Any]]:
    return [{**each, "target": [{}] * count} for each in SOURCES]


def lists(words: Any) -> list[list[int]]:
    return [np.asarray(each).tolist() for each in words]


def test_what_is_fed_is_what_comes_out(decoder: dnc.Model) -> None:
    """The draw stands in two functions, and is one."""
    rows = decoder.parameters()["F"]
    different = set()
    for seed in range(8):
        found = decoder.predict(with_targets(), seed=seed)
        for words, fed in zip(found["words"], found["fed"], strict=True):
            assert np.array_equal(rows[words], fed)
        different.add(str(lists(found["words"])))
    assert len(different) == 8


def test_without_a_seed_the_largest_is_chosen(decoder: dnc.Model, tmp_path: Path) -> None:
    greedy = decoding(tmp_path, GREEDY)
    expected = greedy.predict(with_targets())["words"]
    assert lists(decoder.predict(with_targets())["words"]) == lists(expected)
    assert lists(decoder.predict(with_targets(), seed=1)["words"]) != lists(expected)


@pytest.mark.parametrize("device, mode", [("vm", "infer"), ("vm", "train"), ("cpu", "train")])
def test_a_seed_draws_the_same_everywhere(decoder: dnc.Model, tmp_path: Path, device: str, mode: str) -> None:
    other = decoding(tmp_path, DRAWING, device, mode)
    for seed in (0, 7, 2**63 - 1):
        expected = decoder.predict(with_targets(), seed=seed)["words"]
        assert lists(other.predict(with_targets(), seed=seed)["words"]) == lists(expected)
        assert lists(other.predict(with_targets(), seed=seed)["words"]) == lists(expected)  # a known shape


@pytest.mark.parametrize("end", [0, 3])
@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_generated_by_a_seed(decoder: dnc.Model, end: int, chunk: int | None) -> None:
    options: dict[str, Any] = {"output": "words", "field": "target", "most": MOST, "chunk": chunk}
    for seed in range(3):
        found = lists(decoder.generate(SOURCES, end, seed=seed, **options))
        assert found == lists(decoder.generate(SOURCES, end, seed=seed, **options))
        if chunk is None:
            whole = lists(decoder.predict(with_targets(), seed=seed)["words"])
            assert found == [each[: each.index(end)] if end in each else each for each in whole]
    drawn = {str(lists(decoder.generate(SOURCES, end, seed=seed, **options))) for seed in range(6)}
    assert len(drawn) > 1


def test_every_launch_of_a_list_draws_anew(decoder: dnc.Model) -> None:
    """Chunks of one word: with the same noise in every launch, equal scores would give equal words."""
    options: dict[str, Any] = {"output": "words", "field": "target", "most": 60, "chunk": 1}
    words = decoder.generate(SOURCES[:1], 6, seed=5, **options)[0].tolist()
    stream, fed = decoder.stream("target"), []
    for _ in range(len(words)):
        fed.append(int(stream.feed({**SOURCES[0], "target": [{}]}, seed=5)["words"][0]))
    assert fed[0] == words[0] and fed != words


def test_throws_are_those_of_softmax(dice: dnc.Model) -> None:
    """Chi-square of 6,000 throws each; equal expressions are one draw, others are apart."""
    odds = dice.parameters()["b"].astype(np.float64)
    game = [{"throws": [{"loaded": 1.0}] * 6_000}]
    found = {name: values[0] for name, values in dice.predict(game, seed=3).items()}
    expected = np.exp(odds) / np.exp(odds).sum() * 6_000
    for name in ("faces", "others"):
        counts = np.bincount(found[name], minlength=6)
        assert ((counts - expected) ** 2 / expected).sum() < 20.5, name  # of 5: 1 in 1,000
    assert (found["faces"] == found["again"]).all()
    agree = float((found["faces"] == found["others"]).mean())
    assert abs(agree - float(((expected / 6_000) ** 2).sum())) < 0.03
    few = dice.predict([{"throws": [{"loaded": 1e4}] * 50}], seed=3)["faces"][0]
    assert (few == np.argmax(odds)).all()


def test_nothing_is_dropped_where_classes_are_drawn(dice: dnc.Model) -> None:
    """A seed is none of dropout's; more samples than shapes are kept for take the long way."""
    x = dice.parameters()["x"]
    for games in (1, 40):
        found = dice.predict([{"throws": [{"loaded": 1.0}] * 3}] * games, seed=5)
        assert all((kept == x).all() for kept in found["kept"])
        assert len({str(lists(faces)) for faces in found["faces"]}) > (1 if games > 1 else 0)


def test_training_draws_anew_in_every_step(dice: dnc.Model) -> None:
    """As dropout does, by the seed of the run; evaluation chooses the largest."""
    game = [{"throws": [{"loaded": 1.0}] * 30}]
    first, second = (dice.forward(game, training=True) for _ in range(2))
    assert (first["faces"][0] == second["faces"][0]).all()  # one step
    dice.configure("sgd", 1e-9)
    dice.step(game)
    dice.sync()
    third = dice.forward(game, training=True)
    assert (first["faces"][0] != third["faces"][0]).any()
    assert (first["kept"][0] == 0).any()
    assert (dice.forward(game)["faces"][0] == np.argmax(dice.parameters()["b"])).all()


def test_predictions_of_the_command_line_draw_by_a_seed(tmp_path: Path, command: Any) -> None:
    model = opened(tmp_path, DICE, "vm")
    games = [{"throws": [{"loaded": 0.1}] * 40}]
    model.attach(games)
    model.save(tmp_path / "dice.safetensors")
    (tmp_path / "games.jsonl").write_text(json.dumps(games[0]) + "\n")
    weights = f"--checkpoint {tmp_path}/dice.safetensors --device vm"
    run = f"run {tmp_path}/b {weights} --data {tmp_path}/games.jsonl"
    (drawn,) = command(f"{run} --predict - --seed 3").events
    assert drawn["faces"] == model.predict(games, seed=3)["faces"][0].tolist()
    assert command(f"{run} --predict {tmp_path}/out.jsonl --seed 3").code == 0
    assert json.loads((tmp_path / "out.jsonl").read_text()) == drawn
    (largest,) = command(f"{run} --predict -").events
    assert len(set(largest["faces"])) == 1 < len(set(drawn["faces"]))


def test_a_seed_of_a_program_that_draws_nothing(tmp_path: Path, command: Any) -> None:
    model = opened(tmp_path, GREEDY, "vm")
    model.attach([{**each, "target": [{"form": 1}] * 2} for each in SOURCES])
    model.save(tmp_path / "greedy.safetensors")
    (tmp_path / "sources.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SOURCES))
    weights = f"--checkpoint {tmp_path}/greedy.safetensors --device vm"
    makes = "--end 1 --list target --output words"
    for call in (f"run {tmp_path}/b --predict -", f"generate {tmp_path}/b {makes}"):
        done = command(f"{call} {weights} --data {tmp_path}/sources.jsonl --seed 3")
        assert done.code == 2 and "model Decoder draws nothing" in done.error


@pytest.mark.parametrize(
    "seed, message",
    [
        (-1, "seed is -1, expected 0 or more"),
        (1.5, "seed is 1.5, expected a whole number"),
        (True, "seed is True, expected a whole number"),
        (2**63, "expected less than"),
    ],
)
def test_what_is_no_seed(decoder: dnc.Model, seed: Any, message: str) -> None:
    with pytest.raises(dnc.DiagnosticError, match=message):
        decoder.predict(with_targets(), seed=seed)
    with pytest.raises(dnc.DiagnosticError, match=message):
        decoder.generate(SOURCES, 0, "words", field="target", seed=seed)
    with pytest.raises(dnc.DiagnosticError, match=message):
        decoder.stream("target").feed(with_targets(1), seed=seed)


PUSHED = """model Pushed(classes = 6, d = 4)
struct Throw = Throw(loaded: float)
struct Game = Game(throws: [Throw])
param b: [classes] = normal(1), P: [classes, d] = normal(1)
fn odds(t: Throw) -> [classes] = b * t.loaded
push rows = [P[sample(odds(t))] for t in all(Throw)]
"""


def test_a_module_goes_backward_through_what_it_has_drawn(tmp_path: Path) -> None:
    """Two launches, with one draw: a row of P has as much gradient as it was read."""
    pytest.importorskip("torch")
    from dnc.torch import Module

    opened(tmp_path, PUSHED)
    net = Module(tmp_path / "b", seed=4)
    games = [{"throws": [{"loaded": 1.0}] * 40}, {"throws": [{"loaded": 0.5}] * 9}]
    net.attach(games)
    seen = set()
    for batch in ([0, 1], [0, 1], *net.batches([[0, 1]])):
        net.zero_grad()
        rows = net(batch)["rows"]
        rows.sum().backward()
        table, read = net.P.detach().numpy(), rows.detach().numpy()
        drawn = np.array([int(np.flatnonzero((table == row).all(axis=1))[0]) for row in read])
        counts = np.bincount(drawn, minlength=6)
        assert np.array_equal(net.P.grad.numpy(), np.repeat(counts[:, None], 4, axis=1).astype(np.float32))
        seen.add(str(drawn.tolist()))
    assert len(seen) == 3
    net.eval()
    largest = net.P.detach().numpy()[np.argmax(net.b.detach().numpy())]
    assert (net([0, 1])["rows"].detach().numpy() == largest).all()
