"""dnc bench: what it measures and prints, on the reference VM, which has no time of its own."""

import json
import os
import threading

import numpy as np
import pytest

import dnc
from dnc.api.bench import _batches, measure_latency, measure_throughput, read_structures, times
from dnc.compiler import PlanOptions, compile_model
from dnc.diagnostics import DiagnosticError
from tests.support.models import EXAMPLES

BENCH = "bench build --data train.jsonl --device vm"


def test_latency_as_json(command):
    done = command(f"{BENCH} --latency --batch 1,3 --calls 7 --warmup 2 --seed 5 --json")
    assert done.code == 0, done.error
    first, second = done.events
    assert first["batch"] == 1 and second["batch"] == 3 and first["model"] == "TreeLSTM"
    for found in (first, second):
        assert found["calls"] == 7 and found["warmup"] == 2 and found["seed"] == 5 and found["kernel"] is None
        call = found["call"]
        assert 0 < call["least"] <= call["p50"] <= call["p90"] <= call["p99"] and call["mean"] > 0
        assert 0 <= found["encoded"] <= 7 and found["prepared"] is False
    many = command(f"{BENCH} --latency --batch 40 --calls 3 --warmup 1 --json").events[0]
    assert many["encoded"] == 3  # too many samples for a shape to come again
    prepared = command(f"{BENCH} --latency --calls 3 --warmup 0 --json --prepared").events[0]
    assert prepared["prepared"] is True


def test_a_mistake_in_the_data_is_at_its_line(command, workplace):
    (workplace / "bad.jsonl").write_text('{"word": "a"}\n{"word": "b"}\n{"wird": "c"}\n')
    for more in ("", " --prepared"):
        done = command(f"bench build --data bad.jsonl --device vm --latency --calls 2{more}")
        assert done.code == 2 and done.error.startswith("bad.jsonl:3: error:"), done.error


def test_data_come_through_a_pipe(command, workplace):
    """They are read once."""
    command("run build --data train.jsonl --device vm --epochs 1 --run-dir run")
    os.mkfifo("pipe")
    text = (workplace / "train.jsonl").read_text()
    writer = threading.Thread(target=lambda: (workplace / "pipe").write_text(text), daemon=True)
    writer.start()
    done = command(
        "bench build --data pipe --device vm --latency --calls 2 --checkpoint run/last.safetensors"
    )
    assert done.code == 0, done.error


def test_tables(command):
    done = command(f"{BENCH} --latency --calls 3 --warmup 1 --batch 1,2")
    assert done.code == 0 and "3 calls behind 1" in done.out and "p99" in done.out
    assert "TreeLSTM on reference VM" in done.error
    done = command(f"{BENCH} --throughput --batch 4,12 --seconds 0.01")
    assert done.code == 0 and "samples/s" in done.out and "12" in done.out

    done = command(f"{BENCH} --latency --batch 999999999 --calls 3 --warmup 1")
    message = "error: 4 calls with 999999999 samples each, expected at most 67108864 samples in all\n"
    assert done.code == 2 and done.error.endswith(message)
    done = command(f"{BENCH} --throughput --batch 13")
    assert done.code == 2 and "error: a batch of 13 samples; the data has 12" in done.error


def test_throughput_as_json(command):
    done = command(f"{BENCH} --throughput --seconds 0.05 --batch 5 --json")
    (found,) = done.events
    assert found["batch"] == 5 and found["samples"] > 0 and found["seconds"] >= 0.05
    assert found["samples_per_second"] == pytest.approx(found["samples"] / found["seconds"], rel=0.01)


def test_the_order_follows_from_the_seed(workplace, monkeypatch):
    asked = []
    model = dnc.load("build", "vm")
    monkeypatch.setattr(model, "predict", lambda batch: asked.append(batch))
    samples = read_structures("train.jsonl")
    for seed in (1, 1, 2):
        measure_latency(model, samples, batch=5, calls=6, warmup=2, seed=seed)
    first, again, other = (asked[at : at + 8] for at in (0, 8, 16))
    assert first == again != other and all(len(batch) == 5 for batch in asked)
    seen = [sample for batch in first for sample in batch][:12]
    assert all(sample in seen for sample in samples)  # a shuffle holds every sample


