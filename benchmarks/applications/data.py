"""The data that points are measured on: trees from a file, everything else made up.

In: the name of data, a loaded model. Out: samples as decoded JSON, which the model has attached and from
which it has its vocabulary. Guaranteed: the same names give the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.applications.points import SST
from benchmarks.model_data import Sizes, numbered, samples
from dnc.api import Model
from dnc.api.bench import read_structures

Sample = dict[str, Any]

MADE: dict[str, tuple[str, int, Sizes]] = {
    "pyramids": ("td_rnn", 1024, Sizes()),
    "tagged sentences": ("bilstm_tagger", 2048, Sizes()),
    "spelled sentences": ("char_tagger", 2048, Sizes()),
    "sentences with entities": ("crf_tagger", 2048, Sizes()),
    "complete trees of 256 leaves": ("tree_fc", 256, Sizes(complete=(8, 8))),
    "texts of 64 words": ("language_model", 1024, Sizes()),
    "sentences of 100 words": ("lstm_classifier", 512, Sizes(words=(100, 100))),
    "trees of 1,000 leaves": ("treelstm", 64, Sizes(leaves=(1000, 1000))),
}
"""By name whose data they are like (`benchmarks/model_data.py`), how many, and how large."""


class DataSets:
    """Reads and makes each data set once."""

    def __init__(self, trees: Path | None) -> None:
        self.path = trees
        self._trees: list[Sample] = []

    def attach(self, model: Model, name: str, most: int | None = None) -> list[Sample]:
        """Samples of the model's data set, at most `most`."""
        found = self.samples(model, name)[:most]
        model.attach(found)
        return found

    def samples(self, model: Model, name: str) -> list[Sample]:
        """The samples of a data set for a model."""
        if name != SST:
            example, count, sizes = MADE[name]
            return samples(example, model.program, count, sizes)
        if not self._trees:
            if self.path is None:
                raise SystemExit("these parts train on trees: name them with --trees FILE.jsonl")
            self._trees = read_structures(self.path)
        return self._trees


def for_peers(model: Model, found: Sequence[Sample]) -> Any:
    """The same samples with numbers in place of words and labels."""
    return numbered(model.program, model.vocabularies, list(found))
