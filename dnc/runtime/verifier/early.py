"""Weight gradients that are made early: posts, who waits for them, and which rows are added up then.

In: the queues of a schedule. Out: of every gradient the rows that are added up before the tail. Guaranteed:
replicas post alike, those behind them wait for all of these and do the same, and a row's deltas were made
before the post that is waited for. Whether that suffices is what the reference VM finds out.
"""

from __future__ import annotations

import numpy as np

from dnc.ir import isa
from dnc.ir.early import POSTS
from dnc.runtime.verifier.text import Ints, Text, need


def rows_made_early(text: Text, queues: list[Ints], tail: Ints) -> dict[str, int]:
    """Of gradients by name the rows that are added up in front of the tail, the first ones of their space."""
    may = text.known.early
    if may is None:
        return {}
    post, wait, outer = (text.number[name] for name in (isa.POST, isa.EARLY, isa.OUTER))
    queues = [queue[: len(queue) - len(tail)] for queue in queues]
    need(not np.isin(tail[:, 0], (post, wait)).any(), "a post, or who waits for it, stands in the tail")
    own = [queue[np.isin(queue[:, 0], (wait, outer))] for queue in queues]
    waiting = [bool(len(each)) for each in own]
    if not any(waiting):
        need(not any((queue[:, 0] == post).any() for queue in queues), "nobody waits for a post")
        return {}
    first = waiting.index(True)
    for replica, queue in enumerate(queues):
        posts = queue[queue[:, 0] == post, 1].tolist()
        right = list(range(POSTS)) if replica < first else []
        need(posts == right, f"replica {replica} posts {posts}, expected {right}")
        same = replica < first or np.array_equal(own[replica], own[first])
        need(same, f"replicas {first} and {replica} make other gradients early")
        if replica >= first:
            last = queue[len(queue) - len(own[replica]) :]
            need(
                np.array_equal(last, own[replica]),
                f"replica {replica}: gradients made early are not its last",
            )
    return _added_up(text, queues[:first], own[first])


def _added_up(text: Text, posting: list[Ints], instructions: Ints) -> dict[str, int]:
    """What those who wait do; posting: the queues of those who post."""
    may, workers = text.known.early, len(posting) * text.workers
    assert may is not None
    waits = [words[1:4] for words in instructions.tolist() if words[0] == text.number[isa.EARLY]]
    right = [[workers, number, workers] for number in range(POSTS)] + [[0, 0, 0]]
    need(waits == right, f"gradients made early wait for {waits}, expected {right}")
    need(instructions[-1, 0] == text.number[isa.EARLY], "gradients are made early for all workers")
    found = dict[str, int]()
    number, names = -1, [gradient.name for gradient in text.plan.dense_gradients]
    for words in instructions.tolist():
        if words[0] == text.number[isa.EARLY]:
            number += 1
            continue
        need(number >= 0, "a gradient is made early in front of the first wait")
        fields = dict(zip(isa.OUTER_FIELDS, words[1:], strict=True))
        name = names[fields["gradient"]] if 0 <= fields["gradient"] < len(names) else ""
        need(name in may.gradients, f"gradient {fields['gradient']} is made early")
        start, rows = fields["row"], fields["rows"]
        before = found.get(name, 0)
        need(start == before and rows >= 0, f"'{name}': rows from {start} on are added up behind {before}")
        expected = {"accumulate": int(name in found) or fields["accumulate"], "index": 0}
        expected["first_norm"] = isa.NO_NORM
        for field, value in expected.items():
            need(fields[field] == value, f"'{name}', early: '{field}' is {fields[field]}, expected {value}")
        need(fields["accumulate"] in (0, 1), f"'{name}', early: 'accumulate' is {fields['accumulate']}")
        need(0 <= fields["first_worker"] < text.grid - workers, f"'{name}', early: no such worker")
        complete = _complete(text, posting, name, number)
        need(start + rows <= len(complete), f"'{name}', early: rows that do not exist")
        need(complete[start : start + rows].all(), f"'{name}': a row is added up before its deltas are made")
        found[name] = start + rows
    need(set(found) == set(may.gradients), f"of {may.gradients} only {tuple(found)} are made early")
    along = text.known.along
    return found | {along[name].name: rows for name, rows in found.items() if name in along}


def _complete(text: Text, posting: list[Ints], name: str, post: int) -> Ints:
    """Whether all deltas of every row were made in front of a post."""
    gradient = next(each for each in text.plan.dense_gradients if each.name == name)
    makers = [
        text.number[segment.name]
        for segment in text.plan.segments
        if gradient.delta.buffer in {store.buffer for store in segment.stores}
    ]
    found = np.zeros((len(makers), text.rows[gradient.space]), bool)  # by each of them
    for queue in posting:
        behind = int(np.flatnonzero(queue[:, 0] == text.number[isa.POST])[post])
        for number, maker in enumerate(makers):
            for row, rows in queue[:behind][queue[:behind, 0] == maker][:, 1:3].tolist():
                found[number, row : row + rows] = True
    complete: Ints = np.logical_and.reduce(found)
    return complete
