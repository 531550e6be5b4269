"""Measures over rows, against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dnc.ir.measures import MEASURES, Rows, in_lists, spans
from dnc.runtime.data import read_samples
from tests.support.data_programs import SENTENCE


def conll_entities(tags):
    """The entities of one sequence by the rules of the CoNLL evaluation script, written out."""
    found, start, before, before_type = set(), 0, "O", ""
    for at, tag in enumerate([*tags, "O"]):
        prefix, _, type = tag.partition("-")
        ended = started = False
        if before != "O":
            ended = prefix in ("B", "S", "O") or before in ("E", "S") or type != before_type
        if prefix != "O":
            started = prefix in ("B", "S") or before in ("E", "S", "O") or type != before_type
        if ended:
            found.add((start, at, before_type))
        if started:
            start = at
        before, before_type = prefix, type
    return found


def spans_of(*sentences):
    names = sorted({tag for sentence in sentences for tag in sentence})
    classes = np.array([names.index(tag) for sentence in sentences for tag in sentence])
    sequence = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
    return spans(classes, sequence.astype(np.int32), names)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["B-PER I-PER O B-PER B-PER"], {(0, 2, "PER"), (3, 4, "PER"), (4, 5, "PER")}),
        (["I-PER I-PER B-PER I-LOC"], {(0, 2, "PER"), (2, 3, "PER"), (3, 4, "LOC")}),  # IOB1
        (["O PER PER LOC O LOC"], {(1, 3, "PER"), (3, 4, "LOC"), (5, 6, "LOC")}),  # IO
        (["B-X E-X I-X", "S-X U-X L-X"], {(0, 2, "X"), (2, 3, "X"), (3, 4, "X"), (4, 5, "X"), (5, 6, "X")}),
        (["I-X", "I-X"], {(0, 1, "X"), (1, 2, "X")}),  # no entity goes on in another list
    ],
)
def test_entities(sentences, expected):
    assert spans_of(*(sentence.split() for sentence in sentences)) == expected


@pytest.mark.parametrize("prefixes", ["BI", "I", "BIES"])
def test_entities_are_those_of_the_script(prefixes):
    random = np.random.default_rng(3)
    tags = ["O", *(f"{prefix}-{type}" for prefix in prefixes for type in ("PER", "LOC"))]
    for _ in range(300):
        sentence = random.choice(tags, random.integers(1, 9)).tolist()
        assert spans_of(sentence) == conll_entities(sentence), sentence


def f1(predicted, right, names=("O", "B-X", "I-X")):
    rows = Rows((np.array(predicted), np.array(right)), np.zeros(len(right), np.int32), names)
    return MEASURES["f1"](rows)


def test_f1_counts_entities_that_agree_whole():
    assert f1([1, 2, 0, 1], [1, 2, 0, 1]) == 1.0
    assert f1([1, 0, 0, 1], [1, 2, 0, 1]) == pytest.approx(2 * 1 / (2 + 2))
    assert f1([1, 0, 0, 0], [0, 1, 2, 1]) == 0.0 and f1([0], [0]) == 0.0
    assert f1([1, 1, 2], [1, -1, 2]) == 1.0  # what is unknown counts on neither side
    assert f1([0, 2], [0, 2], names=("O",)) == 1.0  # data may have fewer names than there are classes


def test_pearson_is_the_closed_form():
    random = np.random.default_rng(1)
    x = random.normal(size=500) + 1000
    y = 0.3 * x + random.normal(size=500)
    n = len(x)
    x0, y0 = x - 1000, y - 300  # the textbook's form, where it does not cancel
    top = n * (x0 * y0).sum() - x0.sum() * y0.sum()
    bottom = math.sqrt(n * (x0**2).sum() - x0.sum() ** 2) * math.sqrt(n * (y0**2).sum() - y0.sum() ** 2)
    sequence = np.zeros(n, np.int32)
    assert MEASURES["pearson"](Rows((x, y), sequence)) == pytest.approx(top / bottom, abs=1e-9)
    assert math.isnan(MEASURES["pearson"](Rows((x, np.ones(n)), sequence)))


def test_pearson_of_numbers_that_are_alike_but_not_their_mean():
    alike, sequence = np.full(3, 0.1), np.zeros(3, np.int32)
    assert alike.mean() != 0.1
    for other in (alike, np.array([1.0, 2.0, 4.0])):
        assert math.isnan(MEASURES["pearson"](Rows((alike, other), sequence)))


def test_spearman_is_the_correlation_of_ranks():
    """As scipy.stats.spearmanr has it; ranks of numbers that are alike are their mean."""
    sequence = np.zeros(6, np.int32)
    x, y = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0]), np.array([2.0, 7.0, 1.0, 8.0, 2.0, 8.0])
    ranks = np.array([3, 1.5, 4, 1.5, 5, 6]), np.array([2.5, 4, 1, 5.5, 2.5, 5.5])
    expected = np.corrcoef(*ranks)[0, 1]
    spearman = MEASURES["spearman"]
    assert spearman(Rows((x, y), sequence)) == pytest.approx(expected, abs=1e-12)
    assert spearman(Rows((np.exp(x), y**3), sequence)) == pytest.approx(expected, abs=1e-12)
    assert spearman(Rows((x, x * 2), sequence)) == pytest.approx(1.0)
    for other in (np.ones(6), np.array([np.nan, 1, 2, 3, 4, 5])):
        assert math.isnan(spearman(Rows((x, other), sequence)))


def test_rmse():
    rows = Rows((np.array([1.0, 2.0, 4.0]), np.array([1.0, 5.0, 0.0])), np.zeros(3, np.int32))
    assert MEASURES["rmse"](rows) == pytest.approx(math.sqrt((9 + 16) / 3))


def macro_f1(predicted, right):
    return MEASURES["macro_f1"](Rows((np.array(predicted), np.array(right)), np.zeros(len(right), np.int32)))


def test_macro_f1_is_the_mean_over_the_classes_that_occur():
    # Class 0: one hit, twice predicted and twice right; class 1: two, twice and three times; class 4: none.
    assert macro_f1([0, 0, 1, 4, 1], [0, 1, 1, 0, 1]) == pytest.approx(np.mean([2 * 1 / 4, 2 * 2 / 5, 0.0]))
    assert macro_f1([3, 3], [3, 3]) == 1.0 and macro_f1([0], [1]) == 0.0


def test_perplexity():
    losses = np.array([0.5, 2.0, 1.0])
    assert MEASURES["perplexity"](Rows((losses,), np.arange(3, dtype=np.int32))) == pytest.approx(
        math.exp(3.5 / 3)
    )
    assert MEASURES["perplexity"].of_mean(1e4) == math.inf
    assert all(
        math.isnan(each(Rows((np.zeros(0),) * 2, np.zeros(0, np.int32))))
        for name, each in MEASURES.items()
        if name != "f1"
    )


X, Y = np.array([1.0, 2.0, 4.0, 7.0]), np.array([1.0, 5.0, 0.0, 8.0])
TAGS = ("O", "B-X", "I-X")
FOUND, RIGHT = np.array([1, 2, 0, 1]), np.array([1, 0, 0, 1])
EXPECTED = {
    "mean": ((X,), 14 / 4),
    "perplexity": ((X,), math.exp(14 / 4)),
    "pearson": ((X, Y), np.corrcoef(X, Y)[0, 1]),
    "spearman": ((X, Y), np.corrcoef([1, 2, 3, 4], [2, 3, 1, 4])[0, 1]),
    "rmse": ((X, Y), math.sqrt((0 + 9 + 16 + 1) / 4)),
    "macro_f1": ((FOUND, RIGHT), np.mean([2 / 3, 2 / 2, 0.0])),
    "f1": ((FOUND, RIGHT), 2 * 1 / (2 + 2)),
}
"""Of four rows of one list, worked out apart from the table."""


def test_every_measure_is_worked_out():
    assert EXPECTED.keys() == MEASURES.keys()
    for name, (values, expected) in EXPECTED.items():
        found = MEASURES[name](Rows(values, np.zeros(4, np.int32), TAGS))
        assert found == pytest.approx(expected, abs=1e-12), name


def test_lists_order_the_words_of_flat_samples():
    flat = {
        "Word": {"form": list("abcd"), "tag": list("wxyz")},
        "Sentence": {"words": [[2, 0, 3, 1]], "label": [0]},
        "root": 0,
    }
    forest = read_samples([flat, flat], SENTENCE).forest
    sequence, place = in_lists(forest, "Word")
    assert np.argsort(place).tolist() == [2, 0, 3, 1, 6, 4, 7, 5]
    assert sequence.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    alone, _ = in_lists(forest, "Sentence")
    assert alone.tolist() == [0, 1]
