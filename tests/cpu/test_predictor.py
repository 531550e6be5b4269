"""Predictions by shape: the bits of the long way, for whatever data a shape comes with."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import dnc
from dnc.compiler import PlanOptions, compile_model
from dnc.runtime import predictor as module
from dnc.runtime.predictor import Predictor, make_template, run_template, shape_of
from dnc.runtime.session import Session
from tests.cpu.test_cpu_kernel import model
from tests.support.executors import random_parameters
from tests.support.forests import ForestGrower
from tests.support.models import EXAMPLES, small_session

NAMES = ("attention", "bilstm_tagger", "childsum", "dag", "lstm2", "mvrnn", "similarity", "treelstm")


def session(name: str, grid: tuple[int, int] | None = None) -> Session:
    program, plan, backend = model(name)
    rows = {p.name: p.dimensions[0].size or 11 for p in program.parameters if p.kind == "table"}
    if grid is not None:
        backend._replicas, backend._workers = grid
    return Session(plan, backend, rows, random_parameters(program, 3))


def same(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> None:
    assert one.keys() == other.keys() and one
    for name, values in one.items():
        assert len(values) == len(other[name])
        for a, b in zip(values, other[name], strict=True):
            assert (a is None and b is None) or np.array_equal(a, b), name
            assert a is None or np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_the_long_way(name: str, grid: tuple[int, int]) -> None:
    own = session(name, grid)
    short = Predictor(own)
    program = own.plan.program
    for seed in range(4):
        for samples in (1, 3):
            forest = ForestGrower(program, seed).grow(samples, 8)
            for _ in range(2):  # the second time its shape is known
                same(short.predict(forest), own.predict(own.attach(forest)))


@pytest.mark.parametrize("name", ["bilstm_tagger", "dag", "treelstm", "similarity"])
def test_other_data_of_a_known_shape(name: str) -> None:
    own = session(name, (1, 1))
    program, choice = own.plan.program, np.random.default_rng(5)
    forest = ForestGrower(program, 1).grow(2, 9)
    template = make_template(own, forest)
    assert template is not None
    for turn in range(5):
        for table in forest.tables.values():
            for values in table.data.values():
                if values.dtype.kind == "f":
                    values[...] = choice.normal(size=values.shape)
                else:
                    rows = int(values.max(initial=0)) + 1
                    values[...] = choice.integers(-1 if turn % 2 else 0, rows, values.shape)
        same(run_template(own, template, forest)[0], own.predict(own.attach(forest)))


def test_shapes_differ() -> None:
    """Trees, orders and arms that a schedule depends on are no shape of one another."""
    own = session("treelstm")
    seen: dict[bytes, bytes] = {}
    for seed in range(60):
        forest = ForestGrower(own.plan.program, seed).grow(1, 5)
        for table in forest.tables.values():
            for values in table.data.values():
                values[...] = 1
        made = make_template(own, forest)
        assert made is not None
        words = made.schedule.words.tobytes()
        assert seen.setdefault(shape_of(forest), words) == words
    assert 4 < len(seen) == len(set(seen.values()))


def test_a_pool_that_grew_and_shapes_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHAPES", 2)
    own = session("treelstm")
    short, program = Predictor(own), own.plan.program
    forests = [ForestGrower(program, seed).grow(1, 5) for seed in range(6)]
    for forest in forests * 2:
        same(short.predict(forest), own.predict(own.attach(forest)))
        assert len(short._templates) <= 2
        assert short._words == sum(t.schedule.words.size for t in short._templates.values())
    pool = own.memory.pool
    own.predict(own.attach(ForestGrower(program, 9).grow(200, 30)))
    assert own.memory.pool is not pool
    for forest in forests:
        same(short.predict(forest), own.predict(own.attach(forest)))


def test_several_launches_and_training_between() -> None:
    tight = small_session("treelstm", memory=small_session("treelstm").memory.words + 6000)
    forest = ForestGrower(tight.plan.program, 3).grow(30, 12)
    same(Predictor(tight).predict(forest), tight.predict(tight.attach(forest)))
    own = session("treelstm")
    short, forest = Predictor(own), ForestGrower(own.plan.program, 3).grow(2, 6)
    before = short.predict(forest)
    data = own.attach(forest)
    for _ in range(3):
        own.step(data, [0, 1])
    after = short.predict(forest)
    same(after, own.predict(data))
    assert not np.array_equal(before["p"][0], after["p"][0])


def test_nothing_is_encoded_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the API: sentences of one length share a schedule; what comes out is the caller's own."""
    compile_model(
        EXAMPLES / "lstm_classifier.dn",
        tmp_path / "b",
        ("cpu",),
        {"hidden": 6, "embed": 4},
        PlanOptions(mode="infer"),
    )
    loaded, choice = dnc.load(tmp_path / "b", "cpu"), random.Random(1)

    def sentence(length: int) -> dict[str, Any]:
        return {"label": 0, "words": [{"form": f"w{choice.randrange(30)}"} for _ in range(length)]}

    loaded.attach([sentence(9) for _ in range(40)])
    first = loaded.predict([sentence(5)])
    kept = {name: np.copy(values[0]) for name, values in first.items()}
    calls: list[int] = []
    made = module.make_template
    monkeypatch.setattr(module, "make_template", lambda *given: calls.append(1) or made(*given))
    found = [loaded.predict([sentence(5)]) for _ in range(3)]
    assert not calls and len({str(each) for each in found}) == 3
    for name, values in first.items():
        assert np.array_equal(kept[name], values[0])
    loaded.predict([sentence(6)])
    assert calls == [1]
