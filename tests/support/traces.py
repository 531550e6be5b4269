"""Checks of a trace against the timeline it was written from."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from dnc.ir.isa import GRID_BARRIER, REPLICA_BARRIER
from dnc.runtime.schedule import disassemble, header, queue
from dnc.runtime.trace.timeline import Timeline

Event = dict[str, Any]


def load(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """The whole trace, and its events with times in whole ns as `begin` and `end`."""
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in events:
        event["begin"] = round(event["ts"] * 1000)
        event["end"] = event["begin"] + round(event["dur"] * 1000)
    return trace, events


def threads(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Events by process and thread, in the order of the file."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        found[event["pid"], event["tid"]].append(event)
    return found


def check_nesting(events: list[Event]) -> None:
    """Events of a thread contain one another or are apart, and none ends before it begins."""
    for own in threads(events).values():
        open_ends: list[int] = []
        for event in sorted(own, key=lambda e: (e["begin"], -e["end"])):
            assert 0 <= event["begin"] <= event["end"], event
            while open_ends and open_ends[-1] <= event["begin"]:
                open_ends.pop()
            assert not open_ends or event["end"] <= open_ends[-1], event
            open_ends.append(event["end"])


def by_worker(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Instructions by launch and worker, in the order of the file."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if "instruction" in event["args"]:
            found[event["args"]["launch"], event["tid"] - 100].append(event)
    return found


def check_instructions(timeline: Timeline, events: list[Event]) -> int:
    """Every instruction of every queue occurs once on each of its workers, in order; how many do."""
    instructions, expected = by_worker(events), 0
    for number, launch in enumerate(timeline.launches):
        plan, head = timeline.plan, header(launch.words, timeline.plan)
        for worker in range(head["replicas"] * head["workers"]):
            own = instructions.pop((number, worker))
            texts = disassemble(launch.words, plan, worker).split("\n")
            assert [event["args"]["instruction"] for event in own] == list(range(len(texts)))
            names = sorted((opcode.name for opcode in plan.opcodes), key=len, reverse=True)
            for event, text in zip(own, texts, strict=True):
                assert event["name"] == next(
                    name for name in names if text == name or text.startswith(name + " ")
                )
                shown = dict(pair.split("=") for pair in text.removeprefix(event["name"]).split())
                assert {name: float(value) for name, value in shown.items()} == event["args"]["fields"]
            for before, after in pairwise(own):
                assert before["end"] <= after["begin"]
            expected += len(queue(launch.words, plan, worker))
    assert not instructions
    return expected


@attrs.frozen
class ClockError:
    """By how many ns a worker seems to leave a barrier before another has come to it, and where."""

    ns: int = 0
    where: str = ""


def clock_error(timeline: Timeline, events: list[Event]) -> ClockError:
    """What the clocks of workers that meet tell; at most 0 ns if nobody leaves too early.

    Nobody waits at a barrier between two levels that may poll what they read.
    """
    polled = {each.segment for each in timeline.plan.polled}
    meetings: dict[tuple[object, ...], list[tuple[Event, str]]] = defaultdict(list)
    for (launch, worker), own in by_worker(events).items():
        seen: dict[str, int] = defaultdict(int)
        names = ["", *(event["name"] for event in own), ""]
        for event, before, kind, behind in zip(own, names, names[1:], names[2:], strict=False):
            if kind in (GRID_BARRIER, REPLICA_BARRIER):
                seen[kind] += 1
                group = event["pid"] if kind == REPLICA_BARRIER else 0
                if not polled >= {before, behind}:
                    place = f"worker {worker}, {before} | {behind}"
                    meetings[launch, group, kind, seen[kind]].append((event, place))
    errors = []
    for which, met in meetings.items():
        last = max(met, key=lambda each: each[0]["begin"])
        first = min(met, key=lambda each: each[0]["end"])
        ns = last[0]["begin"] - first[0]["end"]
        errors.append(ClockError(ns, f"{which}: left by {first[1]}; reached by {last[1]}"))
    return max(errors, key=lambda error: error.ns, default=ClockError())
