"""A model in Python: steps, predictions, streams and weights on the reference VM, and wrong arguments."""

import numpy as np
import pytest

import dnc


def test_the_python_interface(workplace):
    model = dnc.load("build", device="vm", replicas=2)
    with pytest.raises(dnc.DiagnosticError, match="no vocabulary yet"):
        model.parameters()
    data = model.attach("train.jsonl")
    model.configure(optimizer="sgd", learning_rate=0.1)
    assert model.step([0, 1, 2]) is None
    stale = model.step(np.array([3, 4]))
    last = model.sync()
    assert 0 < stale != last and model.sync() is None and model.launches == 2
    samples = [{"word": "good", "label": 4}, {"word": "bad", "label": 0}]
    model.step(samples)
    assert model.sync() > 0 and model.evaluate(samples).samples == 2
    assert model.evaluate(data).loss == model.evaluate("train.jsonl").loss
    assert len(model.predict([{"word": "new"}])["p"]) == 1
    values = model.parameters()
    model.set_parameters({"V": np.zeros_like(values["V"]), "b_v": np.arange(5.0)})
    assert model.predict([{"word": "good"}])["label"] == [4]
    model.save("mine.safetensors")
    again = dnc.load("build", device="vm", checkpoint="mine.safetensors")
    assert again.evaluate("dev.jsonl") == pytest.approx(model.evaluate("dev.jsonl"))
    assert again.position.step == 3
    for wrong, message in (
        ({"X": np.zeros(1)}, "no parameter is called X"),
        ({"V": np.zeros((1, 2))}, r"V is \[1, 2\], expected \[5, 4\]"),
        ({"b_v": np.full(5, np.nan)}, "not finite"),
    ):
        with pytest.raises(dnc.DiagnosticError, match=message):
            model.set_parameters(wrong)


SAMPLE = {"word": "good", "label": 4}

WRONG_BATCHES = [
    ([12], "a batch holds sample 12; the data have 0..11"),
    ([2**40], "a batch holds sample 1099511627776; the data have 0..11"),
    ([0, -1], "a batch holds sample -1"),
    ([[0]], r"a batch of numbers is \[1, 1\] of int64, expected a list of int"),
    (np.array([[0]]), r"a batch of numbers is \[1, 1\]"),
    ([[0], [1, 2]], "a sample must be an object, found an array"),
    (SAMPLE, "found one sample, expected a path, a list of samples, or a list of their numbers"),
    (5, "found int, expected a path"),
    (iter([SAMPLE]), "found list_iterator, expected a path"),
    ([1.5], "a sample must be an object, found a fractional number"),
    ([SAMPLE, 0], "samples:2: error: a sample must be an object, found a number"),
    ([], "holds no samples"),
]


@pytest.mark.parametrize("batch, message", WRONG_BATCHES, ids=[message for _, message in WRONG_BATCHES])
def test_wrong_batches(workplace, batch, message):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    with pytest.raises(dnc.DiagnosticError, match=message):
        model.step(batch)
    assert model.sync() is None
    if len(message) > 20 and "number" in message:
        with pytest.raises(dnc.DiagnosticError):
            model.predict(batch)


@pytest.mark.parametrize(
    "batches, message",
    [
        (5, "found int, expected batches: lists of sample numbers, one by one"),
        ("train.jsonl", "found str, expected batches"),
        ([0, 1], "a batch is 0, expected a list of sample numbers"),
        (np.array(3), "found ndarray, expected batches"),
        ([np.array(3)], r"a batch is array\(3\), expected a list of sample numbers"),
        ([[0], [12]], "a batch holds sample 12; the data have 0..11"),
        ([np.array([2**40])], "a batch holds sample 1099511627776"),
        ([np.array([-1])], "a batch holds sample -1"),
        ([[0], []], "holds no samples"),
        ([[1.5]], "expected a list of int"),
    ],
)
def test_wrong_streams(workplace, batches, message):
    model = dnc.load("build", "vm")
    with pytest.raises(dnc.DiagnosticError, match="no data are attached"):
        next(model.predictions([[0]]))
    model.attach("train.jsonl")
    for stream in (model.predictions, model.steps):
        with pytest.raises(dnc.DiagnosticError, match=message):
            list(stream(batches))


def test_streams_of_samples_without_labels(workplace):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    samples = [{"word": "good"}, {"left": {"word": "so"}, "right": {"word": "bad"}}]
    model.attach(model.read(samples, labels_required=False))
    first, second = model.predictions(iter([np.array([1]), (0, 1)]))
    assert len(first["p"]) == 1 and len(second["p"]) == 2
    assert np.array_equal(first["p"][0], second["p"][1])
    assert np.array_equal(second["p"], model.predict(samples)["p"])


def test_wrong_arguments_in_python(workplace):
    for options, message in (
        ({"replicas": 0}, "replicas is 0, expected 1 or more"),
        ({"workers": -1}, "workers is -1, expected 1 or more"),
        ({"seed": -1}, "seed is -1, expected 0 or more"),
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"memory_bytes": 0}, "memory_bytes is 0, expected 1 or more"),
    ):
        with pytest.raises(dnc.DiagnosticError, match=message):
            dnc.load("build", "vm", **options)
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    for arguments, message in (
        ({"learning_rate": "x"}, "the learning rate is 'x', expected a number"),
        ({"learning_rate": float("inf")}, "the learning rate is inf, expected a positive number"),
        ({"learning_rate": 10**400}, "the learning rate is too large, expected a positive number"),
    ):
        with pytest.raises(dnc.DiagnosticError, match=message):
            model.configure(**arguments)
    for value, message in (
        (np.zeros((5, 4), complex), "V holds complex128, expected real numbers"),
        (np.zeros((5, 4), object), "V holds object, expected real numbers"),
        ("x", "expected real numbers"),
        ([[1], [1, 2]], "V: no array can be made of list"),
        (np.full((5, 4), 1e300), "a 32-bit float cannot hold"),
    ):
        with pytest.raises(dnc.DiagnosticError, match=message):
            model.set_parameters({"V": value})
    fixed = np.ones((5, 4))
    fixed.flags.writeable = False
    model.set_parameters({"V": fixed})
    with pytest.raises(dnc.DiagnosticError, match=r"batch is 2\.5, expected a whole number"):
        model.train("train.jsonl", batch=2.5)
    with pytest.raises(dnc.DiagnosticError, match="no samples to evaluate"):
        model.evaluate([])
    assert not (workplace / "runs").exists()


def test_a_checkpoint_brings_its_vocabulary(workplace):
    """Data that were attached before keep their numbers only if the words do."""
    model = dnc.load("build", "vm")
    other = model.attach([{"word": "x", "label": 1}])
    model.save("x.safetensors")
    model.attach("train.jsonl")
    model.restore("x.safetensors")
    assert model.step([0]) is None
    trained = dnc.load("build", "vm")
    trained.attach("train.jsonl")
    trained.restore("x.safetensors")
    with pytest.raises(dnc.DiagnosticError, match="no data are attached"):
        trained.step([0])
    trained = dnc.load("build", "vm")
    trained.attach("train.jsonl")
    with pytest.raises(dnc.DiagnosticError, match="read with another vocabulary"):
        trained.evaluate(other)
