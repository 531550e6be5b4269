"""Taggers: two directions that meet at every word."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import logsumexp, tanh

from tests.models.cells import Choice, Dropout, Parameters, Result, Sample, lstm_run, surprise, total


def _both(p: Parameters, inputs) -> list[torch.Tensor]:
    """The states of both directions side by side (Graves and Schmidhuber 2005)."""
    forward = lstm_run(p.Wf, p.Uf, p.bf, inputs)
    backward = lstm_run(p.Wb, p.Ub, p.bb, inputs[::-1])[::-1]
    return [torch.cat([there[0], back[0]]) for there, back in zip(forward, backward, strict=True)]


def _tagged(sample: Sample, scores) -> Result:
    pairs = zip(scores, sample["words"], strict=True)
    loss = total(surprise(each, word["tag"]) for each, word in pairs)
    return Result(loss, {"tags": [Choice(each) for each in scores]})


def bilstm_tagger(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """A tag for every word."""
    states = _both(p, [p.E[word["form"]] for word in sample["words"]])
    return _tagged(sample, [p.V @ h + p.b_v for h in states])


def ner_tagger(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Some elements of the words dropped, and a layer before the scores."""
    states = _both(p, [dropout(word, 0, p.E[word["form"]], 0.25) for word in sample["words"]])
    return _tagged(sample, [p.V @ tanh(p.M @ h + p.b_m) + p.b_v for h in states])


def _embedding(p: Parameters, word: Sample) -> torch.Tensor:
    """A known word's row, or the last states of both directions over a rare word's letters."""
    if "form" in word:
        return p.E[word["form"]]
    letters = [p.C[letter["letter"]] for letter in word["letters"]]
    right = lstm_run(p.Wr, p.Ur, p.br, letters)[-1]
    left = lstm_run(p.Wl, p.Ul, p.bl, letters[::-1])[-1]
    return torch.cat([right[0], left[0]])


def char_tagger(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The same with a layer before the scores, and rare words spelled."""
    states = _both(p, [_embedding(p, word) for word in sample["words"]])
    return _tagged(sample, [p.V @ tanh(p.M @ h + p.b_m) + p.b_v for h in states])


def crf_tagger(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """A conditional random field over the tags (Lample et al. 2016, 2.2), decoded by Viterbi's algorithm."""
    states = _both(p, [p.E[word["form"]] for word in sample["words"]])
    scores = [p.V @ h + p.b_v for h in states]
    tags = [word["tag"] for word in sample["words"]]
    paths, best = p.start + scores[0], [p.start + scores[0]]
    for each in scores[1:]:
        paths = each + logsumexp(p.T + paths, 1)
        best.append(each + (p.T + best[-1]).amax(1))
    right = p.start[tags[0]] + p.stop[tags[-1]] + total(s[tag] for s, tag in zip(scores, tags, strict=True))
    right = right + total(p.T[to, tag] for tag, to in pairwise(tags))
    back = [best[-1] + p.stop]
    for each in best[-2::-1]:
        back.append(each + p.T[back[-1].argmax()])
    return Result(logsumexp(paths + p.stop, 0) - right, {"tags": [Choice(each) for each in back[::-1]]})
