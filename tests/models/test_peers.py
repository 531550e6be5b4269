"""The peers that dnc is measured beside compute what dnc computes, before and after updates.

On the reference VM at sizes that no tile divides, from the same weights, for samples of any length; and the
benchmark around them goes through all of its parts on the CPU.
"""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc  # noqa: E402
import dnc.kernel_cache  # noqa: E402
from benchmarks import common  # noqa: E402
from benchmarks.applications import ablation, command, data, inference, measure, points  # noqa: E402
from benchmarks.applications.builds import compile_builds  # noqa: E402
from benchmarks.applications.data import for_peers  # noqa: E402
from benchmarks.model_data import samples  # noqa: E402
from benchmarks.peers import PEERS  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from tests.models.sizes import SIZES, SMALL  # noqa: E402

POINTS = {
    point.peer: point for part in (points.VPPS, points.FIXED, points.WHOLE) for point in part if point.peer
}
MOVED = 1e-3


def small(sizes):
    """Sizes that the reference VM can take, of the same dimensions."""
    return {name: SMALL[name] for name in sizes}


def test_every_peer_is_measured():
    assert sorted(POINTS) == sorted(PEERS)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_losses_of_peers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    point = POINTS[name]
    recipe = points.BUILDS[point.build]
    compile_model(recipe.program, tmp_path / "b", ("cpu",), small(recipe.settings))
    model = dnc.load(tmp_path / "b", "vm")
    kind = "treelstm" if point.data == points.SST else data.MADE[point.data][0]
    sizes = SIZES
    if name in ("LayerNormLstm", "LstmClassifier", "RnnClassifier", "LanguageModel"):  # all of one length
        sizes = data.Sizes(words=(5, 5), steps=(6, 6))
    if name == "TreeFc":
        sizes = data.Sizes(complete=(3, 3))
    made = samples(kind, model.program, 12, sizes)
    model.attach(made)
    peer = PEERS[name](model.parameters(), "cpu", 0.1)
    peer.read(for_peers(model, made))
    found = measure.checked(model, peer, [3, 0, 7, 1, 5])
    assert found["error"] < 1e-5
    assert found["moved"] > MOVED
    one = measure.checked(model, peer, [2])
    assert one["error"] < 1e-5
    after, want = peer.parameters, model.parameters()
    for key in (*peer.TABLES, "V"):
        assert torch.allclose(after[key].detach(), torch.tensor(want[key]), atol=1e-5)
    peer.parameters["V"].data.neg_()
    with pytest.raises(ValueError, match="not the same model"):
        measure.checked(model, peer, [3, 0])


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Small builds for the CPU: of every part some."""
    folder = tmp_path_factory.mktemp("applications")
    tiny = {
        name: points.Recipe(points.EXAMPLES / "treelstm.dn", {"hidden": 4, "embed": 4}, options)
        for name, options in {
            "tree-256": {},
            "tree-256-without-fuse": {"without": ("fuse",)},
            "tree-256-clusters-of-16": {},
            "tree-256-infer": {"mode": "infer"},
        }.items()
    }
    tiny["tree_fc"] = points.Recipe(points.EXAMPLES / "tree_fc.dn", {"hidden": 4})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.applications.builds.BUILDS", tiny)
        patch.setattr("benchmarks.applications.builds.TRACED", ("tree-256",))
        compile_builds(folder, (), "cpu")
    return folder


@pytest.mark.usefixtures("nothing_to_collect")
def test_the_benchmark_goes_through(builds, tmp_path, monkeypatch, capsys):
    assert not (builds / "tree-256-clusters-of-16").exists()  # its plan is the plain one
    monkeypatch.setattr(points, "VPPS", points.VPPS[:1])
    monkeypatch.setattr(points, "FIXED", points.FIXED[:1])
    monkeypatch.setattr(points, "WHOLE", (points.Point("tree-256", (8,), points.SST),))
    wide = [point for point in points.TREES if point.build == "tree-256" and point.data == points.SST]
    monkeypatch.setattr(points, "TREES", (*wide, points.TREES[0]))
    monkeypatch.setattr(ablation, "ABLATED", (256,))
    monkeypatch.setattr(ablation, "TRACED", ("tree-256",))
    monkeypatch.setattr(ablation, "SAMPLES", 140)
    monkeypatch.setattr(ablation, "TRACED_BATCHES", (1, 8))
    monkeypatch.setattr(inference, "MOST", 3)
    monkeypatch.setattr(common, "cores", lambda: 1)
    complete = "tree_fc", 70, data.Sizes(complete=(2, 2))
    monkeypatch.setitem(data.MADE, "complete trees of 256 leaves", complete)
    made = samples("treelstm", dnc.load(builds / "tree-256", "cpu").program, 280)
    trees = tmp_path / "trees.jsonl"
    trees.write_text("".join(json.dumps(tree) + "\n" for tree in made))
    line = f"x run {builds} --device cpu --trees {trees} --seconds 0.01 --repeats 1 --out {tmp_path}"
    monkeypatch.setattr("sys.argv", line.split())
    command.main()
    shown = capsys.readouterr().out
    assert shown.count("tree-256 ") > 6 and "without fuse" in shown and "MISSED" in shown
    assert "tree-256: 280 samples are no batch of 1024" in shown and "tree-512: no build in" in shown
    found = {path.stem.split("-")[-1]: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert sorted(found) == sorted(command.PARTS)
    variants = {(point["variant"], point["batch"]) for point in found["ablation"]["points"]}
    assert {("nothing", 1), ("nothing", 128), ("without fuse", 128), (ablation.ONE, 1)} <= variants
    assert {point["batch"] for point in found["vpps"]["points"]} == {1, 8, 32, 128}
    assert all(point["check"]["error"] < measure.TOLERANCE for point in found["fixed"]["points"])
    monkeypatch.setattr("sys.argv", ["x", "table", *map(str, sorted(tmp_path.glob("*.json")))])
    command.main()
    shown = capsys.readouterr().out
    assert "| without fuse | " in shown and "| tree_fc | complete trees" in shown
    for point in found["workers"]["points"]:
        assert sum(point["shares"].values()) == pytest.approx(1)


def test_parts_that_cannot_run(builds, tmp_path, monkeypatch, capsys):
    line = f"x run {tmp_path} --device cpu --out {tmp_path} --parts inference trees"
    monkeypatch.setattr("sys.argv", line.split())
    with pytest.raises(SystemExit, match="failed: inference"):
        command.main()
    assert "tree-512: no build in" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", f"x run {builds} --device cpu --parts trees".split())
    with pytest.raises(SystemExit, match="name them with --trees"):
        command.main()
