"""The command line, from a program to predictions, on the reference VM."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dnc
from dnc.runtime.session import Session
from tests.support.command_line import TREE

TRAIN = "run build --data train.jsonl --device vm --batch 4"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_compile(command, workplace):
    done = command(f"compile {TREE} -o out --set hidden=4 --set embed=4 --target cpu,cuda,cuda:sm_80")
    assert done.code == 0 and done.out == "" and "wrote out" in done.error
    manifest = json.loads((workplace / "out" / "manifest.json").read_text())
    assert list(manifest["targets"]) == ["cpu", "cuda:sm_90a", "cuda:sm_80"]
    assert manifest["settings"] == {"hidden": 4, "embed": 4} and manifest["model"] == "TreeLSTM"
    assert (workplace / "out" / "model.dn").read_text() == TREE.read_text()


def test_compile_twice_gives_the_same_build(command, workplace):
    command(f"compile {TREE} -o a")
    command(f"compile {TREE} -o b")
    first, second = (contents(workplace / name) for name in "ab")
    assert list(first.values()) == list(second.values())


def test_kernels_come_from_the_cache(command, monkeypatch, workplace):
    made = []
    monkeypatch.setattr("dnc.kernel_cache._emitters", lambda: "")
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: made.append(plan.target) or {"k": b"1"})
    assert "from the cache" not in command(f"compile {TREE}").error
    assert "from the cache" in command(f"compile {TREE}").error and made == ["cpu"]
    command(f"compile {TREE} --set hidden=8")
    assert len(made) == 2
    entry = next(path for path in (workplace / ".cache").rglob("k"))
    entry.write_bytes(b"damaged")
    for _ in range(2):
        command(f"compile {TREE}")
        command(f"compile {TREE} --set hidden=8")
    assert len(made) == 3


def test_looking_into_the_compiler(command, workplace):
    done = command(f"compile {TREE} -o out --stop-after hoist --time-passes")
    assert done.code == 0 and "# after hoist" in done.out and "canonicalize:" in done.out
    assert not (workplace / "out").exists()
    done = command(f"compile {TREE} -o out --print-ir-after-all")
    assert all(f"# after {name}" in done.out for name in ("differentiate", "fuse", "plan-weights"))
    done = command(f"compile {TREE} -o out --stop-after fuse")
    assert "segment encode.Node/0" in done.out
    command(f"compile {TREE} -o out --dump-dir dump --without hoist")
    names = {str(path.relative_to(workplace / "dump")) for path in contents(workplace / "dump")}
    assert {"01-canonicalize.ir", "04-differentiate.ir", "cpu/02-plan-weights.ir"} <= names
    assert "03-hoist.ir" not in names


def test_check(command):
    done = command(f"check {TREE} --data train.jsonl")
    assert done.code == 0 and "Nested form:" in done.out and "train.jsonl: 12 samples" in done.out


def test_import(command, workplace):
    (workplace / "trees.txt").write_text("(3 (2 not) (4 bad))\n")
    assert command("import ptb-trees trees.txt -o trees.jsonl").code == 0
    assert command("run build --data trees.jsonl --device vm").code == 0


def test_training(command, workplace):
    before = contents(workplace / "build")
    done = command(f"{TRAIN} --epochs 2 --dev dev.jsonl --optimizer sgd --lr 0.1 --clip 5 --log-every 2")
    assert done.code == 0 and "TreeLSTM on reference VM" in done.error
    start, *events, end = done.events
    assert (start["optimizer"], start["learning_rate"], start["clip"]) == ("sgd", 0.1, 5.0)
    assert [e["event"] for e in events] == ["step", "epoch", "step", "step", "epoch"] and end["finished"]
    assert events[-1]["dev"].keys() == {"loss", "accuracy", "samples"}
    (run,) = (workplace / "runs").iterdir()
    assert {p.name for p in run.iterdir()} == {
        "metrics.jsonl",
        "vocabulary.json",
        "last.safetensors",
        "best.safetensors",
    }
    assert (run / "metrics.jsonl").read_text() == done.out
    assert contents(workplace / "build") == before


def test_the_same_seed_gives_the_same_bits(command, workplace):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert command(f"{TRAIN} --run-dir {name} --seed {seed}").code == 0
    a, b, c = ((workplace / name / "last.safetensors").read_bytes() for name in "abc")
    assert a == b and a != c


def test_going_on_from_a_checkpoint(command, workplace):
    command(f"{TRAIN} --epochs 2 --run-dir whole")
    command(f"{TRAIN} --epochs 1 --run-dir half")
    done = command(f"{TRAIN} --epochs 2 --run-dir half --checkpoint half/last.safetensors")
    assert done.code == 0 and done.events[0]["first_epoch"] == 2
    whole, half = (load_file(workplace / name / "last.safetensors") for name in ("whole", "half"))
    assert all(np.array_equal(whole[name], half[name]) for name in whole)


def test_an_interrupt_saves_and_can_be_resumed(command, workplace, monkeypatch):
    launch, count = Session._launch, []

    def interrupted(self, launches):
        count.append(1)
        if len(count) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return launch(self, launches)

    command(f"{TRAIN} --epochs 2 --run-dir whole")
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_launch", interrupted)
        patch.setattr("dnc.runtime.session.GROUP_BATCHES", 1)
        done = command(f"{TRAIN} --epochs 2 --run-dir parts")
    assert done.code == 130 and "to go on: --checkpoint parts/last.safetensors" in done.error
    assert done.events[-1] == {"event": "end", "finished": False, "step": 2}
    assert command(f"{TRAIN} --epochs 2 --run-dir parts --checkpoint parts/last.safetensors").code == 0
    whole, parts = (load_file(workplace / name / "last.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_evaluation_and_prediction_take_the_newest_run(command, workplace):
    command(f"{TRAIN} --run-dir runs/first")
    command(f"{TRAIN} --epochs 3 --lr 0.3 --dev dev.jsonl --run-dir runs/second")
    done = command("run build --data dev.jsonl --device vm --eval")
    assert done.code == 0 and "weights of runs/second/best.safetensors" in done.error
    (found,) = done.events
    best = [e for e in map(json.loads, (workplace / "runs/second/metrics.jsonl").open()) if e.get("best")]
    assert found == pytest.approx(best[-1]["dev"], rel=1e-6)
    other = command("run build --data dev.jsonl --device vm --eval --checkpoint runs/first/last.safetensors")
    assert other.events[0]["loss"] != found["loss"]
    by_folder = command("run build --data dev.jsonl --device vm --eval --run-dir runs/first")
    assert by_folder.events == other.events


def test_predictions_need_no_labels_and_keep_the_order(command, workplace):
    command(f"{TRAIN} --epochs 2")
    texts = [
        '{"word": "good"}',
        '{"left": {"word": "bad"}, "right": {"word": "never seen"}}',
        '{"word": "bad"}',
    ]
    (workplace / "plain.jsonl").write_text("\n".join([*texts, texts[0]]))
    assert command("run build --data plain.jsonl --device vm --predict out.jsonl").code == 0
    found = [json.loads(line) for line in (workplace / "out.jsonl").read_text().splitlines()]
    assert len(found) == 4 and found[0] == found[3] != found[2]
    for each in found:
        assert sum(each["p"]) == pytest.approx(1, abs=1e-5)
        assert each["label"] == int(np.argmax(each["p"]))


def test_weights_by_name(command, workplace):
    save_file({"b_v": np.arange(5, dtype=np.float32)}, workplace / "w.safetensors")
    done = command(f"{TRAIN} --weights w.safetensors --lr 1e-30")
    assert done.code == 0 and "w.safetensors: b_v" in done.error
    last = next((workplace / "runs").rglob("last.safetensors"))
    np.testing.assert_allclose(load_file(last)["b_v"], np.arange(5), atol=1e-6)


def test_explain(command):
    done = command("explain build --schedule --data train.jsonl --batch 2 --target cpu")
    assert done.code == 0
    for text in ("encode.Node: forward, level", "U [20, 8]: ", "forward, a level of the recursion: 1"):
        assert text in done.out
    assert "schedule of 2 samples" in done.out and "encode.Node/0 row=0 rows=" in done.out
    both = command("explain build --schedule").out
    assert "target sm_90a" in both and "registers for weights" in both and "ns a vertex" in both


def test_no_compiler_is_imported_to_run(workplace):
    code = """
import sys
for name in ("tvm", "tvm_ffi", "lark"):
    sys.modules[name] = None
import dnc
m = dnc.load("build", device="vm")
m.attach("train.jsonl")
print(m.step([0, 1]), m.sync() > 0, m.evaluate().samples, len(m.predict([3, 4])["label"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(TREE.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.stderr == "" and done.stdout == "None True 12 2\n"


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
