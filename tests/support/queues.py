"""What the queues of a schedule hold, for tests of what an encoder decided."""

from __future__ import annotations

from dnc.ir import isa
from dnc.runtime.schedule import Schedule, header, queue


def fields_of(schedule: Schedule, replica: int, name: str) -> list[list[int]]:
    """The fields of an opcode's instructions in a replica's queue, in order; none if the plan lacks it."""
    plan = schedule.plan
    own = queue(schedule.words, plan, replica * header(schedule.words, plan)["workers"])
    numbers = [opcode.number for opcode in plan.opcodes if opcode.name == name]
    return [words[1:] for words in own.tolist() if words[0] in numbers]


def made_early(schedule: Schedule) -> list[bool]:
    """Of every replica whether it makes weight gradients early (`dnc/ir/early.py`)."""
    replicas = header(schedule.words, schedule.plan)["replicas"]
    return [bool(fields_of(schedule, replica, isa.EARLY)) for replica in range(replicas)]
