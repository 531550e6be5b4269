"""A timeline as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

In: a finished timeline. Out: a JSON file. A process a replica, in it a thread a worker, on it an event
a launch with the instructions inside, named as the disassembler names them; barriers have the category
"wait" and a colour of their own. The host is a process with a thread for each kind of its work.
Guaranteed: every instruction of a schedule occurs once for every worker that runs it; times are whole
ns, and no event of a thread overlaps another that does not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dnc.diagnostics import fail
from dnc.ir.isa import EARLY, END, FLOAT_FIELDS, GRID_BARRIER, NOP, REPLICA_BARRIER
from dnc.ir.plan import Opcode, Plan
from dnc.ir.stamps import nanoseconds
from dnc.runtime.atomic import write_atomically
from dnc.runtime.schedule import Words, header, queue
from dnc.runtime.trace.timeline import HOST, Timeline, TracedLaunch
from dnc.version import VERSION

WORK, BARRIER, SETUP, IDLE, WHOLE, HOST_WORK = "work", "wait", "setup", "idle", "launch", "host"
CATEGORIES = dict.fromkeys((REPLICA_BARRIER, GRID_BARRIER, EARLY, END), BARRIER) | {NOP: IDLE}
# Colours that chrome://tracing knows; Perfetto chooses one a name.
COLOURS = {BARRIER: "terrible", SETUP: "grey", IDLE: "white", WHOLE: "generic_work"}
PROLOGUE = "load weights"
HOST_PROCESS, FIRST_REPLICA, FIRST_WORKER = 1, 2, 100

Event = dict[str, Any]


def write_trace(timeline: Timeline, path: str | Path) -> bytes:
    """Writes the trace, and returns it; DiagnosticError if nothing was launched, or it cannot be written."""
    if not timeline.launches:
        raise fail(f"{path}: not written, for nothing was launched")
    clock = "the host's clock" if timeline.host_clock else "the GPU's clock, placed by the first launch"
    about = {
        "dnc": VERSION,
        "model": timeline.plan.program.name,
        "target": timeline.plan.target,
        "device": timeline.device,
        "clock": clock,
        "launches": len(timeline.launches),
    }
    content = {"traceEvents": list(events(timeline)), "displayTimeUnit": "ns", "otherData": about}
    written = msgspec.json.encode(content) + b"\n"
    try:
        write_atomically(Path(path), [written])
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    return written


def events(timeline: Timeline) -> Iterator[Event]:
    """All events; the first of the host is at time 0."""
    launches = [_Clocked(timeline.plan, launch) for launch in timeline.launches]
    shift = 0 if timeline.host_clock else shift_to_host(launches)
    beginnings = [span.begin for span in timeline.spans] + [launch.begin + shift for launch in launches]
    origin = min(beginnings)
    yield _name("process_name", HOST_PROCESS, 0, "host")
    for number, name in enumerate(HOST, 1):
        yield _name("thread_name", HOST_PROCESS, number, name)
    for span in timeline.spans:
        thread = HOST.index(span.name) + 1
        place = HOST_PROCESS, thread, span.begin - origin, span.end - origin
        yield _event(span.name, HOST_WORK, *place, batches=span.batches)
    yield from _worker_names(launches)
    for number, launch in enumerate(launches):
        yield from launch.events(number, shift - origin)


class _Clocked:
    """A launch with its times in ns: for every worker begin, stamps and end."""

    def __init__(self, plan: Plan, launch: TracedLaunch) -> None:
        self.plan, self.launch = plan, launch
        head = header(launch.words, plan)
        self.replicas, self.workers = head["replicas"], head["workers"]
        self.queues = [queue(launch.words, plan, r * self.workers) for r in range(self.replicas)]
        self.times = [
            nanoseconds(run, len(self.queues[worker // self.workers]))
            for worker, run in enumerate(launch.runs)
        ]

    @property
    def begin(self) -> int:
        """When its first worker began."""
        return min(int(times[0]) for times in self.times)

    def events(self, number: int, shift: int) -> Iterator[Event]:
        """The launch on every worker, and in it the instructions."""
        described = [list(self._described(found)) for found in self.queues]
        for worker, times in enumerate(self.times):
            replica = worker // self.workers
            place = FIRST_REPLICA + replica, FIRST_WORKER + worker
            at = (times + shift).tolist()
            samples = self.launch.samples
            yield _event(f"launch {number}", WHOLE, *place, at[0], at[-1], launch=number, samples=samples)
            yield _event(PROLOGUE, SETUP, *place, at[0], at[1], launch=number)
            for index, (name, category, about) in enumerate(described[replica]):
                begin, end = at[2 * index + 2], at[2 * index + 3]
                arguments = {"launch": number, "instruction": index, **about}
                yield _event(name, category, *place, begin, end, **arguments)

    def _described(self, instructions: Words) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Name, category, stage and fields of every instruction."""
        stages = {segment.name: segment.stage for segment in self.plan.segments}
        for instruction in instructions:
            opcode = self.plan.opcodes[int(instruction[0])]
            about: dict[str, Any] = {"fields": _fields(opcode, instruction)}
            if opcode.name in stages:
                about["stage"] = stages[opcode.name]
            yield opcode.name, CATEGORIES.get(opcode.name, WORK), about


def _fields(opcode: Opcode, instruction: Words) -> dict[str, Any]:
    words = zip(opcode.fields, instruction[1:], strict=False)
    return {name: float(word.view(np.float32)) if name in FLOAT_FIELDS else int(word) for name, word in words}


def shift_to_host(launches: list[_Clocked]) -> int:
    """What to add to the GPU's times, so that no launch begins before the host asked for it.

    The smallest such number: at least one launch then seems to begin at once, which is early by the few
    microseconds that starting a kernel takes.
    """
    return max(launch.launch.asked - launch.begin for launch in launches)


def _worker_names(launches: list[_Clocked]) -> Iterator[Event]:
    """Processes and threads of the replicas."""
    seen: set[tuple[int, int]] = set()
    for launch in launches:
        for worker in range(len(launch.times)):
            replica = worker // launch.workers
            if (replica, -1) not in seen:
                yield _name("process_name", FIRST_REPLICA + replica, 0, f"replica {replica}")
            if (replica, worker) not in seen:
                place = FIRST_REPLICA + replica, FIRST_WORKER + worker
                yield _name("thread_name", *place, f"worker {worker}")
            seen |= {(replica, -1), (replica, worker)}


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(
    name: str, category: str, process: int, thread: int, begin: int, end: int, **arguments: Any
) -> Event:
    event: Event = {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "args": arguments,
    }
    return event | ({"cname": COLOURS[category]} if category in COLOURS else {})
