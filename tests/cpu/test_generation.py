"""Greedy generation in one launch: the words of a loop on the host that asks for one after another."""

from __future__ import annotations

import gc
import random
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnc
from dnc.api import generation
from dnc.codegen.cpu_kernel import build_cpu
from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir.program import Program
from dnc.runtime.cpu_backend import CpuBackend
from tests.support.endings import CLASSES, check_endings, encoded, exits_of
from tests.support.executors import Bench, OnGrid
from tests.support.forests import ForestGrower
from tests.support.models import SUPPORT, opened

PROGRAM = (SUPPORT / "decoder.dn").read_text()
LIMIT = 12


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
    model, given = opened(tmp_path, PROGRAM, device, mode), sources(5)
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


def test_a_model_that_has_generated_goes_when_nobody_uses_it(tmp_path: Path) -> None:
    model = opened(tmp_path, PROGRAM, "vm", "infer")
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    model.generate([{"source": each} for each in sources(2)], 0, "words", most=4, field="target")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_stream_goes_on_generating(tmp_path: Path) -> None:
    model = opened(tmp_path, PROGRAM, "cpu", "infer")
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    source = sources(1)[0]
    whole = model.predict([{"source": source, "target": [{"form": 0}] * LIMIT}])["words"][0]
    stream = model.stream("target")
    parts = [stream.feed({"source": source, "target": [{"form": 0}] * 4})["words"] for _ in range(LIMIT // 4)]
    assert np.array_equal(np.concatenate(parts), whole)


# ---- until the word that ends a list ------------------------------------------------------------


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> dnc.Model:
    model = opened(tmp_path_factory.mktemp("decoder"), PROGRAM, "cpu", "infer")
    model.read([{"source": [{"form": at} for at in range(9)], "target": [{"form": 1}]}])
    return model


def until(words: list[int], end: int) -> list[int]:
    return words[: words.index(end)] if end in words else words


@pytest.mark.parametrize("chunk", [1, 3, 12, None])
@pytest.mark.parametrize("end", range(7))
def test_until_the_end(decoder: dnc.Model, chunk: int | None, end: int) -> None:
    given = [{"source": source} for source in sources(6)]
    whole = decoder.predict([{**each, "target": [{}] * LIMIT} for each in given])["words"]
    expected = [until([int(word) for word in words], end) for words in whole]
    before = decoder.launches
    found = decoder.generate(given, end, "words", most=LIMIT, chunk=chunk, field="target")
    assert [words.tolist() for words in found] == expected
    longest = max(min(len(words) + 1, LIMIT) for words in expected)
    assert decoder.launches - before == (1 if chunk is None else -(-longest // chunk))


def test_a_launch_has_so_many_words_at_most(decoder: dnc.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory for all words of a launch, so one of a thousand million would end the process."""
    given = [{"source": source} for source in sources(3)]
    expected = decoder.generate(given, 0, "words", most=LIMIT, field="target")
    monkeypatch.setattr(generation, "LONGEST", 5)
    before = decoder.launches
    found = decoder.generate(given, 0, "words", most=LIMIT, field="target")
    assert [words.tolist() for words in found] == [words.tolist() for words in expected]
    longest = max(min(len(words) + 1, LIMIT) for words in found)
    assert decoder.launches - before == -(-longest // 5) > 1


def test_there_are_lists_that_end_and_others(decoder: dnc.Model) -> None:
    """So that the tests before say something."""
    given = [{"source": source} for source in sources(6)]
    lengths = {
        len(words)
        for end in range(7)
        for words in decoder.generate(given, end, "words", most=LIMIT, field="target")
    }
    assert 0 in lengths and LIMIT in lengths and len(lengths) > 3


@cache
def kernel(mode: str) -> tuple[Program, CpuBackend]:
    options = PlanOptions(mode=mode)
    program = transform(load_program(Source("decoder.dn", PROGRAM), {})[0], options)
    plan = make_plan(program, "cpu", options)
    return program, CpuBackend(plan, build_cpu(plan))


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2), (1, 3), (2, 2)])
def test_the_kernel_leaves_behind_the_last_word(mode: str, grid: tuple[int, int]) -> None:
    program, backend = kernel(mode)
    left, total = 0, 0
    for seed, shape in enumerate(("complete", "chain", "comb", "random")):
        forest = ForestGrower(program, seed).grow(1 + 2 * seed, 60, shape)
        bench = Bench(program, backend.plan, OnGrid(backend, grid), forest, seed)  # type: ignore[arg-type]
        found = check_endings(bench)
        left, total = left + found[0], total + found[1]
    assert 0 < left < total


def test_many_launches_that_leave() -> None:
    """Two workers that meet at counters: none waits for one that has gone."""
    program, backend = kernel("infer")
    forest = ForestGrower(program, 5).grow(2, 50, "complete")
    bench = Bench(program, backend.plan, OnGrid(backend, (1, 2)), forest, 5)  # type: ignore[arg-type]
    schedules = [encoded(bench, word) for word in range(CLASSES)]
    assert all(len(exits_of(schedule)) for schedule in schedules)
    bench.load(max(schedule.static_words + schedule.activations for schedule in schedules))
    for turn in range(300):
        backend.launch([schedules[turn % CLASSES]], turn % 2)
        backend.finish(turn % 2)


def test_mistakes(decoder: dnc.Model) -> None:
    given: Any = [{"source": sources(1)[0]}]

    def refused(message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(dnc.DiagnosticError, match=message):
            decoder.generate(*arguments, **{"output": "words", "field": "target", **options})

    refused("'source' cannot be made: data give every Source its form", given, 0, field="source")
    refused("name the output of the words: .* outputs that do: words, following", given, 0, output=None)
    refused("'wrds' is no output of words", given, 0, output="wrds")
    refused("end is -1, expected 0 or more", given, -1)
    refused("end is 7, expected 0 to 6: 'words' has 7 classes", given, 7)
    refused("end is 999, expected 0 to 6: 'following' has 7 classes", given, 999, output="following")
    refused("end is None, expected a whole number", given, None)
    refused("most is None, expected a whole number", given, 0, most=None)
    refused("field is .'target'., expected the name of a list", given, 0, field=["target"])
    refused("end is 1.5, expected a whole number", given, 1.5)
    refused("the word 'stop' that ends a list is unknown: its classes are numbers", given, "stop")
    refused("most is 0, expected 1 or more", given, 0, most=0)
    refused("chunk is True, expected a whole number", given, 0, chunk=True)
    refused("found dict, expected a list of samples", given[0], 0)
    refused("sample 1: found 'target', which is to be made", [{**given[0], "target": [{"form": 1}]}], 0)
    refused("sample 1: found 3; expected an object", [3], 0)
    assert decoder.generate([], 0, "words", field="target") == []
    only = decoder.generate(given, 0, "words", most=4)  # the list that can be made
    assert np.array_equal(only[0], decoder.generate(given, 0, "words", most=4, field="target")[0])
