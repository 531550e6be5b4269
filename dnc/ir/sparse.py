"""Sparse matrices: which elements are kept, and how a GPU's worker finds them in its shared memory.

In: values of a parameter, elements that a row may have. Out: the same values without the smallest; or packed,
numbers with their columns. Guaranteed: it follows from the values alone; pruning twice is pruning once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dnc.ir.machine import LANES
from dnc.ir.program import Parameter

Floats = NDArray[np.float32]
PAIRS = 2 * LANES  # elements of a row that a warp reads at a time, two a lane
MOST_COLUMNS = 1 << 16  # a column is a number of 16 bits


def pruned(parameter: Parameter, values: Floats) -> Floats:
    """Values of a parameter; of a sparse one, [rows, columns], every row keeps its `kept` elements of largest
    magnitude (Han et al. 2015, here by rows, so that all take as much room); of equals the first ones."""
    rows = np.asarray(values, np.float32)
    if not parameter.is_sparse:
        return rows
    kept = parameter.kept
    if np.count_nonzero(rows, axis=1).max(initial=0) <= kept:
        return rows
    size = np.abs(rows)
    least = np.partition(size, -kept, axis=1)[:, -kept, None]
    above, equal = size > least, size == least
    room = kept - above.sum(axis=1, keepdims=True)
    return np.where(above | (equal & (equal.cumsum(axis=1) <= room)), rows, np.float32(0.0))


def keeping(parameter: Parameter) -> str:
    """What is kept of a sparse parameter, in words."""
    columns = parameter.type.shape[-1]
    return f"of each row of {parameter.name} the {parameter.kept} largest of {columns} elements are kept"


def pairs(kept: int) -> int:
    """Elements that a packed row has room for of which `kept` may be other than zero."""
    return -(-kept // PAIRS) * PAIRS


def packed_words(rows: int, kept: int) -> int:
    """Words of so many packed rows: numbers, and behind those of all rows their columns, two in a word."""
    return rows * pairs(kept) * 3 // 2


def pack(values: Floats, kept: int) -> Floats:
    """Words of a matrix [rows, columns] with at most `kept` elements a row that are not zero.

    A warp reads a row by PAIRS, a lane two neighbours, and gathers what they are multiplied with from the 32
    banks of shared memory, those of its first elements together, then those of the second ones. So elements
    are dealt out bank by bank to as many such reads as there are: few of a read are of one bank.
    """
    count, room = len(values), pairs(kept)
    row, column = np.nonzero(values)
    order = np.argsort(row * LANES + column % LANES, kind="stable")
    row, column = row[order], column[order]
    number = np.arange(len(row)) - np.searchsorted(row, np.arange(count))[row]
    reads = room // LANES
    read, lane = number % reads, number // reads
    at = read // 2 * PAIRS + lane * 2 + read % 2
    numbers, columns = np.zeros((count, room), np.float32), np.zeros((count, room), np.uint16)
    numbers[row, at], columns[row, at] = values[row, column], column
    return np.concatenate([numbers.ravel(), columns.ravel().view(np.float32)])
