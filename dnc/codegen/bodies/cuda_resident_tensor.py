"""Products with weights in registers on CUDA's tensor cores.

In: a block of vertices, and the registers of a slice. Out: as in `cuda_resident.py`. A product of a warp's
blocks of 16 x 8 words of weights with 8 vertices takes two bands and half a strip, or a whole one of two
numbers a word: the registers lie as it wants them.
"""

from __future__ import annotations

from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_resident import BAND, Block, Resident
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, words
from dnc.codegen.emit import either, lane4, let, local


def forward_tensor(block: Block, most: int) -> None:
    """The sums of a warp for the vertices of a block: `most` times 8 at most."""
    by_eight = partial(_sums, block, 1)
    if most == 1:
        by_eight()
    else:
        either(block.count <= ACROSS, by_eight, partial(_sums, block, most))


def _sums(block: Block, across: int) -> None:
    held = block.slice
    together = cores_of(held.worker.plan).bands
    for begin in range(0, held.bands, together):
        _sums_of(block, range(begin, min(begin + together, held.bands)), across)


def _sums_of(block: Block, bands: range, across: int) -> None:
    """Sums of some bands, two at a time, for `across` times 8 vertices."""
    held = block.slice
    cores, pairs = cores_of(held.worker.plan), range(0, len(bands), 2)
    sums = local("sums", "float32", T.float32(0.0), len(pairs) * across * 4)
    for strip in range(held.strips):
        operands = []
        for number in range(across):
            x = block.operand(number * ACROSS + held.group, strip)
            operands.append(words(cores, [lane4(x, i) for i in range(4)]))
        for begin in range(0, held.words, 2):
            for pair in pairs:
                weights = [
                    _weight(held, bands.start + pair + high, strip, begin + right, bands.stop)
                    for right in range(2)
                    for high in range(2)
                ]
                for number in range(across):
                    first = (pair // 2 * across + number) * 4
                    into = [sums[first + i] for i in range(4)]
                    cores.multiply(into, weights, operands[number][begin : begin + 2])
    for pair in pairs:
        for high in range(min(2, len(bands) - pair)):
            row = let("row", (bands.start + pair + high) * BAND + held.group)
            for number in range(across):
                for i in range(2):
                    vertex = number * ACROSS + 2 * held.own + i
                    block.leave(row, vertex, sums[(pair // 2 * across + number) * 4 + 2 * high + i])


def _weight(held: Resident, band: int, strip: int, i: int, end: int) -> Terms:
    """What tensor cores read of a register; zero behind the last band."""
    cores = cores_of(held.worker.plan)
    return cores.nothing() if band >= end else cores.held(held.word(band, strip, i))
