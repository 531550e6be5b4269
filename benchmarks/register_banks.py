"""Cycles that loops of multiplications lose to banks of registers, from machine code alone.

    python -m benchmarks.register_banks BUILD [--least 100]

In: a build for a GPU; `nvdisasm` of a CUDA toolkit on the path. Out: of every block of machine code with at
least so many FFMAs where it begins, its instructions, its FFMAs, and the cycles a warp loses in it.

A multiplication reads three registers. Even ones are in one bank, odd ones in another, and each gives one
a cycle; a register that the instruction before has marked for reuse at the same place is not read. `WAITING`
reads of a bank may be late before an instruction waits. What `ncu` counts as dispatch stalls on an H200
stands beside what this predicts in docs/performance-log.md, "Banks of registers".
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

WAITING = 1
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
LABEL = re.compile(r"^\s*\.L_")
MULTIPLICATION = re.compile(r"FFMA R\d+, R(\d+)(\.reuse)?, R(\d+)(\.reuse)?, R(\d+)(\.reuse)?")


@attrs.frozen
class Block:
    """Instructions that run one after another; begin: the number of the first one."""

    begin: int
    code: tuple[str, ...]

    @property
    def multiplications(self) -> int:
        """How many."""
        return sum(MULTIPLICATION.search(line) is not None for line in self.code)


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of what `nvdisasm -c` writes: they end at branches and in front of labels."""
    code, begin = list[str](), 0
    for line in text.splitlines():
        found = INSTRUCTION.match(line)
        if found:
            code.append(found[1])
        if code and (LABEL.match(line) or (found and re.search(r"\bBRA\b", code[-1]))):
            yield Block(begin, tuple(code))
            begin, code = begin + len(code), []
    if code:
        yield Block(begin, tuple(code))


def reads_of(line: str, kept: dict[int, int]) -> tuple[list[int], dict[int, int]]:
    """Registers that a multiplication reads of either bank, and those that are kept behind it, by place.

    kept: those that were kept before. Other instructions keep none.
    """
    found, reads = MULTIPLICATION.search(line), [0, 0]
    if not found:
        return reads, {}
    places = [(int(found[1]), found[2]), (int(found[3]), found[4]), (int(found[5]), found[6])]
    for place, (register, _) in enumerate(places):
        reads[register % 2] += kept.get(place) != register
    return reads, {place: register for place, (register, reused) in enumerate(places) if reused}


def lost(code: Sequence[str]) -> int:
    """Cycles that a warp loses in a block that it repeats."""
    late, cycles = [0, 0], 0
    for _ in range(2):  # the first time nothing is late from before
        kept, cycles = dict[int, int](), 0
        for line in code:
            reads, kept = reads_of(line, kept)
            while any(late) and max(a + b for a, b in zip(late, reads, strict=True)) > 1 + WAITING:
                late, cycles = [max(0, each - 1) for each in late], cycles + 1
            late = [max(0, a + b - 1) for a, b in zip(late, reads, strict=True)]
    return cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--least", type=int, default=100)
    options = parser.parse_args()
    if shutil.which("nvdisasm") is None:
        raise SystemExit("nvdisasm is not on the path; it comes with a CUDA toolkit")
    for cubin in sorted(options.build.glob("*/*.cubin")):
        done = subprocess.run(["nvdisasm", "-c", cubin], capture_output=True, text=True, check=True)
        print(f"{cubin}\n{'begins':>8}{'instructions':>14}{'FFMA':>6}{'lost':>6}")
        for block in blocks_of(done.stdout):
            if block.multiplications >= options.least:
                print(f"{block.begin:8}{len(block.code):14}{block.multiplications:6}{lost(block.code):6}")


if __name__ == "__main__":
    main()
