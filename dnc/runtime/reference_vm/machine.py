"""The VM itself: queues, barriers, and the dispatch of instructions.

In: a schedule and the words of a pool. Out: the pool after the launch. Workers are interleaved at
random, one instruction at a time. Guaranteed: what no real machine may do is a `MachineError` that
names worker, instruction and place.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier, BrokenBarrierError

import numpy as np

from dnc.ir import isa
from dnc.ir.early import made_early
from dnc.ir.plan import UNIT, Plan, Segment
from dnc.ir.repeated import repeated_parts
from dnc.runtime.reference_vm.gradients import (
    all_reduce,
    dense_gradient,
    follow,
    outer,
    square_norm,
    table_gradient,
    token_sums,
    update,
)
from dnc.runtime.reference_vm.memory import Array, CheckedMemory, Finish, MachineError, Worker, stamp
from dnc.runtime.reference_vm.segments import Share, Whole, unit_segment, vertex_segment
from dnc.runtime.schedule import list_words, queue

DEVICE_SECONDS = 60.0  # that a device waits for the others
DID_NOT_COME = "another device did not come"
REDUCTION = "partial sums of others"  # what a worker waits for within an instruction


class ReferenceVM:
    """Executes schedules of one plan. `run` is the launch."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        self.layout = isa.layout(plan)
        self.random = np.random.default_rng(seed)
        self.segments = {segment.name: segment for segment in plan.segments}
        self.gradients = {gradient.name: gradient for gradient in plan.dense_gradients}
        self.tables = {table.parameter: table for table in plan.table_gradients}
        self.early = made_early(plan)
        self.sums = isa.sum_opcodes(plan)
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}
        self.reduced = {item.name for item in plan.lists if plan.is_reduced(item.name)}
        self.repeated = {
            segment.name: repeated_parts(segment) for segment in plan.segments if segment.repeated
        }
        self.shares = dict[tuple[int, int, int], Share]()
        self.wholes = dict[int, Whole]()
        self.memory = CheckedMemory(np.zeros(0, np.float32), 0, 1)
        self.now = 0
        # All devices, this one among them, and what they wait at for each other.
        self.devices: Sequence[ReferenceVM] = (self,)
        self.meeting = Barrier(1)

    # ---- scheduling -----------------------------------------------------------------------------

    @np.errstate(all="ignore")  # what is not finite is said by who reads the results, as of every device
    def run(self, words: Array, pool: Array, activations: int) -> None:
        """Executes a schedule on `pool` (float32, changed in place).

        `activations` is the first word behind the static part. MachineError on any violation.
        """
        plan = self.plan
        self.words = words
        self.floats = words.view(np.float32)
        bases = words[self.layout.bases_at :]
        self.bases = {name: int(bases[at]) * 4 for name, at in self.layout.bases.items()}
        self.lists = dict[str, int]()
        field = {name: int(words[at]) for name, at in self.layout.header.items()}
        self.replicas, self.per_replica = field["replicas"], field["workers"]
        self.runs = field[isa.RUNS]
        self.header = field
        total = self.replicas * self.per_replica
        self.zero_words = self.base(isa.PARAMETERS)
        # Stamps of now, and of the last barriers: of every replica, and of all workers.
        self.now = self.since_grid = self.now + stamp(1)
        if len(self.memory.words) != len(pool):
            self.memory = CheckedMemory(pool, activations, total)
        self.memory.begin(pool, activations, total, self.now)
        # When all devices met here last, and when somebody did something last.
        self.met = self.worked = 0
        self.since = [self.now] * self.replicas
        # Of every post by whom, and when; and who waits for one: for which, for how many.
        self.posts = dict[int, dict[int, int]]()
        self.expecting = dict[Worker, tuple[int, int]]()
        self.workers = [
            Worker(n, n // self.per_replica, n % self.per_replica, queue(words, plan, n))
            for n in range(total)
        ]
        ready = list(self.workers)
        while ready:
            at = int(self.random.integers(len(ready)))
            worker = ready[at]
            has_ended = self._advance(worker)
            if has_ended or worker.waiting is not None:
                ready[at] = ready[-1]
                ready.pop()
            if worker.waiting is not None:
                ready += self._released(worker)
            if self.expecting:
                ready += self._told()
        stuck = [worker for worker in self.workers if worker.waiting is not None]
        if stuck:
            names = ", ".join(f"{worker.number}: {worker.waiting}" for worker in stuck)
            raise MachineError(f"deadlock: every worker waits ({names})")

    def _advance(self, worker: Worker) -> bool:
        """Executes one instruction; True when the worker has ended."""
        if worker.counter >= len(worker.instructions):
            raise self.error(worker, "ran past the end of its queue")
        instruction = worker.instructions[worker.counter].tolist()
        if not 0 <= instruction[0] < len(self.plan.opcodes):
            raise self.error(worker, f"unknown opcode {instruction[0]}")
        opcode = self.plan.opcodes[instruction[0]]
        if opcode.name == isa.END:
            return True
        if opcode.name in (isa.REPLICA_BARRIER, isa.GRID_BARRIER):
            worker.waiting = opcode.name
            return False
        fields = dict(zip(opcode.fields, instruction[1:], strict=False))
        if opcode.name == isa.LEAVE and self._ended(fields, worker):
            worker.counter = fields["to"]
            return False
        if opcode.name == isa.EARLY:
            worker.first, worker.waiting = fields["first"], isa.EARLY
            self.expecting[worker] = fields["number"], fields["posts"]
            return False
        worker.finish = self._execute(opcode.name, fields, worker)
        if worker.finish is None:
            worker.counter += 1
        else:
            worker.waiting = REDUCTION
        return False

    def _ended(self, fields: dict[str, int], worker: Worker) -> bool:
        """Whether every list of a `leave` has the word that ends it."""
        for number in range(fields["lists"]):
            begin, end = (self.word(fields[name] + number, worker) for name in ("begins", "ends"))
            at = [self.word(entry, worker) * 4 for entry in range(begin, end)]
            if fields["word"] not in self.read(np.array(at, np.int64), worker):
                return False
        return True

    def _released(self, worker: Worker) -> list[Worker]:
        """Those that need not wait any longer, as this one has come."""
        own = worker.waiting
        if own == isa.EARLY:
            return []
        first = worker.replica * self.per_replica
        mine = self.workers if own == isa.GRID_BARRIER else self.workers[first : first + self.per_replica]
        if any(each.waiting != own for each in mine):
            return []
        if own == REDUCTION:
            self._add_up(mine)
            return mine
        self._pass(mine)
        self.now += stamp(1)
        if own == isa.GRID_BARRIER:
            self.since_grid = self.now
            self.since = [self.now] * self.replicas
        else:
            self.since[worker.replica] = self.now
        return mine

    def _post(self, number: int, worker: Worker) -> None:
        """What this worker did up to now is in order with those who wait for it."""
        self.now += stamp(1)
        self.posts.setdefault(number, {})[worker.number] = self.now

    def _told(self) -> list[Worker]:
        """Those for whom there are as many posts as they wait for."""
        found = []
        for worker, (number, count) in self.expecting.items():
            posts = self.posts.get(number, {})
            if len(posts) >= count:
                worker.knows |= posts
                found.append(worker)
        for worker in found:
            del self.expecting[worker]
        self._pass(found)
        return found

    def settled(self, worker: Worker) -> int:
        """What came before this is in order with a worker, whoever it was."""
        is_alone = self.replicas == len(self.devices) == 1
        return self.since[worker.replica] if is_alone else self.since_grid

    def _meet(self, worker: Worker) -> None:
        """Waits for the other devices, which run in threads of their own."""
        if self.worked >= self.since_grid:
            raise self.error(worker, "no barrier of the grid stands in front of one of all devices")
        try:
            self.meeting.wait(DEVICE_SECONDS)
        except BrokenBarrierError:
            raise self.error(worker, DID_NOT_COME) from None
        self.met = self.now

    def _add_up(self, workers: list[Worker]) -> None:
        """All workers of a replica have what the others sent; each adds up its share. It is no barrier."""
        places = {worker.counter for worker in workers}
        if len(places) > 1:
            raise self.error(workers[0], f"partial sums of instructions {sorted(places)} meet")
        for worker in workers:
            assert worker.finish is not None
            worker.finish([each.sent for each in workers])
        for worker in workers:
            worker.sent = {}
        self._pass(workers)

    def _pass(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.waiting = None
            worker.counter += 1

    def error(self, worker: Worker, what: str) -> MachineError:
        """An error with its place."""
        name = "?"
        if worker.counter < len(worker.instructions):
            number = int(worker.instructions[worker.counter][0])
            if 0 <= number < len(self.plan.opcodes):
                name = self.plan.opcodes[number].name
        return MachineError(f"worker {worker.number}, instruction {worker.counter} ({name}): {what}")

    # ---- instructions ---------------------------------------------------------------------------

    def share(self, segment: Segment, begin: int, end: int) -> Share:
        """Some units of a segment, the same for all instructions."""
        key = id(segment), begin, end
        if key not in self.shares:
            self.shares[key] = Share(self, segment, begin, end)
        return self.shares[key]

    def whole(self, segment: Segment) -> Whole:
        """A segment whose rows are made in whole, the same for all instructions."""
        if id(segment) not in self.wholes:
            self.wholes[id(segment)] = Whole(self, segment)
        return self.wholes[id(segment)]

    def _execute(self, name: str, fields: dict[str, int], worker: Worker) -> Finish | None:
        """Executes an instruction; the answer, if any, ends it when all workers of the replica have come."""
        if name not in (isa.NOP, isa.LEAVE, isa.DEVICE_BARRIER):
            if self.since_grid <= self.met:
                raise self.error(worker, "no barrier of the grid stands behind one of all devices")
            self.worked = self.now
        if name in self.segments:
            segment = self.segments[name]
            if segment.mapping == UNIT:
                return unit_segment(self, segment, fields["row"], fields["rows"], worker)
            else:
                vertex_segment(self, segment, fields["row"], fields["rows"], worker)
        elif name in self.gradients:
            dense_gradient(self, self.gradients[name], fields, worker)
        elif name in self.sums:
            token_sums(self, self.sums[name], fields, worker)
        elif name.startswith("gradient "):
            table_gradient(self, name.removeprefix("gradient "), fields, worker)
        elif name == isa.POST:
            self._post(fields["number"], worker)
        elif name == isa.OUTER:
            outer(self, fields, worker)
        elif name == isa.NORM:
            square_norm(self, fields, worker)
        elif name == isa.REDUCE:
            if worker.number == self.replicas * self.per_replica - 1:
                at = fields["base"] * 4 + np.arange(fields["rows"]) * fields["stride"]
                total = self.read(at, worker).sum()
                self.write(np.array([self.base(isa.RESULTS) + fields["result"]]), total, worker)
        elif name == isa.FOLLOW:
            follow(self, fields, worker)
        elif name == isa.ALL_REDUCE:
            all_reduce(self, fields, worker)
        elif name == isa.DEVICE_BARRIER:
            if worker.number == 0:
                self._meet(worker)
        elif name not in (isa.NOP, isa.LEAVE):
            optimizer, _, table = name.partition(" ")
            update(self, optimizer, table, fields, worker)
        return None

    def base(self, name: str) -> int:
        """Word address of a base."""
        return self.bases[name]

    def runs_of(self, name: str) -> int:
        """Runs of the records of a buffer."""
        return self.plan.runs_in(self.buffers[name], self.runs, self.per_replica)

    def list(self, name: str) -> int:
        """Where a list of the schedule begins."""
        if name not in self.lists:
            self.lists[name] = list_words(self.words, self.layout, name)
        return self.lists[name]

    def word(self, at: int, worker: Worker) -> int:
        """A word of the schedule."""
        if not 0 <= at < len(self.words):
            raise self.error(worker, f"list entry {at} outside the schedule")
        return int(self.words[at])

    def read(self, at: Array, worker: Worker) -> Array:
        """Words of the pool, in float64."""
        return self.memory.read(at, self, worker)

    def write(self, at: Array, values: Array | float, worker: Worker) -> None:
        """Changes words of the pool."""
        self.memory.write(at, np.asarray(values), self, worker)

    def header_float(self, name: str) -> float:
        """A number of the schedule's header."""
        return float(self.floats[self.layout.header[name]])
