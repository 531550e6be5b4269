"""Every lowering of a vertex cell: of the operations that the op table gives no `scalar`.

An operation has one lowering, which serves all targets.
"""

from __future__ import annotations

from dnc.codegen.cells.attention import ATTENTION
from dnc.codegen.cells.each import EACH
from dnc.codegen.cells.matrices import MATRICES
from dnc.codegen.cells.parts import PARTS
from dnc.codegen.cells.products import PRODUCTS
from dnc.codegen.cells.reductions import REDUCTIONS
from dnc.codegen.cells.values import Lowerings

ALWAYS_KEPT = frozenset({"matmul", "concat", "row_max", "row_logsumexp", "row_argmax"})
"""What has a lowering that writes scratch memory itself."""

LOWERINGS: Lowerings = {**PRODUCTS, **MATRICES, **REDUCTIONS, **PARTS, **ATTENTION, **EACH}
