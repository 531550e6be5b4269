"""How a model came to its weights: what `run.toml` says of the beginning of a run.

In: what was done with a model, call by call. Out: the options of `dnc run` that do the same, or in words why
there are none. Guaranteed: what these options leave out has a reason; a checkpoint that was saved since is
as good a beginning as any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import attrs
import msgspec

from dnc.api.reading import Words
from dnc.diagnostics import DiagnosticError
from dnc.ir.program import Program
from dnc.runtime.checkpoint import checkpoint_place, stored_vocabularies
from dnc.runtime.data import Dataset, Vocabulary, dimension_names, vocabulary_dimensions
from dnc.runtime.run_config import RunConfig
from dnc.runtime.tensors import read_metadata

NOTHING = RunConfig()
ELSEWHERE = ""  # where words come from that no data have given


@attrs.frozen
class Origin:
    """Where a model began. step: the updates made by then; those behind it are of a run, or of no file.

    config: options of `dnc run` with which a model is the same. words: the digest of the data that gave the
    vocabulary, None where a file has it. why: what a run that begins so has done that no option does, ""
    for nothing. saved: the newest checkpoint of the model, and its step.
    """

    config: RunConfig = NOTHING
    words: str | None = None
    step: int = 0
    why: str = ""
    saved: tuple[str, int] | None = None

    @staticmethod
    def of_words(words: str | None, min_count: int = 1, beside: Words | None = None) -> Origin:
        """First weights by the seed, for words of data, and those of files, or lists, beside them."""
        files = {name: os.path.abspath(given) for name, given in (beside or {}).items() if _is_path(given)}
        count = min_count if min_count > 1 else None
        found = Origin(RunConfig(min_count=count, vocabulary=files or None), words)
        if len(files) < len(beside or {}):
            return found.but("began with words that were listed in Python")
        return found

    @staticmethod
    def of_data(data: Dataset, beside: Words | None = None) -> Origin:
        """The same for a data set."""
        if not data.vocabularies:
            return Origin()
        if data.min_count is None:
            return Origin(words=ELSEWHERE)
        return Origin.of_words(data.digest(), data.min_count, beside)

    @staticmethod
    def of_checkpoint(path: str | Path, step: int) -> Origin:
        """All of a checkpoint."""
        return Origin(RunConfig(checkpoint=os.path.abspath(path)), None, step)

    def at(self, step: int) -> Origin:
        """Where a model is now, behind so many updates: the checkpoint that it was saved as, if it was."""
        if self.saved is None or self.saved[1] != step or (self.step == step and not self.why):
            return self
        return attrs.evolve(self.of_checkpoint(*self.saved), saved=self.saved)

    def but(self, why: str) -> Origin:
        """The same, and something that no option does."""
        return attrs.evolve(self, why=self.why or why, saved=None)

    def with_weights(
        self,
        path: str | Path,
        names: tuple[str, ...],
        program: Program,
        vocabularies: Mapping[str, Vocabulary],
    ) -> Origin:
        """The same, then parameters of a file by name."""
        config = msgspec.structs.replace(self.config, weights=os.path.abspath(path))
        if self.config.embeddings or self.config.weights not in (None, config.weights):
            return self.but("began with weights of several files, one over the other")
        words = self.words
        if config.checkpoint is None:
            stored = stored_vocabularies(read_metadata(path), path) or {}
            rows = dimension_names(program, names)
            for name in vocabulary_dimensions(program):
                known = vocabularies.get(name)
                if name in stored and stored[name] != known:
                    return self.but("began with weights of a checkpoint that has other words")
                if name not in stored and known is not None and known.words is not None and name in rows:
                    return self.but("began with weights of a file that does not say whose rows they are")
            if vocabulary_dimensions(program).keys() <= stored.keys():
                words = None
        return attrs.evolve(self, config=config, words=words, saved=None)

    def with_embeddings(self, table: str, path: str | Path) -> Origin:
        """The same, then rows of a table from a text file."""
        place, known = os.path.abspath(path), self.config.embeddings or {}
        if self.config.checkpoint is not None:
            return self.but("began with vectors of words over those of a checkpoint")
        if known.get(table, place) != place:
            return self.but("began with vectors of words of several files, one over the other")
        config = msgspec.structs.replace(self.config, embeddings={**known, table: place})
        return attrs.evolve(self, config=config, saved=None)

    def beginning(self, step: int, model: str, data: str) -> tuple[RunConfig, str]:
        """The options with which a run begins as the model is now, and why they do not do it, "" if they do.

        step: the updates made. model: the digest of the build. data: that of the training data.
        """
        own = self._problem(step, model, data)
        if own and self.saved is not None:
            saved = self.of_checkpoint(*self.saved)
            if not saved._problem(step, model, data):
                return saved.config, ""
        return self.config, own

    def _problem(self, step: int, model: str, data: str) -> str:
        if self.why:
            return self.why
        if self.step != step:
            return "began behind steps that no checkpoint has"
        if self.words not in (None, data):
            return "began with the words of other data"
        if self.config.checkpoint is not None and not _is_there(self.config.checkpoint, model, step):
            return "began with a checkpoint that is gone"
        return ""

    def is_checkpoint(self, step: int) -> bool:
        """Whether a model is what a checkpoint of that step holds, and nothing else."""
        here = self.at(step)
        changed = here.config.weights is not None or here.config.embeddings is not None
        return not here.why and here.step == step and here.config.checkpoint is not None and not changed


def _is_path(given: object) -> TypeGuard[str | Path]:
    return isinstance(given, str | Path)


def _is_there(checkpoint: str, model: str, step: int) -> bool:
    """Whether a checkpoint is, by what it says, what it was."""
    try:
        return checkpoint_place(checkpoint) == (model, step)
    except DiagnosticError:
        return False
