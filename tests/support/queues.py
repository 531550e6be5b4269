"""What the queues of a schedule hold, for tests of what an encoder decided."""

from __future__ import annotations

import attrs
import numpy as np

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


def damaged(schedule: Schedule, replica: int, name: str, number: int, field: int, value: int) -> Schedule:
    """The same with another word in one of an opcode's instructions; field 0 is the opcode."""
    words, plan = schedule.words.copy(), schedule.plan
    worker = replica * header(words, plan)["workers"]
    begin = int(words[isa.layout(plan).queues_at + worker])
    at = np.flatnonzero(queue(words, plan, worker)[:, 0] == plan.opcode(name).number)[number]
    words[begin + int(at) * isa.INSTRUCTION_WORDS + field] = value
    return attrs.evolve(schedule, words=words)
