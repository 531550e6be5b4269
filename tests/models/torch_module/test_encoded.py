"""Batches encoded ahead of a module: the same bits, whoever encodes them and whatever happens meanwhile."""

from __future__ import annotations

import gc
import os
import pickle
from weakref import ref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from dnc.diagnostics import DiagnosticError  # noqa: E402
from dnc.runtime.ahead import GROUPS  # noqa: E402
from dnc.runtime.encoder.processes import Processes  # noqa: E402
from tests.models.references import DROPPED  # noqa: E402
from tests.models.torch_module.cases import BATCH, opened  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

NAMES = ["treelstm", "bilstm_tagger", "attention", next(iter(DROPPED))]


def learned(net, batch, pulled=None):
    """Values, and the gradients of parameters and of what is pulled."""
    net.zero_grad()
    net.draws = 0
    found = net(batch, pulled)
    sum((value * 1.5).sum() for value in found.values()).backward()
    gradients = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
    if pulled is not None:
        gradients["pulled"], pulled.grad = pulled.grad, None
    return {name: value.detach() for name, value in found.items()} | gradients


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys() and found
    for name, value in expected.items():
        assert torch.equal(found[name].to_dense(), value.to_dense()), name


def launches_of(net, batch):
    """What a call launches: nothing is encoded where the batch was."""
    calls, shared = [], net.dnc.session.shared
    net.dnc.session.shared = lambda *given: calls.append(given) or shared(*given)
    try:
        learned(net, batch)
    finally:
        del net.dnc.session.shared
    return len(calls)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits(name, tmp_path):
    net, data, _ = opened(name, tmp_path)
    expected = learned(net, BATCH)
    encode = net.encoder(len(BATCH))
    batch = encode(BATCH)
    assert batch.samples == len(BATCH)
    for each in (batch, batch, pickle.loads(pickle.dumps(batch)), encode(torch.tensor(BATCH))):
        assert launches_of(net, each) == 0
        assert_same_bits(learned(net, each), expected)
    own = [data[number] for number in BATCH]
    given = learned(net, own)
    assert launches_of(net, encode(own)) == 0
    assert_same_bits(learned(net, encode(own)), given)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_predictions(name, tmp_path):
    net, data, _ = opened(name, tmp_path)
    net.eval()
    with torch.no_grad():
        values = net.encoder(4, "values")(BATCH)
        assert values.mode == "forward" and torch.equal(net(values)["loss"], net(BATCH)["loss"])
    unlabelled = net.encoder(4, "prediction")(data[:3])
    assert unlabelled.mode == "predict"
    assert_same_bits(net.predict(unlabelled), net.predict(data[:3]))
    assert net.sizes(unlabelled) == net.sizes(data[:3])


def test_dropout_draws_as_ever(tmp_path):
    """Noise is drawn when the batch is used, not when it is encoded."""
    net, _, _ = opened(NAMES[-1], tmp_path)
    batch = net.encoder(4)(BATCH)
    found = [learned(net, batch)["loss"]]
    net.draws = 1
    assert not torch.equal(net(batch)["loss"], found[0])
    net.eval()
    with torch.no_grad():
        expected = net(BATCH)["loss"]
    assert torch.equal(learned(net, batch)["loss"], expected)