def test_calls_that_cannot_be_measured(workplace):
    model = dnc.load("build", "vm")
    sample = read_structures("train.jsonl")[:1]
    for samples, more, message in (
        ([], {}, "there are no samples to predict"),
        (sample, {"warmup": -1}, "warmup is -1, expected 0 or more"),
        (sample, {"calls": 0}, "calls is 0, expected 1 or more"),
        (sample, {"batch": 1.5}, "batch is 1.5, expected a whole number"),
    ):
        with pytest.raises(DiagnosticError, match=message):
            measure_latency(model, samples, **more)


def test_batches_of_many_passes_are_drawn_at_once():
    drawn = list(_batches(2, 500_001, 3, 1))
    assert [len(each) for each in drawn] == [500_001] * 3
    together = np.concatenate(drawn)[: 2 * 750_001].reshape(-1, 2)
    assert (together.sum(axis=1) == 1).all()  # shuffles of the two, one after another


def test_a_checkpoint_gives_weights_and_words(command):
    assert command("run build --data train.jsonl --device vm --run-dir r").code == 0
    done = command(f"{BENCH} --latency --calls 2 --warmup 0 --json --checkpoint r/last.safetensors")
    assert done.code == 0 and done.events[0]["calls"] == 2


def test_percentiles():
    found = times([value * 1e-6 for value in range(1, 101)])
    assert (found.p50, found.p90, found.mean, found.least) == (50.5, 90.1, 50.5, 1.0)
    assert found.p99 == pytest.approx(np.percentile(range(1, 101), 99), abs=0.01)


def test_pulled_vectors_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    sizes = {"width": 3, "hidden": 4}
    options = PlanOptions(mode="infer")
    compile_model(EXAMPLES / "token_vectors.dn", tmp_path / "b", ("cpu",), sizes, options)
    model = dnc.load(tmp_path / "b", "vm")
    tree = {"left": {}, "right": {"left": {}, "right": {}}}
    seen = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *given: seen.append(given) or forward(*given))
    for prepared in (False, True):
        found = measure_latency(model, [tree], calls=2, warmup=1, batch=2, prepared=prepared)
        assert found.batch == 2 and found.encoded == 0
    shapes = {array.shape for _, pulled in seen for array in pulled["Tree.x"]}
    assert len(seen) == 6 and shapes == {(3, 3)}
    with pytest.raises(DiagnosticError, match="pulls vectors from outside"):
        measure_throughput(model, [tree], batch=1)


def test_a_program_without_outputs(tmp_path, monkeypatch):
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    text = "model M(d = 2)\nstruct V = V(x: vector<d>)\nparam W: [d, d]\n"
    (tmp_path / "m.dn").write_text(text + "loss sum(v in root) squared_error(W @ v.x, v.x)\n")
    compile_model(tmp_path / "m.dn", tmp_path / "b", ("cpu",), {}, PlanOptions(mode="infer"))
    model = dnc.load(tmp_path / "b", "vm")
    model.read([{"x": [1, 2]}])
    for measure in (measure_latency, measure_throughput):
        with pytest.raises(DiagnosticError, match="model M declares no output: there is nothing to predict"):
            measure(model, [{"x": [1, 2]}], batch=1)


def test_the_script_for_other_machines(tmp_path, monkeypatch, capsys):
    """benchmarks/latency.py: builds on one machine, numbers on another; small, without PyTorch."""
    from benchmarks import latency

    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    small = ["--sizes", "4", "--tree-sizes", "4"]
    few, out = "--no-torch --steps 3 --calls 2 --warmup 1 --batches 1 --tree-batches 2", tmp_path / "out.json"
    for line in (
        ["compile", str(tmp_path / "builds"), "--target", "cpu", *small],
        ["run", str(tmp_path / "builds"), "--device", "vm", "--out", str(out), *small, *few.split()],
    ):
        monkeypatch.setattr("sys.argv", ["latency.py", *line])
        monkeypatch.setattr(latency, "made_trees", lambda seed: [{"word": "w1", "label": 0}] * 4)
        latency.main()
    found = json.loads(out.read_text())
    assert [(p["model"], p["hidden"], p["batch"]) for p in found["points"]] == [
        ("lstm", 4, 1),
        ("gru", 4, 1),
        ("tree", 4, 2),
    ]
    for point in found["points"]:
        assert point["new shapes"] > 0 and point["dnc call"]["p50"] > 0 and "dnc kernel" not in point
    assert "lstm; hidden 4; batch 1" in capsys.readouterr().out
