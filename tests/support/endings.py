"""Launches that leave the recursion behind the last word, against launches that go on to the end.

In: a bench of `decoder.dn`, whose pool is filled with NaN before every launch. Checked for every class as
the word that ends a list: the same words up to it in every sample.
"""

from __future__ import annotations

import numpy as np

from dnc.ir import isa
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.phases import PREDICT
from dnc.runtime.predictions import collect, rows_by_sample
from dnc.runtime.predictor import until
from dnc.runtime.schedule import Schedule, queue
from dnc.runtime.verifier import verify
from tests.support.executors import Bench

OUTPUT, CLASSES = "words", 7


def encoded(bench: Bench, word: int, grid: tuple[int, int] | None = None) -> Schedule:
    """The schedule of all samples for a list that ends with `word`; the verifier has nothing against it."""
    replicas, workers = grid or bench.backend.grid(bench.forest.samples)
    ending = Ending(OUTPUT, word)
    schedule = bench.encoder.encode(
        bench.samples, mode=ending.mode, replicas=replicas, workers=workers, ending=ending
    )
    verify(schedule)
    return schedule


def exits_of(schedule: Schedule, worker: int = 0) -> np.ndarray:
    """The `leave` instructions of a worker's queue."""
    found = queue(schedule.words, schedule.plan, worker)
    return found[found[:, 0] == schedule.plan.opcode(isa.LEAVE).number]


def check_endings(bench: Bench) -> tuple[int, int]:
    """How many rows of words were left out in all, and how many there were."""
    backend, result = bench.backend, next(r for r in bench.plan.results if r.name == OUTPUT)
    schedule, _ = bench.launch(PREDICT)
    whole = collect(backend, bench.encoder, schedule, bench.samples)[OUTPUT]
    left, total = 0, 0
    for word in range(CLASSES):
        schedule = encoded(bench, word)
        bench.load(schedule.static_words + schedule.activations)
        backend.launch([schedule], 0)
        backend.finish(0)
        rows, width = schedule.rows[result.space], bench.plan.buffer(result.buffer).width
        found = backend.read(schedule.bases[result.buffer] * 4, rows * width).reshape(rows, width)[:, 0]
        own = rows_by_sample(bench.encoder, schedule, result.space, bench.samples)
        for sample, (numbers, expected) in enumerate(zip(own, whole, strict=True)):
            words = until(found[numbers], word)
            assert np.array_equal(words, until(expected, word)), (word, sample, found[numbers], expected)
        left, total = left + int(np.isnan(found).sum()), total + rows
    return left, total
