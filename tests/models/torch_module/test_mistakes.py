"""What a module says of wrong vectors, batches and builds."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.torch  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from dnc.diagnostics import DiagnosticError  # noqa: E402
from tests.models.torch_module.cases import opened  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402


@pytest.mark.parametrize(
    ("pulled", "message"),
    [
        (None, "the pulled vector 'Tree.x' is missing; the program has: Tree.x"),
        ({"Tree.y": torch.zeros(3, 3)}, "the pulled vector 'Tree.y' is unknown; the program has: Tree.x"),
        (
            torch.zeros(3, 2),
            r"the pulled vector 'Tree.x' is \[3, 2\], expected \[3, 3\]: a row for every vertex with",
        ),
        (torch.zeros(3, 3).double(), "the pulled vector 'Tree.x' is torch.float64, expected torch.float32"),
        (torch.zeros(3, 3).to_sparse(), "the pulled vector 'Tree.x' is torch.sparse_coo, expected a dense"),
        (torch.zeros(3, 3, device="meta"), "the pulled vector 'Tree.x' is on meta, expected cpu"),
        ([torch.zeros(1, 3)], "the pulled vector 'Tree.x' has 1 tensor, expected 2, one a sample"),
        (
            [torch.zeros(1, 3), torch.zeros(1, 3)],
            r"the pulled vector 'Tree.x' of sample 2 is \[1, 3\], expected \[2, 3\]",
        ),
        ([torch.zeros(1, 3), [1.0]], "the pulled vector 'Tree.x' of sample 2 is list, expected a tensor"),
        (
            torch.zeros(4, 3),
            "the pulled vector 'Tree.x' has 4 rows, expected 3: .* in the batch of 2 samples",
        ),
        (3, "the pulled vector 'Tree.x' is int, expected a tensor or a list of them"),
    ],
)
def test_wrong_vectors(both, pulled, message):
    net, _ = both
    with pytest.raises(DiagnosticError, match=message):
        net([0, 1], pulled)


def test_wrong_batches(both):
    net, _ = both
    x = torch.zeros(2, 3)
    for batch, message in (
        ([7], r"a batch holds sample 7; the data have 0\.\.2"),
        ([], "a batch holds no samples"),
        ([{"label": 9}, {"label": 1}], "is 9, but class<classes> has 0"),
        (torch.tensor(1), "found one number"),
        (5, "found int"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            net(batch, x)
    for data in (5, None):
        with pytest.raises(DiagnosticError, match=f"found {type(data).__name__}, expected a path"):
            net.attach(data)
    with pytest.raises(DiagnosticError, match="a batch holds no samples"):
        net.predict([], x)


def test_wrong_modules(tmp_path):
    compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), {"embed": 4, "hidden": 4})
    with pytest.raises(DiagnosticError, match="the words of model TreeLSTM are not known"):
        dnc.torch.Module(tmp_path / "build", device="vm")
    with pytest.raises(DiagnosticError, match="there is no such build"):
        dnc.torch.Module(tmp_path / "none")
    with pytest.raises(DiagnosticError, match="has no kernels for a GPU"):
        dnc.torch.Module(tmp_path / "build", device="cuda")
    net = dnc.torch.Module(tmp_path / "build", [{"word": "good", "label": 3}], device="vm")
    with pytest.raises(DiagnosticError, match="found vectors to pull; the program pulls none"):
        net([0], torch.zeros(1, 4))
    text = "model M\nstruct A = A(x: pulled<2>)\nparam {}: [2, 2]\npush y = {} @ root.x\n"
    (tmp_path / "m.dn").write_text(text.format("training", "training"))
    compile_model(tmp_path / "m.dn", tmp_path / "m", ("cpu",))
    with pytest.raises(DiagnosticError, match="cannot be called 'training'; rename it"):
        dnc.torch.Module(tmp_path / "m", device="vm")


def test_data_are_read_as_anywhere(tmp_path):
    net, data, _ = opened("treelstm", tmp_path)
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in data[:3]))
    net.eval()
    with torch.no_grad():
        losses = [net(data[:3])["loss"], net([0, 1, 2])["loss"], net(tmp_path / "dev.jsonl")["loss"]]
    assert losses[0] == losses[1] == losses[2]
    assert net.attach(tmp_path / "dev.jsonl").samples == 3
    with pytest.raises(DiagnosticError, match=r"sample 3; the data have 0\.\.2"):
        net([3])


def test_nothing_is_learned_from_data_without_labels(both):
    net, data = both
    net.attach(net.dnc.read([{}, data[0]], labels_required=False))
    x = torch.zeros(1, 3)
    assert net.predict([0], x)["label"].shape == (1,)
    (encoded,) = net.batches([[0]])
    for batch in ([0], [1], encoded):
        with pytest.raises(DiagnosticError, match="without labels, and Leaf: field 'label' is missing"):
            net(batch, x)


def test_what_does_not_learn_in_the_program_has_no_gradient(both):
    net, data = both
    x = torch.zeros(2, 3)
    net.requires_grad_(True)
    with pytest.raises(DiagnosticError, match="parameter 'V' does not learn in the program"):
        net(data[1:2], x)
    with torch.no_grad():
        net(data[1:2], x)
    net.V.requires_grad_(False)
    net(data[1:2], x)["loss"].backward()
    assert net.V.grad is None and net.W.grad is not None


def test_devices_and_vocabularies(both, tmp_path):
    for device, message in (
        ("cuda:1", "has no kernels for a GPU"),
        ("cuda:x", "unknown device 'cuda:x'; devices: cpu, cuda, vm"),
        ("tape:0", "unknown device 'tape:0'; devices: cpu, cuda, vm"),
        ("tape", "unknown device 'tape'; devices: cpu, cuda, vm"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            dnc.torch.Module(tmp_path / "build", device=device)
    with pytest.raises(DiagnosticError, match="vocabularies is 3, expected one by name"):
        dnc.torch.Module(tmp_path / "build", device="vm", vocabularies=3)
