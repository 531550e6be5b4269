"""Sequences: classifiers, a language model, a stack with dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, sigmoid, softmax, tanh
from torch.nn.functional import layer_norm

from tests.models import cells
from tests.models.cells import (
    Choice,
    Dropout,
    Parameters,
    Result,
    Sample,
    State,
    gru,
    lstm_run,
    surprise,
    total,
    zeros,
)


def lstm_classifier(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The last state is classified."""
    states = lstm_run(p.W, p.U, p.b, [p.E[word["form"]] for word in sample["words"]])
    return _classified(p, sample, states[-1][0])


def lstm2(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Two layers (Graves 2013, without his skip connections)."""
    first = lstm_run(p.W1, p.U1, p.b1, [p.E[word["form"]] for word in sample["words"]])
    second = lstm_run(p.W2, p.U2, p.b2, [h for h, _ in first])
    return _classified(p, sample, second[-1][0])


def layer_norm_lstm(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Ba et al. 2016, equations 20 to 22, with one bias for both sums."""

    def normal(x: Tensor, gain: Tensor) -> Tensor:
        return layer_norm(x, x.shape, weight=gain, eps=1e-5)

    h, c = zeros(p.gain_c.shape[0]), zeros(p.gain_c.shape[0])
    for word in sample["words"]:
        gates = normal(p.W @ p.E[word["form"]], p.gain_w) + normal(p.U @ h, p.gain_u) + p.b
        i, o, u, f = gates.chunk(4)
        c = sigmoid(i) * tanh(u) + sigmoid(f) * c
        h = sigmoid(o) * tanh(normal(c, p.gain_c) + p.b_c)
    return _classified(p, sample, h)


def gru_classifier(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The last state of a GRU."""
    h = zeros(p.C.shape[0])
    for word in sample["words"]:
        h = gru(p.W, p.U, p.C, p.b, p.E[word["form"]], h)
    return _classified(p, sample, h)


def torch_gru(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The same for the GRU of PyTorch."""
    h = zeros(p.U.shape[1])
    for word in sample["words"]:
        h = cells.torch_gru(p.W, p.U, p.b, p.d, p.E[word["form"]], h)
    return _classified(p, sample, h)


def _classified(p: Parameters, sample: Sample, h: Tensor) -> Result:
    logits = p.V @ h + p.b_v
    loss = surprise(logits, sample["label"])
    return Result(loss, {"label": Choice(logits), "p": softmax(logits, 0)})


def language_model(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Every word predicts the next one; the last one nothing."""
    words = [word["form"] for word in sample["words"]]
    states = lstm_run(p.W, p.U, p.b, [p.E[word] for word in words])
    return _predicted(p.V, p.b_v, states, words)


def tied_language_model(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """The same with the output matrix that of the words (Press and Wolf 2017)."""
    words = [word["form"] for word in sample["words"]]
    states = lstm_run(p.W, p.U, p.b, [p.E[word] for word in words])
    return _predicted(p.E, p.b_v, states, words)


def char_rnn(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Three layers; what goes up is dropped at random (Zaremba et al. 2014), what goes along is not."""
    letters = sample["letters"]
    states = lstm_run(p.W1, p.U1, p.b1, [p.E[letter["letter"]] for letter in letters])
    for site, (W, U, b) in enumerate([(p.W2, p.U2, p.b2), (p.W3, p.U3, p.b3)]):
        pairs = zip(letters, states, strict=True)
        states = lstm_run(W, U, b, [dropout(letter, site, h, 0.2) for letter, (h, _) in pairs])
    return _predicted(p.V, p.b_v, states, [letter["letter"] for letter in letters])


def sparse_lstm(p: Parameters, sample: Sample, dropout: Dropout) -> Result:
    """Every letter predicts the next one; most of U is zero."""
    letters = [letter["letter"] for letter in sample["letters"]]
    return _predicted(p.V, p.b_v, lstm_run(p.W, p.U, p.b, [p.E[letter] for letter in letters]), letters)


def _predicted(V: Tensor, b: Tensor, states: Sequence[State], tokens: Sequence[int]) -> Result:
    logits = [V @ h + b for h, _ in states]
    loss = total(surprise(each, token) for each, token in zip(logits, tokens[1:], strict=False))
    return Result(loss, {"next": [Choice(each) for each in logits]})
