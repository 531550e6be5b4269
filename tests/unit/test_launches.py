"""What the API promises about launches: one a batch, no compiling for new trees, the same bits."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dnc
import dnc.codegen
import dnc.kernel_cache
from dnc.compiler import compile_model
from tests.support.command_line import SIZES, TREE
from tests.support.models import EXAMPLES, kernels_for

DATA = EXAMPLES / "data" / "sentiment-train.jsonl"
BATCHES = ([0, 1, 2], [5, 3], [4], [7, 6, 9, 8, 10])

needs_kernel = pytest.mark.skipif(
    not hasattr(dnc.codegen, "emit_cpu"), reason="there is no emitter for the CPU"
)
DEVICES = ["vm", pytest.param("cpu", marks=needs_kernel)]


def build_for(device, folder):
    """A small build; the reference VM needs no kernels."""
    with kernels_for(device, folder / "cache"):
        compile_model(TREE, folder / "build", ("cpu",), SIZES)
    return folder / "build"


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    """Where it runs."""
    return request.param


@pytest.fixture(scope="module")
def build(device, tmp_path_factory):
    """A small build for the device."""
    return build_for(device, tmp_path_factory.mktemp("launches"))


@pytest.fixture(scope="module")
def model(device, build):
    """A model with data."""
    loaded = dnc.load(build, device)
    loaded.attach(DATA)
    return loaded


def test_one_launch_a_batch(model):
    before = model.launches
    for count, batch in enumerate(BATCHES, 1):
        model.step(batch)
        assert model.launches == before + count
    model.sync()
    assert model.launches == before + len(BATCHES)
    model.predict([0, 1])
    assert model.launches == before + len(BATCHES) + 1


def test_new_trees_never_compile(model, monkeypatch):
    model.step([0])

    def refuse(*arguments):
        raise AssertionError("a batch compiled something")

    for emitter in ("emit_cpu", "emit_cuda"):
        monkeypatch.setattr(dnc.codegen, emitter, refuse, raising=False)
    monkeypatch.setattr(dnc.kernel_cache, "_emit", refuse)
    monkeypatch.setattr("dnc.compiler.make_plan", refuse)
    plan, backend, before = model.plan, model.backend, model.launches
    word = {"word": "film", "label": 2}
    comb = word
    for _ in range(12):
        comb = {"left": comb, "right": word, "label": 1}
    full = {"left": {"left": word, "right": word, "label": 0}, "right": comb, "label": 3}
    for batch in ([word], [comb], [full, word, comb]):
        model.step(batch)
    assert np.isfinite(model.sync())
    assert model.plan is plan and model.backend is backend
    assert model.launches == before + 3


def train(build, device):
    """Losses and weights after a few batches."""
    model = dnc.load(build, device, seed=7)
    model.attach(DATA)
    losses = [model.step(batch) for batch in BATCHES]
    return [*losses[1:], model.sync()], model.parameters()


def test_the_same_seed_gives_the_same_bits(build, device):
    losses, weights = train(build, device)
    again, same = train(build, device)
    assert losses == again
    assert all(np.array_equal(weights[name], same[name]) for name in weights)


BLOCKED = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "lark", "torch", "platformdirs", "tomli_w"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
sys.path[:0] = ["."]
import benchmarks.accuracy, benchmarks.models, benchmarks.treelstm
import benchmarks.applications.ablation, benchmarks.applications.command
import benchmarks.applications.inference, benchmarks.applications.training
import dnc
model = dnc.load(sys.argv[1], "vm")
model.attach(sys.argv[2])
model.step([0, 1])
print(json.dumps([model.sync(), model.launches]))
"""


def test_a_build_runs_without_compiler_and_frontend(tmp_path):
    """What a GPU machine has: neither TVM nor Lark, nor what only the command line needs.

    The benchmarks import there too.
    """
    build = build_for("vm", tmp_path)
    root = str(EXAMPLES.parent)
    command = [sys.executable, "-c", BLOCKED, str(build), str(DATA)]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
    loss, launches = json.loads(done.stdout)
    assert np.isfinite(loss) and launches == 1
