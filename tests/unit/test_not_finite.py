"""Predictions that are not finite numbers: JSON has null for them, and the command says of how many."""

import json
from pathlib import Path

import numpy as np
import pytest

import dnc

PROGRAM = """model Odd(vocab, classes = 2)
struct Word = Word(word: token<vocab>, label: class<classes>)
param E: table[vocab, classes] = normal(0.05)
loss sum(t in root) cross_entropy(E[t.word], t.label)
output high = log(E[root.word]), label = argmax(E[root.word])
"""
PREDICT = "run odd --data dev.jsonl --device vm --checkpoint odd.safetensors --predict"


@pytest.fixture
def odd(workplace, command):
    """A model that takes the logarithm of a negative number where a word is bad."""
    Path("odd.dn").write_text(PROGRAM)
    assert command("compile odd.dn -o odd").code == 0
    words = ("good", "film", "bad", "film", "bad")
    lines = "".join(json.dumps({"word": word, "label": 0}) + "\n" for word in words)
    Path("train.jsonl").write_text(lines)
    Path("dev.jsonl").write_text(lines)
    model = dnc.load("odd", "vm")
    model.attach("train.jsonl")
    rows = np.ones_like(model.parameters()["E"])
    rows[model.vocabularies["vocab"].words.index("bad")] = -1
    model.set_parameters({"E": rows})
    model.save("odd.safetensors")


def test_how_many_and_which_is_the_first(odd, command):
    note = "note: numbers of 2 of 5 samples are not finite, null in the output: the first in line 3\n"
    done = command(f"{PREDICT} out.jsonl")
    assert done.code == 0 and done.error.endswith(f"wrote out.jsonl: 5 lines\n{note}")
    written = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [each["high"] for each in written] == [[0, 0], [0, 0], [None, None], [0, 0], [None, None]]
    done = command(f"{PREDICT} -")
    assert done.code == 0 and done.error.endswith(note) and done.error.count("note") == 1
    assert done.out == Path("out.jsonl").read_text()
    Path("dev.jsonl").write_text('{"word": "bad"}\n')
    done = command(f"{PREDICT} out.jsonl")
    assert "note: numbers of 1 of 1 sample are not finite, null in the output: in line 1\n" in done.error


def test_nothing_is_said_of_what_is_finite(odd, command):
    Path("dev.jsonl").write_text('{"word": "good"}\n')
    done = command(f"{PREDICT} out.jsonl")
    assert done.code == 0 and "note" not in done.error
