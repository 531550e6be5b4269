"""The op table: every operation of cell IR, by name.

`OPS` is put together from one tuple of entries per file. Adding an operation is adding an entry.
"""

from __future__ import annotations

from dnc.ir.opdef import OpDef
from dnc.ir.ops import each, elementwise, lists, losses, matrices, products, vectors

OPS: dict[str, OpDef] = {
    entry.name: entry
    for module in (products, elementwise, vectors, matrices, losses, lists, each)
    for entry in module.ENTRIES
}
