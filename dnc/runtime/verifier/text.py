"""The words of a schedule that is checked, and what every check asks for.

In: a schedule. Out: its header, its lists by name. Guaranteed: a header that passed `check_header` says
where queues, lists and counters are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa
from dnc.runtime.schedule import Schedule
from dnc.runtime.verifier.known import known

Ints = NDArray[Any]


class ScheduleError(DiagnosticError):
    """A schedule that no kernel may run."""

    def __init__(self, message: str) -> None:
        super().__init__(Diagnostic(f"schedule: {message}"))


def need(condition: Any, message: str) -> None:
    """ScheduleError with a message unless a condition holds."""
    if not condition:
        raise ScheduleError(message)


class Text:
    """A schedule, its plan, and the parts of both by name."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.plan, self.words = schedule, schedule.plan, schedule.words
        self.rows, self.bases = schedule.rows, schedule.bases
        self.program = self.plan.program
        self.mode = schedule.mode
        self.known = found = known(self.plan, self.mode)
        self.layout, self.number = found.layout, found.numbers
        self.segments, self.buffers = found.segments, found.buffers

    def check_header(self) -> None:
        """Words, tables and counters lie where the header says, and the bases are right."""
        words, where, size = self.words, self.layout, len(self.words)
        need(size >= where.queues_at, f"{size} words cannot hold header and tables ({where.queues_at} words)")
        field = {name: int(words[at]) for name, at in where.header.items()}
        need(field["version"] == isa.VERSION, f"version {field['version']}, expected {isa.VERSION}")
        need(field["words"] == size, f"the header says {field['words']} words; there are {size}")
        self.replicas, self.workers = field["replicas"], field["workers"]
        self.grid = self.replicas * self.workers
        need(self.replicas > 0 and self.workers > 0, f"{self.replicas} replicas of {self.workers} workers")
        self.runs = field[isa.RUNS]
        need(
            self.runs in (1, self.workers), f"{self.runs} runs of a record; there are {self.workers} workers"
        )
        self.sharers = field.get(isa.SHARERS, self.grid)
        need(0 < self.sharers <= self.grid, f"{self.sharers} of {self.grid} workers share tiles of gradients")
        self.awaited = {
            sums: field.get(isa.AWAITED_SUMS if sums else isa.AWAITED, 0) for sums in (False, True)
        }
        self.awaited_from = field.get(isa.AWAITED_FROM, 0)
        for name in ("bases", "lists", "queues"):
            right = int(getattr(where, f"{name}_at"))
            need(field[name] == right, f"the table of {name} is said to be at {field[name]}, not {right}")
        need(where.queues_at + self.grid <= size, f"the queue table of {self.grid} workers does not fit")
        count = len(self.schedule.samples)
        need(field["samples"] == count, f"the header says {field['samples']} samples; there are {count}")
        sync, length = field["sync"], (isa.SYNC_REPLICAS + self.replicas) * isa.SYNC_STRIDE
        self.body = where.queues_at + self.grid
        inside = self.body <= sync <= size - length and sync % isa.SYNC_STRIDE == 0
        need(inside, f"the words for synchronisation at {sync} are outside the schedule or not aligned")
        need(not words[sync : sync + length].any(), "the words for synchronisation are not zero")
        results = self.schedule.address + (sync - isa.RESULT_WORDS) // 4
        need(self.bases[isa.RESULTS] == results, "the results do not lie before the counters")
        rates = words[: len(where.header)].view(np.float32)
        scale = float(rates[where.header["loss_scale"]])
        need(0 < scale <= 1, f"the loss scale {scale:g} is not in (0, 1]")
        for name, at in where.bases.items():
            found, right = int(words[where.bases_at + at]), self.bases.get(name, 0)
            need(found == right, f"the base of '{name}' is {found}, expected {right}")

    def list_at(self, name: str) -> int:
        """Offset of a list's words; 0 if the schedule has none."""
        return int(self.words[self.layout.lists_at + self.layout.lists[name]])

    def part(self, at: int, count: int, name: str) -> Ints:
        """Words of a list as wide integers; they must lie behind the tables."""
        inside = self.body <= at and at + count <= len(self.words)
        need(inside, f"list '{name}' at {at} with {count} words is outside the schedule")
        return self.words[at : at + count].astype(np.int64)
