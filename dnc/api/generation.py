"""`Model.generate`: lists that a program continues from its own words, until the word that ends them.

In: samples without the list, the output that holds its words, the word that ends. Out: the words of every
sample up to that one. Guaranteed: those that `predict` gives for a list of any length, cut at the end; a
launch makes several words of all lists that have not ended, and no launch is made for one that has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.api.arguments import check_whole
from dnc.api.streaming import ModelStream
from dnc.api.words import ending_of, words_output
from dnc.diagnostics import Diagnostic, DiagnosticError, fail
from dnc.ir.forest import target_of
from dnc.ir.noise import step_noise
from dnc.ir.structure import CLASS, LIST, TOKEN, Arm, Struct
from dnc.runtime.carried import carried
from dnc.runtime.data import Layout
from dnc.runtime.data.flat import is_flat
from dnc.runtime.streams import Sample, StreamState

if TYPE_CHECKING:
    from dnc.api.model import Model

LONGEST = 4096
"""Words of a launch, if nobody says: it has memory for all of them, made or not."""


class SampleError(DiagnosticError):
    """What is wrong with one of the samples, counted from 1."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(Diagnostic(f"sample {number}: {message}"))
        self.number, self.message = number, message


INSTEAD = {
    TOKEN: "what is predicted is a class<...> there, no token<...>",
    CLASS: "a class that every output reads is none that is made: what goes on from its own choice calls a "
    "function at w.prev that reads the row of it, E[argmax(scores(w))]",
}
"""What helps where elements of a list need a field, by its kind."""


def generate(
    self: Model,
    samples: Sequence[Sample],
    end: int | str,
    output: str | None = None,
    *,
    most: int = 200,
    chunk: int | None = None,
    field: str | None = None,
    seed: int | None = None,
) -> list[NDArray[np.int32]]:
    """The words of every sample, numbers, up to the one that ends them (which is left out), or `most`.

    samples: in nested form, without the list that is made. end: a number, or the class of that name.
    output: that of the words, one for every element; None for the only such output. chunk: words of a
    launch; None for all of them in one, up to `LONGEST`. field: the list of the root that grows; None for the
    only one that can be made. seed: what `sample` draws follows from it, the samples, `most` and `chunk`;
    None chooses the largest.
    DiagnosticError where the program cannot go on from its own words (`Model.stream`).
    """
    check_whole("most", most, 1)
    check_whole("chunk", chunk, 1, optional=True)
    check_whole("seed", seed, 0, optional=True)
    stream = _stream_of(self, field)
    grows = stream.carried.field
    layout = self.reader.layout(labels_required=False)
    ending, samples = ending_of(self, stream.carried, output, end), _checked(samples, grows, layout)
    stream.reset()
    found: list[list[NDArray[np.int32]]] = [[] for _ in samples]
    going, made = list(range(len(samples))), 0
    while going and made < most:
        count = min(chunk or LONGEST, most - made)
        chunks = [{**samples[at], grows: [{}]} for at in going]
        own = seed if seed is None or not made else step_noise(seed, made)  # another one for every launch
        words = stream.feed(chunks, ending=ending, times=count, seed=own)[ending.output]
        made += count
        lasting = []
        for place, (at, values) in enumerate(zip(going, words, strict=True)):
            ended = values[-1] == ending.word
            found[at].append(values[:-1] if ended else values)
            if not ended:
                lasting.append(place)
        stream.state = _of_streams(stream.state, lasting)
        going = [going[place] for place in lasting]
    return [np.concatenate(pieces) for pieces in found]


def _stream_of(model: Model, field: str | None) -> ModelStream:
    if not isinstance(field, str | None):
        raise fail(f"field is {field!r}, expected the name of a list")
    known = model.generating
    if field not in known:
        known[field] = ModelStream(model, carried(model.plan, _list_of(model, field)))
    return known[field]


def _list_of(model: Model, name: str | None) -> str:
    """The list `name` of the root, or the only one that can be made; DiagnosticError where elements have
    fields that nobody can know before they are made."""
    layout = model.reader.layout(labels_required=False)
    root = layout.structs[model.program.root]
    given = {}
    for field in root.fields.values():
        if field.kind == LIST:
            element = layout.structs[target_of(root, field.name)]
            given[field.name] = sorted(
                {each for arm in element.arms for each in _given(layout, element, arm)}
            )
    made = [each for each, fields in given.items() if not fields]
    if name is None:
        if not given:
            raise fail(f"{root.name}, the root, has no list that could be made")
        if len(made) > 1:
            found = f"{root.name}, the root, has lists that can be made, {', '.join(made)}"
            raise fail(f"{found}: name one (--list {made[0]}, in Python field='{made[0]}')")
        name = made[0] if made else next(iter(given))
    if given.get(name):
        element = layout.structs[target_of(root, name)]
        kinds = {element.field(each).kind for each in given[name]}
        raise fail(
            f"'{name}' cannot be made: data give every {element.name} its {', '.join(given[name])}",
            *(hint for kind, hint in INSTEAD.items() if kind in kinds),
        )
    return name


def _given(layout: Layout, element: Struct, arm: Arm) -> list[str]:
    """The fields of an element that only data can give: those that may be missing among them, as every one
    would be."""
    fields = tuple(attrs.evolve(field, may_miss=False) for field in arm.fields)
    return layout.required(element, attrs.evolve(arm, fields=fields))


def _checked(samples: Sequence[Sample], field: str, layout: Layout) -> list[Sample]:
    if isinstance(samples, Mapping | str | bytes) or not isinstance(samples, Sequence):
        raise fail(f"found {type(samples).__name__}, expected a list of samples")
    for number, sample in enumerate(samples, 1):
        if not isinstance(sample, Mapping) or sample.get(field):
            found = f"'{field}', which is to be made" if isinstance(sample, Mapping) else repr(sample)
            raise SampleError(number, f"found {found}; expected an object without that list")
        if is_flat(sample, layout):
            raise SampleError(number, "is in flat form; what a list is made for is in nested form")
    return list(samples)


def _of_streams(state: StreamState | None, places: Sequence[int]) -> StreamState | None:
    """The state of some of the streams."""
    if state is None:
        return None
    return StreamState(
        tuple(state.elements[place] for place in places), tuple(state.states[place] for place in places)
    )


def output_of(model: Model, field: str | None, name: str | None) -> str:
    """The output that has a whole number for every element of the list `field`, as `words_output`."""
    return words_output(model, _stream_of(model, field).carried, name)
