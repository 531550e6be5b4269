"""Fuse: cuts every stage into segments, exactly where distributions disagree.

In: a program; one with running parameters behind `differentiate` or `drop-training`, else ValueError. Out:
a `Plan` with segments, buffers and lists. Element-wise chains join the epilogue of the product that feeds
them; products that share their operand stand in one segment; a value is exchanged through a buffer only where
it crosses segments (`distribute` says where that is, `cut` makes the segments). Without `fuse` every
operation is a segment of its own: the same values, slower.
"""

from __future__ import annotations

import attrs

from dnc.ir.plan import BufferAddress, DenseGradient, Piece, Plan, Result, Segment
from dnc.ir.program import TABLE, FollowOutput, Program
from dnc.ir.remarks import Remarks
from dnc.passes.bind import Binder
from dnc.passes.cut import Cutter, shifted
from dnc.passes.distribute import FuseOptions


class Fuse(FuseOptions):
    """The pass."""

    def __call__(self, program: Program) -> Plan:
        """The plan of `program`: segments, buffers and lists only."""
        return self.decide(program, Remarks())

    def decide(self, program: Program, remarks: Remarks) -> Plan:
        """The same; where a stage is cut, and what is computed vertex by vertex, is remarked upon."""
        if any(isinstance(output, FollowOutput) for stage in program.stages for output in stage.outputs):
            raise ValueError(
                "running parameters move: 'differentiate' or 'drop-training' has to stand before it"
            )
        remarks.decided_by = "fuse"
        binder = Binder(program)
        segments: list[Segment] = []
        results: list[Result] = []
        for stage in program.stages:
            cutter = Cutter(binder, stage, self)
            segments.extend(cutter.cut())
            if self.enabled:
                cutter.found.remark(stage, remarks)
            results.extend(cutter.results)
        binder.finish()
        segments = [_completed(binder, segment) for segment in segments]
        gradients = _dense_gradients(program, binder)  # may read through lists that no segment has
        return Plan(
            program=program,
            target="",
            buffers=tuple(binder.buffers.values()),
            lists=tuple(binder.lists.values()),
            segments=tuple(segments),
            dense_gradients=gradients,
            table_gradients=binder.table_gradients(),
            results=tuple(results),
        )


def _completed(binder: Binder, segment: Segment) -> Segment:
    loads = tuple(attrs.evolve(load, address=binder.completed(load.address)) for load in segment.loads)
    return attrs.evolve(segment, loads=loads)


def _dense_gradients(program: Program, binder: Binder) -> tuple[DenseGradient, ...]:
    found = []
    for index, gradient in enumerate(program.weight_gradients):
        parameter = program.parameter(gradient.parameter)
        if parameter.kind == TABLE:
            continue
        pieces = tuple(
            Piece(shifted(binder.completed(binder.input_address(gradient.space, bound)), begin), end - begin)
            for bound, begin, end in gradient.x
        )
        found.append(
            DenseGradient(
                f"gradient {gradient.parameter} #{index}",
                gradient.parameter,
                gradient.space,
                BufferAddress(f"{gradient.stage}:{gradient.delta}"),
                parameter.type.shape[0] if pieces else parameter.type.size,
                pieces,
                gradient.field,
            )
        )
    return tuple(found)
