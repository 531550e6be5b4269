"""Lists that are made longer as arrays: the forest that reading the longer lists gives."""

import attrs
import numpy as np
import pytest

from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.runtime.data import read_samples
from dnc.runtime.lengthen import lengthened

# Letters in the words of both lists, a struct of two lists, an optional child, and links.
TEXT = """model M(words = 5, d = 5)
struct Letter = Letter(form: token<words>)
struct Mark = Mark(form: token<words>)
struct Word = Word(form: token<words>, letters: [Letter], mark: Mark?)
struct Target = Target(form: class<words>, mark: Mark?)
struct Text = Text(source: [Word], target: [Target], also: [Target])
param E: table[words, d], W: [d, d]
fn spell(c: Letter) -> [d] = tanh(W @ E[c.form] + spell(c.prev))
fn read(w: Word) -> [d] = tanh(E[w.form] + spell(w.letters.last) + read(w.prev))
fn spell2(m: Mark) -> [d] = W @ E[m.form]
fn run(w: Target) -> [d] = tanh(W @ run(w.prev) + read(w.parent.source.last) + spell2(w.mark))
loss sum(w in all(Target)) cross_entropy(run(w), w.form)
output words = [argmax(run(w)) for w in all(Target)]
"""


def equal(found, expected, at=""):
    if attrs.has(type(expected)):
        for field in attrs.fields(type(expected)):
            equal(getattr(found, field.name), getattr(expected, field.name), f"{at}.{field.name}")
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key, each in expected.items():
            equal(found[key], each, f"{at}[{key}]")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), at
        for number, each in enumerate(expected):
            equal(found[number], each, f"{at}[{number}]")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected), (at, found, expected)
    else:
        assert found == expected, at


@pytest.mark.parametrize("count", [1, 2, 5, 60])
@pytest.mark.parametrize("field", ["target", "also"])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_forest_of_longer_lists(count: int, field: str, samples: int) -> None:
    program, _ = load_program(Source("m.dn", TEXT), {})

    def read(more: int):
        found = []
        rng = np.random.default_rng(7)
        for _ in range(samples):
            word = {"form": 1, "letters": [{"form": int(rng.integers(5))} for _ in range(rng.integers(1, 4))]}
            words = [{**word, **({"mark": {"form": 3}} if rng.random() < 0.5 else {})} for _ in range(3)]
            given = [{"form": 2, "mark": {"form": 3}}] * int(rng.integers(3))
            sample = {"source": words, "target": [*given, {}], "also": [{"form": 1}, {}]}
            sample[field] = sample[field][:-1] + [{}] * more
            found.append(sample)
        return read_samples(found, program, labels_required=False).forest

    equal(lengthened(read(1), field, count), read(count))
