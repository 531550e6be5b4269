"""What a trace says in a few lines: time by opcode, and how every worker spent its time.

In: a file that `write_trace` made. Out: a `Summary`. A worker's time in a launch is that from the first
worker's beginning to the last worker's end: work, waiting at barriers, loading weights, and the rest,
in which it is idle (it began later, ended earlier, decoded instructions, or had none).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import msgspec

from dnc.diagnostics import fail, reading
from dnc.runtime.json_text import decode_json
from dnc.runtime.trace.chrome import BARRIER, HOST_WORK, IDLE, SETUP, WHOLE, WORK


@attrs.frozen
class OpcodeTime:
    """All events of one name: their number, and in us their sum, over all workers, and the longest."""

    name: str
    category: str
    count: int
    total: float
    longest: float

    @property
    def mean(self) -> float:
        """Of an event, in us."""
        return self.total / self.count


@attrs.frozen
class WorkerTime:
    """How a worker spent its launches, in us."""

    replica: str
    worker: str
    total: float
    work: float
    wait: float
    setup: float

    @property
    def idle(self) -> float:
        """What is left."""
        return max(self.total - self.work - self.wait - self.setup, 0.0)


@attrs.frozen
class Summary:
    """See the module. launch_us: every launch from its first worker's beginning to its last one's end."""

    about: dict[str, Any]
    launch_us: tuple[float, ...]
    opcodes: tuple[OpcodeTime, ...]
    workers: tuple[WorkerTime, ...]
    host: tuple[OpcodeTime, ...]
    host_batches: dict[str, int]


class _Arguments(msgspec.Struct):
    launch: int = 0
    batches: int = 1
    name: str = ""


class _Event(msgspec.Struct):
    ph: str
    name: str
    pid: int
    tid: int
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]
    otherData: dict[str, Any] = msgspec.field(default_factory=dict)


def read_summary(path: str | Path) -> Summary:
    """The summary of a trace; DiagnosticError if it is none of dnc's."""
    with reading(path):
        content = Path(path).read_bytes()
    return summary_of(content, path)


def summary_of(content: bytes, path: str | Path) -> Summary:
    """The summary of a trace's content; path: what it is called."""
    try:
        trace: _Trace = decode_json(content, _Trace)
    except msgspec.ValidationError as error:
        raise fail(f"{path}: not a trace of dnc: {error}") from None
    except msgspec.DecodeError as error:
        raise fail(f"{path}: not JSON: {error}") from None
    events = [event for event in trace.traceEvents if event.ph == "X"]
    launches = [event for event in events if event.cat == WHOLE]
    if "dnc" not in trace.otherData or not launches:
        raise fail(f"{path}: not a trace of dnc, which dnc run --trace writes")
    names = {(e.name, e.pid, e.tid): e.args.name for e in trace.traceEvents if e.ph == "M"}
    windows: dict[int, tuple[float, float]] = {}
    for event in launches:
        number, end = event.args.launch, event.ts + event.dur
        first, last = windows.get(number, (event.ts, end))
        windows[number] = min(first, event.ts), max(last, end)
    totals: dict[tuple[int, int], float] = {}
    for event in launches:
        first, last = windows[event.args.launch]
        place = event.pid, event.tid
        totals[place] = totals.get(place, 0.0) + last - first
    spent = dict.fromkeys(
        ((place, category) for place in totals for category in (WORK, BARRIER, SETUP, IDLE)), 0.0
    )
    for event in events:
        key = (event.pid, event.tid), event.cat
        if key in spent:
            spent[key] += event.dur
    workers = tuple(
        WorkerTime(
            names.get(("process_name", place[0], 0), str(place[0])),
            names.get(("thread_name", *place), str(place[1])),
            total,
            *(spent[place, category] for category in (WORK, BARRIER, SETUP)),
        )
        for place, total in sorted(totals.items())
    )
    host = [event for event in events if event.cat == HOST_WORK]
    batches: dict[str, int] = {}
    for event in host:
        batches[event.name] = batches.get(event.name, 0) + event.args.batches
    return Summary(
        trace.otherData,
        tuple(last - first for _, (first, last) in sorted(windows.items())),
        _by_name([event for event in events if event.cat in (WORK, BARRIER, SETUP, IDLE)]),
        workers,
        _by_name(host),
        batches,
    )


def _by_name(events: list[_Event]) -> tuple[OpcodeTime, ...]:
    """Events added up by name, the most time first."""
    found: dict[tuple[str, str], list[float]] = {}
    for event in events:
        found.setdefault((event.name, event.cat), []).append(event.dur)
    made = [
        OpcodeTime(name, category, len(durations), sum(durations), max(durations))
        for (name, category), durations in found.items()
    ]
    return tuple(sorted(made, key=lambda each: -each.total))
