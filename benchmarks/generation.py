"""Greedy generation: what a launch costs that is left behind the last word, and what more launches cost.

    dnc compile DECODER.dn -o decoder/ --mode infer --target cpu,cuda     # the decoder of docs/latency.md
    python benchmarks/generation.py decoder/ --device cuda [--out FILE]

In: a build of a program with the lists `source` and `target` that pulls nothing and whose output `words`
goes on from its own words. Out: first a comparison (it stops where `generate` gives other words than
`predict`), then milliseconds a call at batch 1: `predict` with a list of so many words, in one launch, and
`generate` of as many words in launches of 8, 16 and 32, for an end that never comes; and from these the
cost of a word and of a launch. Then answers of few and of many words with room for 200: call and launch, of
one sentence and of 16, beside `predict`, whose launch goes on to its end. A JSON file of all raw numbers.
Those of the first part are the least of --calls, in turns: other work on the machine adds to a call and takes
nothing away; those of the second are medians and least ones. Needs neither TVM nor the frontend on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnc
import dnc.runtime.encoder.ending
from benchmarks import common
from dnc.runtime.encoder.ending import WINDOW

LENGTHS, CHUNKS, WORDS = (32, 64, 128, 256), (8, 16, 32), 20
ROOM, ANSWERS, BATCHES = 200, (0, 5, 20, 60), (1, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda", "vm"), default="cuda")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--window", type=int, default=WINDOW, help="levels between two tests for the end")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dnc.runtime.encoder.ending.WINDOW = options.window
    model = dnc.load(options.build, options.device)
    source = [{"form": form} for form in range(WORDS)]
    model.read([{"source": source, "target": [{"form": 0}]}])
    check(model, source)
    points = [measure(model, source, length, options.calls) for length in LENGTHS]
    slope = np.polyfit(LENGTHS, [point["least"]["predict"] for point in points], 1)[0]
    launches = {str(chunk): of_a_launch(points, chunk) for chunk in CHUNKS}
    result: dict[str, Any] = common.stamp(model.device, options.commit)
    result |= {"what": "milliseconds of a call at batch 1", "window": options.window, "points": points}
    result |= {"ms_of_a_word": float(slope), "ms_of_one_more_launch": launches}
    result["answers"] = [answers(model, source, batch, options.calls) for batch in BATCHES]
    print(
        f"a word {slope * 1e3:.1f} us; one more launch", {k: f"{v * 1e3:.0f} us" for k, v in launches.items()}
    )
    out = options.out or common.default_out(model.device if options.device == "cuda" else "cpu", "generation")
    common.write(out, result)
    print(out)


def of_a_launch(points: list[dict[str, Any]], chunk: int) -> float:
    """What one more launch costs, from the shortest list that takes several."""
    point = next(point for point in points if point["words"] > chunk)
    more = point["least"][f"launches of {chunk}"] - point["least"]["predict"]
    return float(more / (point["words"] / chunk - 1))


def never(words: Iterable[Any]) -> int:
    """A word that is not among them, and so ends nothing."""
    known = {int(word) for word in words}
    return next(word for word in count() if word not in known)


def check(model: dnc.Model, source: list[Any]) -> None:
    """Every word as the end, launches of every size: the words of one launch, cut."""
    samples = [{"source": source[:count]} for count in (1, 5, WORDS)]
    whole = model.predict([{**each, "target": [{}] * LENGTHS[0]} for each in samples])["words"]
    every = {int(word) for words in whole for word in words}
    for end in every | {never(every)}:
        expected = [words[: np.append(np.flatnonzero(words == end), len(words))[0]] for words in whole]
        for chunk in CHUNKS:
            found = model.generate(samples, end, "words", most=LENGTHS[0], chunk=chunk, field="target")
            if not all(np.array_equal(*pair) for pair in zip(found, expected, strict=True)):
                raise SystemExit(f"other words: {found}, expected {expected}")


def measure(model: dnc.Model, source: list[Any], length: int, calls: int) -> dict[str, Any]:
    given = {"source": source}
    target = [{}] * length
    end = never(model.predict([{**given, "target": target}])["words"][0])
    kinds: dict[str, Callable[[], object]] = {"predict": lambda: model.predict([{**given, "target": target}])}
    for chunk in CHUNKS:
        kinds[f"launches of {chunk}"] = lambda chunk=chunk: model.generate(  # type: ignore[misc]
            [given], end, "words", most=length, chunk=chunk, field="target"
        )
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for call in range(calls + 5):
        for name, run in kinds.items():
            begin = time.perf_counter()
            run()
            if call >= 5:
                found[name].append((time.perf_counter() - begin) * 1e3)
    least = {name: min(times) for name, times in found.items()}
    print(length, "words:", ", ".join(f"{name} {value:.3f} ms" for name, value in least.items()), flush=True)
    return {"words": length, "runs": found, "least": least}


def answers(model: dnc.Model, source: list[Any], batch: int, calls: int) -> dict[str, Any]:
    """Calls of a batch of one sentence: by the words before the end, those of a launch, microseconds."""
    samples = [{"source": source}] * batch
    whole = [
        int(word) for word in model.predict([{**each, "target": [{}] * ROOM} for each in samples])["words"][0]
    ]
    new = [
        at for at, word in enumerate(whole) if word not in whole[:at]
    ]  # where a word comes for the first time
    ends = {at: whole[at] for at in (max(at for at in new if at <= wanted) for wanted in ANSWERS)}
    kinds: dict[str, Callable[[], object]] = {
        "predict": lambda: model.predict([{**each, "target": [{}] * ROOM} for each in samples])
    }
    for at, word in (*ends.items(), (ROOM, never(whole))):
        kinds[str(at)] = lambda word=word: model.generate(  # type: ignore[misc]
            samples, word, "words", most=ROOM, field="target"
        )
    found: dict[str, dict[str, list[float]]] = {name: {"call": [], "launch": []} for name in kinds}
    kernel = model.backend.time_kernels()
    for call in range(calls + 5):
        for name, run in kinds.items():
            if kernel is not None:
                kernel.clear()
            begin = time.perf_counter()
            run()
            if call >= 5:
                found[name]["call"].append((time.perf_counter() - begin) * 1e6)
                found[name]["launch"] += [seconds * 1e6 for seconds in kernel or ()]
    model.backend.time_kernels(False)
    numbers = {
        name: {
            what: {"p50": float(np.median(each)), "least": min(each)} for what, each in own.items() if each
        }
        for name, own in found.items()
    }
    for name, own in numbers.items():
        shown = ", ".join(f"{what} p50 {v['p50']:,.0f} least {v['least']:,.0f} us" for what, v in own.items())
        rate = batch * (ROOM if name == "predict" else int(name)) / own["call"]["p50"] * 1e6
        print(f"batch {batch}, {name} words: {shown}, {rate:,.0f} words a second", flush=True)
    return {"batch": batch, "room": ROOM, "runs": found, "numbers": numbers}


if __name__ == "__main__":
    main()
