"""Products with weights in registers on CUDA's tensor cores.

In: a block of vertices, and the registers of a slice. Out: as in `cuda_resident.py`. A product of a warp's
blocks of 16 x 8 words of weights with 8 vertices takes two bands and half a strip, or a whole one of two
numbers a word: the registers lie as it wants them, and so does what they have no room for.
"""

from __future__ import annotations

from functools import partial

from tvm.tirx.script.builder import ir as T

from dnc.codegen.bodies.cuda_resident import BAND, Block, Resident
from dnc.codegen.bodies.cuda_tensor import ACROSS, Terms, cores_of, words
from dnc.codegen.emit import Expr, either, lane4, let, local


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

    def multiply(pair: int, kept: list[list[Expr]], operands: list[list[Terms]], begin: int) -> None:
        weights = [
            cores.held(own[begin + right]) if own else cores.nothing() for right in range(2) for own in kept
        ]
        for number in range(across):
            first = (pair // 2 * across + number) * 4
            into = [sums[first + i] for i in range(4)]
            cores.multiply(into, weights, operands[number][begin : begin + 2])

    for strip in range(held.strips):
        operands = []
        for number in range(across):
            x = block.operand(number * ACROSS + held.group, strip)
            operands.append(words(cores, [lane4(x, i) for i in range(4)]))
        near, far = _near_first(held, bands, strip)
        for begin in range(0, held.words, 2):
            for pair in near:
                multiply(pair, _kept(held, bands, pair, strip), operands, begin)
        for pair in far:  # read once, and not needed for long
            kept = _kept(held, bands, pair, strip)
            for begin in range(0, held.words, 2):
                multiply(pair, kept, operands, begin)
    for pair in pairs:
        for high in range(min(2, len(bands) - pair)):
            row = let("row", (bands.start + pair + high) * BAND + held.group)
            for number in range(across):
                for i in range(2):
                    vertex = number * ACROSS + 2 * held.own + i
                    block.leave(row, vertex, sums[(pair // 2 * across + number) * 4 + 2 * high + i])


def _kept(held: Resident, bands: range, pair: int, strip: int) -> list[list[Expr]]:
    """The words of two bands in a strip; none behind the last band."""
    both = (bands.start + pair, bands.start + pair + 1)
    return [held.weights(band, strip) if band in bands else [] for band in both]


def _near_first(held: Resident, bands: range, strip: int) -> tuple[list[int], list[int]]:
    """Pairs of bands that registers hold in a strip, and the others."""
    pairs = range(0, len(bands), 2)
    near = [pair for pair in pairs if held.is_near(bands[min(pair + 1, len(bands) - 1)], strip)]
    return near, [pair for pair in pairs if pair not in near]
