"""The instructions of a tail as they are for every batch, with places for what depends on one.

In: instructions, fields of which are numbers or names of values. Out: the words of a group of batches, given
these values of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnc.ir import isa
from dnc.ir.forest import Ints
from dnc.runtime.encoder.words import Numbers

# A field of an instruction: a number, or the name of a value that depends on the batch.
Field = int | str


class Template:
    """The instructions of a tail. words: [count, INSTRUCTION_WORDS], zeros where a batch fills them in.

    places: of each value by name, (instruction, field). sums: the instructions of weight gradients, a
    run of rows each. norm: those that `outer` instructions do without, with an exchange behind which is
    `last`. tokens: those that add up deltas before products, and an exchange. exchanges: all of them.
    """

    def __init__(
        self,
        instructions: list[list[Field]],
        sums: list[int],
        norm: list[int],
        tokens: list[int],
        exchanges: list[int],
    ) -> None:
        self.words = np.zeros((len(instructions), isa.INSTRUCTION_WORDS), np.int32)
        self.places: list[tuple[str, int, int]] = []
        self.sums, self.norm = np.array(sums, np.intp), np.array(norm, np.intp)
        self.tokens, self._exchanges = np.array(tokens, np.intp), np.array(exchanges, np.intp)
        for at, instruction in enumerate(instructions):
            for field, value in enumerate(instruction):
                if isinstance(value, str):
                    self.places.append((value, at, field))
                else:
                    self.words[at, field] = value

    def behind(self, left_out: Numbers) -> Numbers:
        """The exchanges behind instructions, one of them an exchange."""
        found: Numbers = self._exchanges[self._exchanges > left_out.max()]
        return found

    def filled(self, batches: int, values: Mapping[str, int | Numbers]) -> Ints:
        """The words of every batch, with values [batches]."""
        words = np.empty((batches, *self.words.shape), np.int32)
        words[:] = self.words
        for name, at, field in self.places:
            words[:, at, field] = values[name]
        return words
