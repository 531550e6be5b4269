"""`Model.stream()`: lists that come in chunks, through the Python interface.

In: chunks as samples, one at a time or one for each of several streams; pulled vectors by stream. Out:
outputs of the chunks' own elements. Guaranteed: see `dnc.runtime.streams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dnc.api.arguments import check_whole, noise_of
from dnc.api.turns import in_turn
from dnc.api.words import ending_of
from dnc.diagnostics import fail
from dnc.runtime.carried import Carried
from dnc.runtime.data import Dataset
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.outside import Arrays, hand_in, pulled_fields
from dnc.runtime.streams import Sample, Stream, StreamState

if TYPE_CHECKING:
    from dnc.api.model import Model


class ModelStream:
    """Streams of one model. The first `feed` decides how many there are, until `reset`."""

    def __init__(self, model: Model, carried: Carried) -> None:
        self.model, self.carried, self.turn = model, carried, model.turn

        def read(samples: list[Sample]) -> Dataset:
            _ = model.session  # a chunk is too little to make a vocabulary of: refused in words
            return model.read(samples, labels_required=False)

        self._stream = Stream(lambda: model.session, carried, model.program, read)

    @in_turn
    def feed(
        self,
        chunk: Sample | Sequence[Sample],
        pulled: Arrays | None = None,
        ending: Ending | None = None,
        times: int = 1,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """The outputs of the elements that follow.

        chunk: a sample, whose list holds the next elements; then an output is a value. Or a list of
        samples, one a stream; then an output is a list of values. pulled: as in `Model.forward`, for the
        chunks' own vertices. ending, times: as in `dnc.runtime.streams`. seed: what `sample` draws follows
        from it, and the vertices' places in this call alone, so that every call of a stream wants another
        one; None chooses the largest. DiagnosticError for what does not fit; the streams then stand where
        they stood.
        """
        if not isinstance(ending, Ending | None):
            raise fail(f"ending: found {type(ending).__name__}, expected an Ending")
        if ending is not None:
            ending = ending_of(self.model, self.carried, ending.output, ending.word)
        check_whole("times", times, 1)
        noise = noise_of(seed)
        single = isinstance(chunk, Mapping)
        if not single and (isinstance(chunk, str | bytes) or not isinstance(chunk, Sequence)):
            raise fail(f"found {type(chunk).__name__}, expected a chunk, or a list with one for each stream")
        samples: Any = [chunk] if single else chunk

        def fill(dataset: Dataset) -> None:
            numbers = np.arange(dataset.samples, dtype=np.int32)
            places = pulled_fields(self.model.program)
            hand_in(dataset, numbers, places, pulled, "pulled vector")

        outputs = self._stream.feed(samples, fill, ending, times, noise)
        return {name: values[0] for name, values in outputs.items()} if single else dict(outputs)

    def reset(self) -> None:
        """Begins anew, with as many streams as the next `feed` has chunks."""
        self._stream.reset()

    @property
    def state(self) -> StreamState | None:
        """Where the streams stand; None at the beginning. It may be kept, and set again.

        DiagnosticError for what is no state of such streams.
        """
        return self._stream.state

    @state.setter
    def state(self, state: StreamState | None) -> None:
        self._stream.state = state
