"""Levels on CUDA: a segment of the recursion that goes on from level to level without the interpreter.

In: a kernel at an instruction of a level. Out: statements that run it, and as long as the replica's barrier
and the same instruction follow, the next one: what that is the look ahead found (`bodies/cuda_ahead.py`).
Between two levels workers meet at the barrier, or wait for what others push (`bodies/cuda_push.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from tvm.tirx.script.builder import ir as T

from dnc.codegen import sync
from dnc.codegen.bodies import cuda_ahead, cuda_reduce, cuda_segments, cuda_vertices
from dnc.codegen.bodies.cuda_polls import Awaited, busy_warps, most_polled, polled_of
from dnc.codegen.bodies.cuda_push import Push
from dnc.codegen.bodies.cuda_worker import Worker
from dnc.codegen.emit import Expr, both, dispatch, either, local, put, when
from dnc.ir import isa
from dnc.ir.plan import UNIT, Segment, SlotsAddress

if TYPE_CHECKING:
    from dnc.codegen.cuda_kernel import Kernel


def run_levels(kernel: Kernel, level: dict[int, Segment]) -> None:
    """Runs an instruction of a level. If the replica's barrier follows, and behind it another one, these
    are neither fetched nor dispatched."""
    bodies = {number: partial(_same_levels, kernel, level, segment) for number, segment in level.items()}
    dispatch(kernel.opcode[0], bodies)


def run_segment(worker: Worker, segment: Segment, row: Expr, rows: Expr) -> None:
    """The body of a segment's instruction: twice, where it depends on whether runs of partial sums are added
    up in the cluster."""
    emit = cuda_segments.unit_segment if segment.mapping == UNIT else cuda_vertices.vertex_segment
    plan = worker.plan
    read = [load.address.partial for load in segment.loads if isinstance(load.address, SlotsAddress)]
    if any(map(plan.is_reduced, read)) or cuda_reduce.shares(plan, segment):
        worker.access.by_runs(lambda access: emit(attrs.evolve(worker, access=access), segment, row, rows))
    else:
        emit(worker, segment, row, rows)


def _same_levels(kernel: Kernel, level: dict[int, Segment], segment: Segment) -> None:
    """The same instruction, level after level."""
    kernel.hold()
    opcode, polled = kernel.plan.opcode(segment.name), polled_of(kernel.plan, segment)
    box = cuda_segments.level_mailbox(kernel.worker_of(segment), segment)
    ahead = attrs.evolve(kernel.worker.ahead, pushes=box is not None, polls=bool(polled))
    known = cuda_ahead.known_of(kernel.plan, ahead, kernel.window, kernel.entry[0], level)
    fields = [local("level", "int32", value) for value in (*kernel.values(opcode.fields), known)]
    if box is not None:
        T.evaluate(T.cuda.cta_sync())  # all threads have read the turn, before one looks ahead
    again = local("again", "int32", 1)
    with T.While(again[0] != 0):
        row, rows, known = (field[0] for field in fields)
        worker = _looking(kernel, segment, level, attrs.evolve(ahead, known=known))
        if box is not None:
            worker = attrs.evolve(worker, push=cuda_ahead.pushing(worker, segment, box, row, rows))
        if polled:
            most = cuda_segments.narrow_rows(worker, segment, most_polled(worker, segment))
            waiter = partial(kernel.waiter, worker.ahead.at)
            give_up = partial(kernel.give_up, worker.ahead.level)
            awaits = Awaited(worker, polled, most, waiter, give_up, busy_warps(worker, segment))
            worker = attrs.evolve(worker, awaits=awaits)
        run_segment(worker, segment, row, rows)
        following, values = worker.ahead.next()

        def pass_barrier(
            worker: Worker = worker, following: Expr = following, values: list[Expr] = values
        ) -> None:
            by_data = None
            if worker.awaits is not None:
                by_data = both(following == opcode.number, worker.awaits.by_data(values[1]))
            aborted = _pass_barrier(kernel, worker, values[-1], by_data)
            put(kernel.opcode, 0, following)
            if aborted is not None:
                with when(aborted != 0):  # what follows is fetched, and so skipped
                    put(kernel.opcode, 0, kernel.number(isa.NOP))
                    put(again, 0, 0)
            for field, value in zip(fields, values, strict=False):
                put(field, 0, value)

        put(again, 0, T.Select(following == opcode.number, 1, 0))
        either(following >= 0, pass_barrier, partial(_go_on, kernel, worker.push))
    put(kernel.entry, 0, kernel.place())


def _looking(kernel: Kernel, segment: Segment, level: dict[int, Segment], ahead: cuda_ahead.Ahead) -> Worker:
    """The worker for a segment of a level, which looks ahead."""

    def look(worker: Worker) -> None:
        cuda_ahead.look_ahead(worker, kernel.window, level)

    return attrs.evolve(kernel.worker_of(segment), ahead=attrs.evolve(ahead, look=look))


def _pass_barrier(kernel: Kernel, worker: Worker, pushed: Expr, by_data: Expr | None) -> Expr | None:
    """Waits at the replica's barrier, which follows; or for what others push, where the next level has rows
    of it. As `Kernel.meet`. by_data: whether the next level polls what it reads, and nobody waits here."""
    _skip_barrier(kernel)
    push, aborted = worker.push, None
    if by_data is not None:
        failed = local("failed", "int32", 0)

        def meet() -> None:
            kernel.note_given_up()
            put(failed, 0, T.bitwise_or(kernel.meet(kernel.at[0] - 1), kernel.aborted[0]))

        either(by_data, lambda: put(failed, 0, kernel.pass_by(worker.ahead.level)), meet)
        aborted = failed[0]
    elif push is None:
        aborted = kernel.meet(kernel.at[0] - 1)
    else:
        sync.wait_for_pushes(push.signal, push.phase)
        with when(pushed == 0):
            sync.cluster_barrier()
    kernel.stamp(0)
    kernel.stamp(1)
    return aborted


def _skip_barrier(kernel: Kernel) -> None:
    """The instruction behind the barrier that follows is at hand."""
    if kernel.stamps is None:
        kernel.advance(2)
        return
    kernel.advance(1)
    kernel.stamp(0)
    kernel.stamp(1)
    kernel.advance(1)


def _go_on(kernel: Kernel, push: Push | None) -> None:
    """Fetches the next instruction; nothing that others push is left behind."""
    kernel.advance(1)
    if push is not None:
        sync.wait_for_pushes(push.signal, push.phase)
    put(kernel.opcode, 0, kernel.fetch())
