"""Every example inside PyTorch: values and gradients of the module against those of a reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from tests.models import compare  # noqa: E402
from tests.models.cells import Parameters, nothing_dropped  # noqa: E402
from tests.models.differences import output_differences, relative  # noqa: E402
from tests.models.references import DROPPED, REFERENCES  # noqa: E402
from tests.models.test_against_torch import NAMES, TOLERANCE  # noqa: E402
from tests.models.torch_module.cases import BATCH, check_gradients, doubles, opened  # noqa: E402


@pytest.mark.parametrize("name", [name for name in NAMES if name != "token_vectors"])
def test_every_example_learns_what_pytorch_learns(name, tmp_path):
    net, _, numbered = opened(name, tmp_path)
    batch = [numbered[number] for number in BATCH]
    net.eval()
    expected = doubles(net)
    results = [REFERENCES[name](Parameters(**expected), sample, nothing_dropped) for sample in batch]
    with torch.no_grad():
        loss = net(BATCH)["loss"]
        assert relative(loss, compare._mean_loss(results)) < TOLERANCE and not loss.requires_grad
    found = net.predict(BATCH)
    sizes = net.sizes(BATCH)
    spaces = {name: net.dnc.program.space(_result(net, name).space) for name in found}
    by_sample = {
        name: [each[0] if spaces[name].selection == "root" else each for each in rows]
        for name, rows in ((key, [t.numpy() for t in found[key].split(sizes[key])]) for key in found)
    }
    assert max(output_differences(by_sample, results)) < TOLERANCE
    net.train()
    vertices = [v for sample in numbered for v in DROPPED[name](sample)] if name in DROPPED else []
    dropout = compare._dropout(vertices) if name in DROPPED else nothing_dropped
    results = [REFERENCES[name](Parameters(**expected), sample, dropout) for sample in batch]
    want = compare._mean_loss(results)
    (3.5 * want).backward()
    net.draws = 0
    loss = net(BATCH)["loss"]
    assert relative(loss.detach(), want) < TOLERANCE
    (3.5 * loss).backward()
    check_gradients(net, expected)


def _result(net, name):
    return next(result for result in net.dnc.plan.results if result.name == name)
