"""What a model is given as data: a path, samples, or a set that was read before.

In: data in one of these forms, and the model's vocabulary. Out: a `Dataset`. Guaranteed: a set that was read
with another vocabulary is refused; what the data have to look like is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dnc.api.arguments import Data
from dnc.diagnostics import fail
from dnc.ir.program import Program
from dnc.runtime.data import Dataset, Layout, Vocabulary, layout_of, read, read_samples


class Reader:
    """Reads for one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._layouts: dict[bool, Layout] = {}

    def read(
        self,
        data: Data,
        known: Mapping[str, Vocabulary] | None,
        labels_required: bool,
        min_count: int = 1,
    ) -> Dataset:
        """known: the model's vocabularies; None where the data have their own, of words met `min_count` times
        or more."""
        if isinstance(data, Dataset):
            if known is not None and data.vocabularies != known:
                raise fail(f"{data.path} was read with another vocabulary; read it with this model")
            return data
        if isinstance(data, str | Path):
            return read(data, self.program, known, labels_required=labels_required, min_count=min_count)
        if labels_required not in self._layouts:
            self._layouts[labels_required] = layout_of(self.program, labels_required)
        return read_samples(
            data,
            self.program,
            known,
            labels_required=labels_required,
            min_count=min_count,
            layout=self._layouts[labels_required],
        )
