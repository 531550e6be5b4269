"""Cells: the arithmetic of a segment, emitted from the op table for every target.

In: a segment, addresses (`Access`), the target's scalar functions. Out: TIRx statements. A UNIT
segment is evaluated for one (row, unit) by `UnitCell`, a VERTEX segment for one row by `VertexCell`.
Guaranteed: element-wise operations come from the op table's `scalar`; any other has one lowering for
all targets (`lowerings`).
"""

from dnc.codegen.cells.unit_cell import Started, UnitCell, placed
from dnc.codegen.cells.values import Element, Four, StoreFour, four_of
from dnc.codegen.cells.vertex_cell import ANY_SIZE, VectorTarget, VertexCell, scratch_floats

__all__ = [
    "ANY_SIZE",
    "Element",
    "Four",
    "Started",
    "StoreFour",
    "UnitCell",
    "VectorTarget",
    "VertexCell",
    "four_of",
    "placed",
    "scratch_floats",
]
