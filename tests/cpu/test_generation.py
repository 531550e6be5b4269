"""Greedy generation in one launch: the words of a loop on the host that asks for one after another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnc
import dnc.kernel_cache
from dnc.compiler import PlanOptions, compile_model

PROGRAM = """model Decoder(words = 9, targets = 7, embed = 4, hidden = 5)
struct Source = Source(form: token<words>)
struct Target = Target(form: class<targets>)
struct Pair = Pair(source: [Source], target: [Target])
param E: table[words, embed] = normal(1), F: [targets, embed] = normal(2)
param W: [hidden, embed] = normal(1), U: [hidden, hidden] = normal(1)
param V: [targets, hidden] = normal(2), b: [targets] = normal(0.5)
cell next(x: [embed], h: [hidden]) -> [hidden] = tanh(W @ x + U @ h)
fn encode(w: Source) -> [hidden] = next(E[w.form], encode(w.prev))
fn taught(w: Target) -> [hidden] = next(F[w.prev.form], taught(w.prev) else encode(w.parent.source.last))
fn chosen(w: Target) -> [embed] = F[argmax(scores(w))]
fn run(w: Target) -> [hidden] = next(chosen(w.prev), run(w.prev) else encode(w.parent.source.last))
fn scores(w: Target) -> [targets] = V @ run(w) + b
loss sum(w in all(Target)) cross_entropy(V @ taught(w) + b, w.form)
output words = [argmax(scores(w)) for w in all(Target)]
output following = [argmax(V @ taught(w) + b) for w in all(Target)]
"""
LIMIT = 12


def opened(folder: Path, device: str, mode: str) -> dnc.Model:
    (folder / "m.dn").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        if device == "vm":
            patch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
            patch.setenv("DNC_CACHE_DIR", str(folder / "cache"))
        compile_model(folder / "m.dn", folder / "b", ("cpu",), {}, PlanOptions(mode=mode))
    return dnc.load(folder / "b", device, seed=4)


def sources(count: int) -> list[list[dict[str, Any]]]:
    choice = random.Random(1)
    return [[{"form": choice.randrange(9)} for _ in range(choice.randint(1, 6))] for _ in range(count)]


def one_after_another(model: dnc.Model, source: list[dict[str, Any]]) -> list[int]:
    """The loop: every word is what follows those before it."""
    words: list[int] = []
    while len(words) < LIMIT:
        target = [{"form": word} for word in words] + [{"form": 0}]
        words.append(int(model.predict([{"source": source, "target": target}])["following"][0][-1]))
    return words


@pytest.mark.parametrize("device, mode", [("vm", "infer"), ("cpu", "infer"), ("cpu", "train")])
def test_one_launch_is_the_loop(tmp_path: Path, device: str, mode: str) -> None:
    model, given = opened(tmp_path, device, mode), sources(5)
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    if mode == "train":
        samples = [{"source": source, "target": [{"form": at} for at in (1, 2, 3)]} for source in given]
        for _ in range(5):
            model.step(samples)
        model.sync()
    expected = [one_after_another(model, source) for source in given]
    before = model.launches
    found = model.predict([{"source": source, "target": [{}] * LIMIT} for source in given])["words"]
    assert model.launches == before + 1
    assert [list(map(int, words)) for words in found] == expected
    assert len({str(words) for words in expected}) > 1 and any(len(set(words)) > 2 for words in expected)


def test_a_stream_goes_on_generating(tmp_path: Path) -> None:
    model = opened(tmp_path, "cpu", "infer")
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    source = sources(1)[0]
    whole = model.predict([{"source": source, "target": [{"form": 0}] * LIMIT}])["words"][0]
    stream = model.stream("target")
    parts = [stream.feed({"source": source, "target": [{"form": 0}] * 4})["words"] for _ in range(LIMIT // 4)]
    assert np.array_equal(np.concatenate(parts), whole)