def test_vectors_go_in_and_out(both):
    net, trees = both
    x = torch.randn(6, 3, requires_grad=True)
    expected = learned(net, [2, 0, 1], x)
    batch = pickle.loads(pickle.dumps((encode := net.encoder(3))([2, 0, 1])))
    assert batch.mode == "both" and net.sizes(batch)["Tree.x"] == [3, 1, 2]
    assert_same_bits(learned(net, batch, x), expected)
    own = pickle.loads(pickle.dumps(encode([trees[number] for number in (2, 0, 1)])))
    assert_same_bits(learned(net, own, x), expected)
    with pytest.raises(DiagnosticError, match=r"'Tree.x' is \[6, 2\], expected \[6, 3\]"):
        net(batch, torch.zeros(6, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader(workers, tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    encode = net.encoder(3)
    options = {"batch_size": 3, "collate_fn": encode, "num_workers": workers}
    loader = torch.utils.data.DataLoader(range(len(data)), **options)
    found = [learned(net, batch) for batch in loader]
    assert len(found) == 3
    for at, each in enumerate(found):
        assert_same_bits(each, learned(net, range(len(data))[3 * at : 3 * at + 3]))


def ready(net):
    """Starts the processes that encode."""
    rounds = net.batches([[0]] * (GROUPS + 2))
    list(rounds)
    ahead = net._launches.ahead_of(net.dnc.attached)
    wait_for(lambda: not ahead.is_starting, "the processes do not start")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")
@pytest.mark.parametrize("encoders", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_batches_ahead(name, encoders, tmp_path, monkeypatch):
    """In other processes: the bits of batches that are encoded when they come, and their order."""
    net, _, _ = opened(name, tmp_path, encoders=encoders)
    ready(net)
    given = [BATCH, np.array([1, 3]), torch.tensor([6]), (0, 1, 2, 3, 4), [4]]
    elsewhere, receive = [], Processes.receive
    monkeypatch.setattr(Processes, "receive", lambda self, job: elsewhere.append(1) or receive(self, job))
    found = list(net.batches(given))
    assert len(elsewhere) == 4 and found[3].mode is None  # more samples than the first has
    assert [batch.samples for batch in found] == [4, 2, 1, 5, 1]
    for batch, expected in zip(found, given, strict=True):
        assert launches_of(net, batch) == (batch is found[3])
        assert_same_bits(learned(net, batch), learned(net, expected))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")
def test_batches_ahead_with_vectors(both):
    """A program that pushes has one schedule for two launches of a batch."""
    net, trees = both
    ready(net)
    orders = [[2, 0, 1], [0, 1, 2], [1, 0, 2]] * 2
    for batch, order in zip(net.batches(orders), orders, strict=True):
        assert batch.mode == "both"
        x = torch.randn(6, 3, requires_grad=True)
        assert_same_bits(learned(net, batch, x), learned(net, order, x))
    values = list(net.batches(orders, "values"))
    assert len(values) == 6 and {each.mode for each in values} == {"forward"}
    kept = [tree for tree in trees for _ in range(2)]
    assert [batch.samples for batch in net.batches([kept[:2], kept])] == [2, 6]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")
def test_processes_encode_batches_of_their_data_alone(tmp_path):
    """Not samples that came with the batch, nor numbers of what was attached meanwhile."""
    net, data, _ = opened("treelstm", tmp_path, encoders=2)
    ready(net)
    mixed = [[data[6 - at], data[at]] if at % 2 else [at, 6] for at in range(6)] * 3
    for batch, given in zip(net.batches(mixed), mixed, strict=True):
        assert_same_bits(learned(net, batch), learned(net, given))
    first = net.dnc.attached
    outer = net.batches([[at % 7] for at in range(100)])
    found = [next(outer) for _ in range(3)]
    net.attach(data[::-1])
    ready(net)
    inner = net.batches([[at % 7] for at in range(100)])
    found += [batch for _, batch in zip(inner, outer, strict=False)]
    inner.close()
    assert net.dnc.attached is not first and len(found) == 100
    expected = [learned(net, [6 - at]) for at in range(7)]
    for at, batch in enumerate(found):
        assert_same_bits(learned(net, batch), expected[at % 7])


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of Linux")
def test_batches_ahead_without_help(tmp_path, monkeypatch):
    """Too few, broken off, processes that are lost or that none are wanted of."""
    net, data, _ = opened("treelstm", tmp_path, encoders=2)
    expected = learned(net, [1, 2])
    assert list(net.batches([])) == []
    assert_same_bits(learned(net, next(iter(net.batches([[1, 2]])))), expected)
    ready(net)
    rounds = net.batches([[number] for number in range(7)] * 3)
    next(rounds)  # and no more of them: others take its place
    assert_same_bits(learned(net, next(net.batches([[1, 2]]))), expected)
    rounds = net.batches([[1, 2]] * 8)
    found = [next(rounds)]
    for each in net._launches.ahead_of(net.dnc.attached)._processes._all:
        each._running.kill()
        each._running.wait()
    for batch in (*found, *rounds):
        assert_same_bits(learned(net, batch), expected)
    alone = dnc.torch.Module(tmp_path / "build", data, device="vm", encoders=0)
    assert [batch.samples for batch in alone.batches([[1, 2], data[:3]] * 9)] == [2, 3] * 9


def test_an_encoder_in_another_process(tmp_path):
    """What a worker that was not forked has: a copy of the encoder, and no module."""
    net, data, _ = opened("treelstm", tmp_path)
    encode = net.encoder(4)
    away = pickle.loads(pickle.dumps(encode))
    assert away.key == encode.key and away is not encode
    dnc.torch.encoded._KNOWN[encode.key] = encode  # in this process it is the module's
    for given in (BATCH, data[:2]):
        batch = pickle.loads(pickle.dumps(away(given)))
        assert batch.encoder is encode
        assert_same_bits(learned(net, batch), learned(net, given))


def test_memory_that_grew_and_batches_that_are_larger(tmp_path):
    net, data, _ = opened("treelstm", tmp_path, samples=40)
    small, everything = net.encoder(2), list(range(40))
    batch, larger = small([1, 0]), small(everything)
    assert larger.mode is None
    expected, before = learned(net, everything), net.dnc.session.memory.pool
    assert_same_bits(learned(net, larger), expected)
    expected = learned(net, [1, 0])
    assert net.dnc.session.memory.pool is before
    net.dnc.session.memory.grow(before.schedule_words + 64, 0)
    assert launches_of(net, batch) == 1
    assert_same_bits(learned(net, batch), expected)
    assert launches_of(net, net.encoder(2)([1, 0])) == 0
    net.attach(data[:1])  # numbers go on to mean what they meant
    assert_same_bits(learned(net, batch), expected)


@pytest.mark.parametrize("name", ["treelstm", "token_vectors"])
def test_samples_that_repeat(name, tmp_path):
    """Numbers of which some are there twice are a list of these samples; each has vectors of its own."""
    net, data, _ = opened(name, tmp_path)
    batch = [5, 5, 6, 5]
    samples = [data[number] for number in batch]
    assert net.sizes(batch) == net.sizes(samples)
    vectors = sum(net.sizes(batch).get("Tree.x", []))
    pulled = torch.randn(vectors, net._pulled["Tree.x"]).requires_grad_() if vectors else None
    expected = learned(net, samples, pulled)
    for each in (batch, np.array(batch), net.encoder(4)(batch), *net.batches([batch])):
        assert_same_bits(learned(net, each, pulled), expected)
    shuffled = [[0, 1], batch, [2, 3], [1, 0]]
    for each, encoded in zip(shuffled, net.batches(shuffled), strict=True):
        assert encoded.sizes == net.sizes(encoded) == net.sizes(each)
    assert_same_bits(net.predict(batch, pulled), net.predict(samples, pulled))


def test_there_is_memory_for_an_encoder(tmp_path):
    net, _, _ = opened("treelstm", tmp_path, samples=40)
    encode = net.encoder(20)
    for first in (0, 20):
        assert launches_of(net, encode(np.arange(first, first + 20))) == 0


def test_mistakes(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    encode = net.encoder(2)
    with pytest.raises(DiagnosticError, match="a batch holds no samples"):
        encode([])
    with pytest.raises(DiagnosticError, match=r"a batch holds sample 9; the data have 0\.\.6"):
        encode([9])
    for wrong in (3, None, "trees.jsonl", {"word": "good"}):
        with pytest.raises(DiagnosticError, match="expected a list of samples, or of their numbers"):
            encode(wrong)
    with pytest.raises(DiagnosticError, match="samples:1: error: Leaf: field 'label' is missing"):
        encode([{"word": "good"}])
    predicts = net.encoder(2, "prediction")
    with pytest.raises(DiagnosticError, match="encoded for 'prediction', without their labels"):
        net(predicts([{"word": 1}]))
    assert torch.equal(net(predicts([1]))["loss"], net([1])["loss"])  # what is attached has labels
    for samples in (0, 1.5, True):
        with pytest.raises(DiagnosticError, match=r"samples is .*, expected"):
            net.encoder(samples)
    with pytest.raises(DiagnosticError, match="unknown purpose 'test' of an encoder; purposes: training"):
        net.encoder(2, "test")
    for wrong, message in (
        ([[]], "no samples"),
        ([3], "found int"),
        ([[9]], "sample 9"),
        (["a"], "found str"),
        (torch.arange(3), "found one number"),
        ([torch.tensor(3)], "found one number"),
        ([[[1], [2, 3]]], "samples:1"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            list(net.batches(wrong))
    for wrong in (5, None, "ab", {"word": "good"}):
        with pytest.raises(DiagnosticError, match="expected batches"):
            net.batches(wrong)
    for wrong in ("test", [], None):
        with pytest.raises(DiagnosticError, match="unknown purpose"):
            net.batches([], wrong)
    with pytest.raises(DiagnosticError, match="encoders is -1"):
        dnc.torch.Module(tmp_path / "build", data, device="vm", encoders=-1)
    other = dnc.torch.Module(tmp_path / "build", data, device="vm")
    with pytest.raises(DiagnosticError, match="the batch was encoded for another module"):
        other(encode([1]))
    with pytest.raises(DiagnosticError, match="parameter U is None, expected"):
        net.U = None
        net([1])
    assert repr(encode([1])) == "<1 samples of TreeLSTM, encoded for training>"
    assert repr(encode) == "<encoder of batches of TreeLSTM>"
    sent = pickle.dumps(encode([1]))
    del encode
    gc.collect()  # frames of the errors above name it
    with pytest.raises(DiagnosticError, match="a batch whose encoder is gone"):
        pickle.loads(sent)
    bare = dnc.torch.Module(tmp_path / "build", device="vm", vocabularies=net.dnc.vocabularies)
    with pytest.raises(DiagnosticError, match="no data were attached when the encoder was made"):
        bare.encoder(2)([0])


def test_memory_that_grows_between(tmp_path):
    """Gradients that wait in the memory, and parameters that are written, outlive its growth."""
    net, _, _ = opened("treelstm", tmp_path, samples=40)
    memory = net.dnc.session.memory
    expected = learned(net, BATCH)
    for make in (lambda: net.encoder(40), lambda: next(net.batches([[at] for at in range(40)]))):
        net.zero_grad()
        loss, before = net(BATCH)["loss"], memory.pool.words + memory.words
        make()
        assert memory.pool.words + memory.words > before
        (loss * 1.5).backward()
        for name, value in net.named_parameters():
            assert torch.equal(value.grad, expected[name]), name
    with torch.no_grad():
        net.U.mul_(2.0)
        memory.grow(memory.pool.schedule_words + 64, 0)
        net._memory.refresh(net._values())
        changed = net(BATCH)["loss"]
        net.U.mul_(0.5)
        assert not torch.equal(changed, expected["loss"]) and torch.equal(
            net(BATCH)["loss"], expected["loss"]
        )
    wide = dnc.torch.Module(tmp_path / "build", net.dnc.attached, device="vm", encoders=0)
    wide.encoder(40)
    with torch.no_grad():  # written behind growth, and before the next launch
        for name, value in wide.named_parameters():
            value.copy_(getattr(net, name))
    assert_same_bits(learned(wide, BATCH), expected)


def test_batches_that_do_not_fit_together(tmp_path, monkeypatch):
    net, _, _ = opened("treelstm", tmp_path, samples=40, encoders=0)
    given = [[at, at + 20] for at in range(20)]
    expected = [learned(net, batch) for batch in given]
    with monkeypatch.context() as patch:
        patch.setattr(type(net.dnc.session.memory), "grow", lambda self, words, activations: False)
        alone = list(net.batches(given))
    together = list(net.batches(given))
    for batches in (alone, together):
        for batch, want in zip(batches, expected, strict=True):
            assert_same_bits(learned(net, batch), want)
    assert all(launches_of(net, batch) == 0 for batch in together)


def test_an_error_of_who_gives_batches_comes_behind_them(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)

    def batches():
        yield from ([at % 7] for at in range(10))
        raise OSError("the disk")

    found = net.batches(batches())
    assert [next(found).samples for _ in range(10)] == [1] * 10
    with pytest.raises(OSError, match="the disk"):
        next(found)
    found = net.batches([[0], data[:2], [1], [99]])
    assert [next(found).samples for _ in range(3)] == [1, 2, 1]
    with pytest.raises(DiagnosticError, match="holds sample 99"):
        next(found)


def test_a_batch_is_encoded_once_and_its_schedule_goes_with_its_graph(both):
    """Also where somebody keeps the loss; and while it stays, it holds nothing of the size of the data."""
    net, _ = both
    made, shared = [], net.dnc.session.shared

    def watched(*given):
        found = shared(*given)
        made.append((ref(found.words), ref(next(iter(found.guest.handed.values())).number)))
        return found

    net.dnc.session.shared = watched
    x = torch.randn(6, 3, requires_grad=True)
    kept = net([2, 0, 1], x)["states"].sum()
    others = [net([0], x[:1])["states"].sum() for _ in range(3)]  # these are the last launches
    gc.collect()
    (words, numbers), *_ = made
    assert words() is not None and numbers() is None
    kept.backward(retain_graph=True)
    kept.backward()
    for other in others:
        other.backward()
    gc.collect()
    assert len(made) == 4 and words() is None and kept.grad_fn is not None
