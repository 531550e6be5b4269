"""Streams: a list that comes in chunks, each call going on from the states that the last one left.

In: a model's session and samples that hold the next elements of a list. Out: their outputs. Guaranteed:
what a chunk's elements give is what they give behind all elements so far, without computing those
again. The last elements are handed in once more as vertices on which nothing runs (`Forest.given`);
their states came back with the outputs and go out with the next schedule, in the same two copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import DiagnosticError, counted, fail
from dnc.ir.forest import Forest, Ints
from dnc.ir.noise import NONE
from dnc.ir.program import Program
from dnc.ir.states import state_layout
from dnc.ir.structure import LIST, VERTEX_KINDS
from dnc.runtime.carried import Carried
from dnc.runtime.data import Dataset
from dnc.runtime.data.reader import plain
from dnc.runtime.encoder.ending import Ending
from dnc.runtime.lengthen import lengthened
from dnc.runtime.predictor import Predictor
from dnc.runtime.session import Session

Sample = Mapping[str, Any]
Floats = NDArray[np.float32]
Outputs = dict[str, list[Any]]
# What reads the chunks of all streams, and hands in what is pulled.
Read = Callable[[list[Sample]], Dataset]
HandIn = Callable[[Dataset], None]


@attrs.frozen(eq=False)
class StreamState:
    """Where streams stand: by stream the last elements, and by function their states' records.

    elements: copies of what was in the data. states: float32[elements, words of a record] a stream.
    """

    elements: tuple[tuple[Any, ...], ...]
    states: tuple[Mapping[str, Floats], ...]


class Stream:
    """One or several streams of a model, which go on together; `state` may be kept and set again."""

    def __init__(
        self, session: Callable[[], Session], carried: Carried, program: Program, read: Read
    ) -> None:
        self._session, self._read, self.carried, self.program = session, read, carried, program
        self._words = {name: state_layout(program, name)[""] for name in carried.functions}
        self._predictor: Predictor | None = None
        self._state: StreamState | None = None

    @property
    def state(self) -> StreamState | None:
        """Where the streams stand; None at the beginning. DiagnosticError for what is no state of theirs."""
        return self._state

    @state.setter
    def state(self, state: StreamState | None) -> None:
        if not isinstance(state, StreamState | None):
            raise fail(f"found {type(state).__name__}, expected a state that a stream has had, or None")
        if state is not None and not self._has_had(state):
            raise fail("the state is of streams of another program, or along another list")
        self._state = state

    def _has_had(self, state: StreamState) -> bool:
        """Whether a state has the records that these streams carry."""
        if len(state.elements) != len(state.states):
            return False
        return all(
            {name: records.shape for name, records in states.items()}
            == {name: (len(elements), words) for name, words in self._words.items()}
            for elements, states in zip(state.elements, state.states, strict=True)
        )

    def reset(self) -> None:
        """Begins anew: what follows is the beginning of other lists."""
        self._state = None

    def feed(
        self,
        samples: Sequence[Sample],
        hand_in: HandIn = lambda dataset: None,
        ending: Ending | None = None,
        times: int = 1,
        noise: int = NONE,
    ) -> Outputs:
        """The outputs of the next chunks, one a stream: by name one entry a chunk, of its own elements.

        A chunk is a sample in nested form whose list holds the elements that follow, one or more; its
        other fields are those of this call. ending: its output alone, cut behind the last word; streams
        that have ended do not go on. times: how often the last element of every chunk stands there, which
        holds nothing then. noise: of classes that are drawn. DiagnosticError for anything else; then the
        streams stand where they stood.
        """
        field, state = self.carried.field, self._state or self._start(len(samples))
        if len(samples) != len(state.elements):
            given = counted(len(samples), "chunk")
            raise fail(f"found {given}, expected {len(state.elements)}, one a stream")
        chunks: list[Sample] = []
        for number, (sample, before) in enumerate(zip(samples, state.elements, strict=True), 1):
            own = sample.get(field) if isinstance(sample, Mapping) else None
            if not isinstance(own, list | tuple) or not own:
                raise fail(f"chunk {number}: expected an object with '{field}', a list of an element or more")
            chunks.append({**sample, field: [*before, *own]})
        dataset = self._read_behind(chunks, samples)
        forest = dataset.forest
        if times > 1:
            for number, sample in enumerate(samples, 1):
                if sample[field][-1] != {}:
                    raise fail(
                        f"chunk {number}: its last element stands there {times} times, and has to be {{}}"
                    )
            forest = lengthened(forest, field, times)
            chunks = [{field: [*chunk[field], *[{}] * (times - 1)]} for chunk in chunks]
        forest, rows = self._given(forest, state)
        hand_in(attrs.evolve(dataset, forest=forest))
        session = self._session()
        if self._predictor is None or self._predictor.session is not session:
            self._predictor = Predictor(session)
        wanted, kept = self._wanted(rows, state)
        found = self._predictor.run(forest, wanted, ending, noise)
        if found is None:
            raise fail("the chunks do not fit into memory at once; feed fewer elements")
        outputs, records = found
        self._state = self._next(chunks, kept, iter(records), state)
        return outputs

    def _read_behind(self, chunks: list[Sample], samples: Sequence[Sample]) -> Dataset:
        """Reads chunks with the elements before them; what is wrong is told by its place in the chunk."""
        try:
            return self._read(chunks)
        except DiagnosticError:
            self._read(list(samples))
            raise

    def _start(self, streams: int) -> StreamState:
        if not streams:
            raise fail("found no chunk, expected one for each stream")
        none = {name: np.zeros((0, words), np.float32) for name, words in self._words.items()}
        return StreamState(((),) * streams, (none,) * streams)

    def _given(self, forest: Forest, state: StreamState) -> tuple[Forest, list[Ints]]:
        """The forest with the elements before as given; the rows of every stream's elements."""
        root, element = forest.tables[forest.root], self.carried.element
        begin, entries = root.lists[self.carried.field]
        rows = [entries[begin[row] : begin[row + 1]] for row in forest.roots]
        before = [own[: len(each)] for own, each in zip(rows, state.elements, strict=True)]
        given = np.concatenate(before)
        if not len(given):
            return forest, rows
        known = {
            name: (given, np.concatenate([states[name] for states in state.states])) for name in self._words
        }
        return attrs.evolve(forest, given=_below(forest, element, given), known=known), rows

    def _wanted(
        self, rows: list[Ints], state: StreamState
    ) -> tuple[list[tuple[str, int]], list[tuple[int, int]]]:
        """Calls whose states come back; per stream how many kept elements are old ones, and new ones."""
        wanted, kept = list[tuple[str, int]](), []
        for own, before in zip(rows, state.elements, strict=True):
            new = min(self.carried.back, len(own) - len(before))
            kept.append((min(self.carried.back, len(own)) - new, new))
            wanted += [(name, int(row)) for name in self._words for row in own[len(own) - new :]]
        return wanted, kept

    def _next(
        self, chunks: list[Sample], kept: list[tuple[int, int]], records: Any, state: StreamState
    ) -> StreamState:
        elements, states = [], []
        for chunk, (old, new), before in zip(chunks, kept, state.states, strict=True):
            own = chunk[self.carried.field]
            added = len(own) - new
            elements.append((*own[added - old : added], *map(_copied, own[added:])))
            found = {}
            for name, words in self._words.items():
                fresh = [next(records) for _ in range(new)]
                last = before[name][len(before[name]) - old :]
                found[name] = np.concatenate([last, np.reshape(fresh, (new, words))]).astype(np.float32)
            states.append(found)
        return StreamState(tuple(elements), tuple(states))


def _copied(element: Any) -> Any:
    """An element as JSON has it, for whoever gave it may write the next one into the same object."""
    return msgspec.to_builtins(element, enc_hook=plain)


def _below(forest: Forest, struct: str, rows: Ints) -> dict[str, Ints]:
    """By struct the given vertices: these, and all that they refer to."""
    found: dict[str, list[Ints]] = {}
    work = [(struct, rows)]
    while work:
        name, own = work.pop()
        if not len(own):
            continue
        found.setdefault(name, []).append(own)
        table = forest.tables[name]
        for field in forest.structs[name].fields.values():
            if field.kind == LIST:
                begin, entries = table.lists[field.name]
                pieces = [entries[begin[row] : begin[row + 1]] for row in own]
                work.append((str(field.target), np.concatenate(pieces)))
            elif field.kind in VERTEX_KINDS:
                below = table.children[field.name][own]
                work.append((str(field.target), below[below >= 0]))
    return {name: np.concatenate(pieces) for name, pieces in found.items()}
