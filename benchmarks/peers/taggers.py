"""Bidirectional taggers on cuDNN with packed sequences: nothing is padded.

What belongs to words lies in packed order throughout: step by step, in each step the sentences that have
one, the longest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import Tensor, logsumexp, nn, tanh
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence

from benchmarks.peers.base import Arrays, Batch, Peer, Sample, unique
from benchmarks.peers.sequences import cudnn_gates, take_weights


@attrs.frozen(eq=False)
class Packed:
    """lengths: sequences that have each step; they stay on the host. places: what the words are."""

    places: Tensor
    lengths: Any

    def to(self, device: str) -> Packed:
        """The same on a device."""
        return Packed(self.places.to(device), self.lengths)

    def of(self, rows: Tensor) -> PackedSequence:
        """The sequences of vectors."""
        return PackedSequence(rows.index_select(0, self.places), self.lengths)


def packed(sequences: Sequence[Sequence[Any]]) -> tuple[list[Any], Tensor]:
    """The elements of sequences, the longest first, in packed order, and the number of each step."""
    steps = range(len(sequences[0]))
    found = [[sequence[step] for sequence in sequences if len(sequence) > step] for step in steps]
    return [each for step in found for each in step], torch.tensor([len(step) for step in found])


class BiLstmTagger(Peer):
    """`examples/bilstm_tagger.dn`."""

    def __init__(self, parameters: Arrays, device: str, learning_rate: float) -> None:
        self.own: set[str] = set()
        super().__init__(parameters, device, learning_rate)

    def start(self) -> None:
        """The layer on cuDNN in place of its matrices."""
        self.words = self.both("f", "b")
        p = self.parameters
        names = [name for name in p if name not in self.own and name not in self.TABLES]
        self.dense = [*self.trained, *(p[name] for name in names)]

    trained: tuple[Tensor, ...] = ()

    def both(self, forward: str, backward: str) -> nn.LSTM:
        """A layer of two directions from the parameters with these suffixes."""
        p = self.parameters
        W, U = p["W" + forward], p["U" + forward]
        net = nn.LSTM(W.shape[1], U.shape[1], bidirectional=True).to(self.device)
        for suffix, direction in (("", forward), ("_reverse", backward)):
            names = [kind + direction for kind in "WUb"]
            values = [cudnn_gates(p[name]) for name in names]
            self.trained = (*self.trained, *take_weights(net, suffix, *values))
            self.own.update(names)
        return net

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Words and tags in packed order."""
        words, lengths, tags = self.sorted_words(numbers)
        rows, places = unique([word["form"] for word in words])
        return Batch(len(numbers), {"E": rows}, (Packed(places, lengths), tags))

    def sorted_words(self, numbers: Sequence[int]) -> tuple[list[Sample], Tensor, Tensor]:
        """Words in packed order, the number of each step, tags."""
        sentences = [self.samples[number]["words"] for number in numbers]
        words, lengths = packed(sorted(sentences, key=len, reverse=True))
        return words, lengths, torch.tensor([word["tag"] for word in words])

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """Cross-entropy of all words."""
        sequences, tags = batch.given
        states = self.words(sequences.of(rows["E"]))[0].data
        return cross_entropy(self.scores(states), tags, reduction="sum") / batch.samples

    def scores(self, states: Tensor) -> Tensor:
        """Of all tags at all words."""
        return torch.addmm(self.parameters["b_v"], states, self.parameters["V"].t())


class CharTagger(BiLstmTagger):
    """`examples/char_tagger.dn`: rare words are read letter by letter, all of a batch at once."""

    TABLES = ("E", "C")

    def start(self) -> None:
        """Two layers on cuDNN."""
        self.letters = self.both("r", "l")
        super().start()

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Rare words stand behind the rows of known ones, the longest first."""
        words, lengths, tags = self.sorted_words(numbers)
        known = [at for at, word in enumerate(words) if "form" in word]
        rare = [at for at, word in enumerate(words) if "form" not in word]
        rare.sort(key=lambda at: len(words[at]["letters"]), reverse=True)
        rows, known_places = unique([words[at]["form"] for at in known])
        places = torch.zeros(len(words), dtype=torch.int64)
        places[known] = known_places
        places[rare] = len(rows) + torch.arange(len(rare))
        tables, spelled = {"E": rows}, None
        if rare:
            letters, of_letters = packed([words[at]["letters"] for at in rare])
            tables["C"], letter_places = unique([letter["letter"] for letter in letters])
            spelled = Packed(letter_places, of_letters)
        return Batch(len(numbers), tables, (Packed(places, lengths), tags, spelled))

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The same behind the embedding of rare words."""
        sequences, tags, spelled = batch.given
        embeddings = rows["E"]
        if spelled is not None:
            right, left = self.letters(spelled.of(rows["C"]))[1][0]
            embeddings = torch.cat([embeddings, torch.cat([right, left], 1)])
        states = self.words(sequences.of(embeddings))[0].data
        return cross_entropy(self.scores(states), tags, reduction="sum") / batch.samples

    def scores(self, states: Tensor) -> Tensor:
        """Behind a hidden layer."""
        p = self.parameters
        return super().scores(tanh(torch.addmm(p["b_m"], states, p["M"].t())))


class CrfTagger(BiLstmTagger):
    """`examples/crf_tagger.dn`: the sums over all paths go step by step over all sentences that have one."""

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Also the tags of neighbours, and those that sentences begin and end with."""
        batch = super().batch(numbers)
        sequences, tags = batch.given
        steps = tags.split(sequences.lengths.tolist())
        after = torch.cat([tags[:0], *steps[1:]])
        before = torch.cat([tags[:0], *(a[: len(b)] for a, b in pairwise(steps))])
        ends = torch.cat([a[len(b) :] for a, b in pairwise((*steps, tags[:0]))])
        return attrs.evolve(batch, given=(*batch.given, (after, before, steps[0], ends)))

    def loss(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """What all paths come to, less the right one."""
        sequences, tags, (after, before, first, last) = batch.given
        p = self.parameters
        scores = self.scores(self.words(sequences.of(rows["E"]))[0].data)
        right = scores.gather(1, tags[:, None]).sum() + p["T"][after, before].sum()
        right = right + p["start"][first].sum() + p["stop"][last].sum()
        steps, ended = scores.split(sequences.lengths.tolist()), []
        paths = p["start"] + steps[0]
        for step in steps[1:]:
            ended.append(paths[len(step) :])
            paths = step + logsumexp(p["T"] + paths[: len(step), None], 2)
        every = logsumexp(torch.cat([*ended, paths]) + p["stop"], 1).sum()
        return (every - right) / batch.samples
