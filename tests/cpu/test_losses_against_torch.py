"""The first losses of training a Tree-LSTM equal an independent PyTorch implementation's.

Through the public API, from the same first weights and in the same order: 50 steps of the CPU
kernel, on SST where it is there and on the sample data where it is not; a few steps, small and on
the sample data, of the reference VM.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.runtime.importers import import_file  # noqa: E402
from tests.support.models import EXAMPLES, kernels_for  # noqa: E402
from tests.support.real_data import real_file  # noqa: E402
from tests.support.torch_treelstm import Trees, Twin, read_trees, recursive_loss  # noqa: E402

BATCH = 8
STEPS = {"vm": 6, "cpu": 50}
WIDTHS = {"vm": {"embed": 4, "hidden": 4}, "cpu": {"embed": 64, "hidden": 64}}
SAMPLE = EXAMPLES / "data" / "sentiment-train.jsonl"


@pytest.fixture(scope="module", params=list(STEPS))
def device(request):
    """Where dnc runs."""
    return request.param


@pytest.fixture(scope="module")
def build(device, tmp_path_factory):
    """A build of the Tree-LSTM; the reference VM needs no kernels."""
    folder = tmp_path_factory.mktemp("torch")
    with kernels_for(device, folder / "cache"):
        compile_model(EXAMPLES / "treelstm.dn", folder / "build", ("cpu",), WIDTHS[device])
    return folder / "build"


@pytest.fixture(scope="module")
def data(device, tmp_path_factory):
    """Training data as JSONL: SST, or the sample that comes with the project."""
    source = real_file("sst/train.txt")
    if source is None or device == "vm":
        return SAMPLE
    path = tmp_path_factory.mktemp("sst") / "train.jsonl"
    import_file("ptb-trees", source, path)
    return path


def batches(samples):
    """The first sample numbers of shuffled epochs."""
    random = np.random.default_rng(5)
    while True:
        order = random.permutation(samples)
        for begin in range(0, samples - BATCH + 1, BATCH):
            yield order[begin : begin + BATCH]


def dnc_losses(model, order):
    """The losses of all steps; `step` returns that of the step before."""
    losses = [model.step(batch) for batch in order]
    return [*losses[1:], model.sync()]


@pytest.fixture(scope="module")
def loaded(device, build, data):
    """A model with data, and its first weights; loading takes a while, so all optimizers share it."""
    model = dnc.load(build, device, seed=3)
    model.attach(data)
    return model, model.parameters()


@pytest.mark.parametrize("optimizer, rate", [("sgd", 0.005), ("adagrad", 0.02)])
def test_the_first_losses_are_those_of_torch(device, loaded, data, optimizer, rate):
    torch.set_num_threads(1)
    model, first = loaded
    model.set_parameters(first)
    model.configure(optimizer, rate)
    trees = Trees(read_trees(data), model.vocabularies["vocab"].index)
    twin = Twin(first, optimizer, rate)
    order = [batch for batch, _ in zip(batches(trees.samples), range(STEPS[device]), strict=False)]
    expected = [float(twin.step(trees.batch(batch))) for batch in order]
    found = dnc_losses(model, order)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert expected[-1] != expected[0]
    after = twin.arrays()
    for name, value in model.parameters().items():
        np.testing.assert_allclose(value, after[name], atol=5e-3, err_msg=name)


def test_the_batched_twin_follows_the_definition():
    """Values and gradients of the level-batched twin against the recursive one."""
    torch.set_num_threads(1)
    trees = [*read_trees(SAMPLE)[:5], {"word": "alone", "label": 1}]
    words = {"the": 1, "a": 2, "film": 3, "is": 4, "alone": 5}
    random = np.random.default_rng(0)
    sizes = {"E": (6, 4), "W": (9, 4), "b_w": (9,), "U": (15, 6), "b_u": (15,), "V": (5, 3), "b_v": (5,)}
    values = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    loss = recursive_loss(leaves, words, trees)
    loss.backward()
    twin = Twin(values, "sgd", 1.0)
    found = twin.step(Trees(trees, words).batch(range(6)))
    assert float(found) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in twin.arrays().items():
        expected = values[name] - leaves[name].grad.numpy()
        np.testing.assert_allclose(value, expected, atol=2e-5, err_msg=name)
