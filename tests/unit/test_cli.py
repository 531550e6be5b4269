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
from dnc.runtime.launches import Launches
from tests.support.command_line import TREE

TRAIN = "run build --data train.jsonl --device vm --batch 4"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


COMMANDS = ("compile", "run", "bench", "check", "explain", "fmt", "import", "lsp", "opt", "trace")


def start(*arguments, **options):
    """A command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(TREE.parents[1])}
    command = [sys.executable, "-m", "dnc", *arguments]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_narrow_terminal(command, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "40")
    done = command(f"{name} --help")
    assert done.code == 0 and done.out.isascii()
    usage, *lines = done.out.splitlines()
    assert usage.startswith(f"Usage: dnc {name}") and max(map(len, lines)) <= 50


def test_help_shows_the_defaults(command):
    text = " ".join(command("run --help").out.split())
    for default in ("32", "adagrad", "that of the optimizer", "runs/...", "the best there is"):
        assert f"[default: {default}]" in text
    assert "[default: cpu]" in command("compile --help").out
    summary = command("--help").out
    assert all(name in summary for name in COMMANDS) and "..." not in summary.split("\n", 1)[1]
    assert command("--version").out == f"dnc {dnc.__version__}\n"


@pytest.mark.parametrize("again", ["-o b", "--out b", "--mode infer"])
def test_an_option_whose_first_value_would_be_lost(command, workplace, again):
    done = command(f"compile {TREE} --out a --mode train {again}")
    name = "--mode" if "mode" in again else "--out"
    assert (done.code, done.error) == (2, f"error: {name} is given more than once (see dnc compile --help)\n")
    assert not (workplace / "a").exists()
    assert command(f"compile {TREE} --out a {again} --out c --help").code == 0
    assert "--no-labels is given more" not in command(f"check {TREE} --no-labels").error
    done = command(f"check {TREE} --labels --no-labels")
    assert (done.code, "--labels is given more than once" in done.error) == (2, True)
    several = "--set hidden=3 --set embed=5 --time-passes --time-passes"
    done = command(f"compile {TREE} --stop-after hoist {several}")
    assert done.code == 0 and "hidden = 3" in done.out and "embed = 5" in done.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run build --resume --clip inf", "--resume needs a value; found the option --clip"),
        ("run build --data --epochs=3", "--data needs a value; found the option --epochs=3"),
        ("run build --resume --help", "--resume needs a value; found the option --help"),
        ("check tree.dn --data --no-labels", "--data needs a value; found the option --no-labels"),
        ("compile tree.dn --set d=3 --set -o out", "--set needs a value; found the option -o"),
        ("run build --epochs", "Option '--epochs' requires an argument"),
    ],
)
def test_an_option_whose_value_was_forgotten(command, line, message):
    """The next option was taken for it, and what was said was of that one's value."""
    done = command(line)
    name = line.split()[0]
    assert (done.code, done.out, done.error) == (2, "", f"error: {message} (see dnc {name} --help)\n")


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


def test_what_cannot_be_kept_leaves_nothing(command, monkeypatch, workplace):
    monkeypatch.setattr("dnc.kernel_cache._emit", lambda plan: {"k": b"1"})
    monkeypatch.setattr("dnc.kernel_cache._INDEX", "no folder/index.json")
    assert command(f"compile {TREE}").code == 0 and not list((workplace / ".cache" / "kernels").iterdir())


def test_looking_into_the_compiler(command, workplace):
    done = command(f"compile {TREE} -o out --stop-after hoist --time-passes")
    assert done.code == 0 and "# after hoist" in done.out and "canonicalize:" in done.out
    assert not (workplace / "out").exists()
    done = command(f"compile {TREE} -o out --stop-after select-tiles --time-passes")
    timed = [line.partition(":")[0] for line in done.out.splitlines() if " ms" in line]
    assert timed.index("share") < timed.index("fuse") < timed.index("reassociate")
    done = command(f"compile {TREE} -o out --time-passes")
    assert [line.partition(":")[0] for line in done.out.splitlines() if line.endswith(" ms")][-1] == "emit"
    done = command(f"compile {TREE} -o out --print-ir-after-all")
    assert all(f"# after {name}" in done.out for name in ("differentiate", "fuse", "plan-weights"))
    done = command(f"compile {TREE} -o out --stop-after fuse")
    assert "segment encode.Node/0" in done.out
    command(f"compile {TREE} -o out --dump-dir dump --without hoist")
    names = {str(path.relative_to(workplace / "dump")) for path in contents(workplace / "dump")}
    assert {"01-canonicalize.ir", "05-differentiate.ir", "cpu/03-plan-weights.ir"} <= names
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
        "run.toml",
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


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_saves_and_can_be_resumed(command, workplace, monkeypatch, number):
    launch, count = Launches.start, []

    def interrupted(self, schedules, batches):
        count.append(1)
        if len(count) == 2:
            os.kill(os.getpid(), number)
        return launch(self, schedules, batches)

    command(f"{TRAIN} --epochs 2 --run-dir whole")
    with monkeypatch.context() as patch:
        patch.setattr(Launches, "start", interrupted)
        patch.setattr("dnc.runtime.batches.GROUP_BATCHES", 1)
        done = command(f"{TRAIN} --epochs 2 --run-dir parts")
    assert done.code == 128 + number
    assert "to go on: --resume parts\n" in done.error
    assert done.events[-1] == {"event": "end", "finished": False, "step": 2}
    assert command(f"{TRAIN} --epochs 2 --run-dir parts --checkpoint parts/last.safetensors").code == 0
    whole, parts = (load_file(workplace / name / "last.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("more", [[signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]])
def test_a_terminal_that_is_closed_may_send_several(command, workplace, monkeypatch, more):
    launch, count = Launches.start, []

    def interrupted(self, schedules, batches):
        count.append(1)
        for number in [signal.SIGHUP, *more] if len(count) == 2 else []:
            os.kill(os.getpid(), number)
        return launch(self, schedules, batches)

    monkeypatch.setattr(Launches, "start", interrupted)
    monkeypatch.setattr("dnc.runtime.batches.GROUP_BATCHES", 1)
    done = command(f"{TRAIN} --epochs 2 --run-dir parts")
    assert done.code == 128 + more[-1] and "to go on: --resume parts\n" in done.error
    assert done.events[-1] == {"event": "end", "finished": False, "step": 2}


def test_an_interrupt_before_training_is_told(command, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dnc.api.load", interrupted)
    done = command(TRAIN)
    assert (done.code, done.out, done.error) == (130, "", "interrupted\n")


def test_training_outlives_its_reader_by_a_checkpoint(workplace):
    line = [*TRAIN.split(), "--epochs", "100000", "--run-dir", "cut"]
    with start(*line, stdout=subprocess.PIPE) as running:
        first = json.loads(running.stdout.readline())
        running.stdout.close()
        error = running.stderr.read()
        assert first["event"] == "start" and running.wait(60) == 141
    assert "standard output cannot be written to: Broken pipe" in error
    assert "to go on: --resume cut\n" in error
    assert (workplace / "cut" / "last.safetensors").exists() and "Traceback" not in error


def test_explain_into_a_closed_pipe(workplace):
    with start("explain", "build", "--schedule", stdout=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == "" and running.wait(60) == 0


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


TAGGER = """model Tagger(vocab, width = 4, tags = 3)
struct Word = Word(form: token<vocab>, tag: class<tags>)
struct Sentence = Sentence(words: [Word])
param E: table[vocab, width], V: [tags, width]
fn scores(w: Word) = V @ E[w.form]
loss sum(w in all(Word)) cross_entropy(scores(w), w.tag)
output tags = [argmax(scores(w)) for w in all(Word)], forms = [w.form for w in all(Word)]
output after = [w.next.tag for w in all(Word)]
"""


def test_predictions_speak_the_language_of_the_data(command, workplace):
    (workplace / "tagger.dn").write_text(TAGGER)
    sentence = {"words": [{"form": "a", "tag": "Det"}, {"form": "dog", "tag": "Noun"}]}
    (workplace / "words.jsonl").write_text(json.dumps(sentence) + "\n")
    assert command("compile tagger.dn -o tagger").code == 0
    run = "run tagger --device vm --data words.jsonl"
    assert command(f"{run} --epochs 20 --lr 0.5 --run-dir r").code == 0
    assert command(f"{run} --run-dir r --predict out.jsonl").code == 0
    assert json.loads((workplace / "out.jsonl").read_text()) == {
        "tags": ["Det", "Noun"],
        "forms": ["a", "dog"],
        "after": ["Noun", None],
    }
    model = dnc.load("tagger", "vm", checkpoint="r/last.safetensors")
    found = model.predict("words.jsonl")
    assert found["forms"][0].tolist() == [1, 2] and found["after"][0].tolist() == [1, -1]


def test_outputs_of_vertices_are_in_the_order_of_the_file(command, workplace):
    """The readers put children first; a flat sample may have them in any order."""
    (workplace / "every.dn").write_text(TREE.read_text() + "\noutput w = [t.label for t in all(Tree)]\n")
    assert command("compile every.dn -o every --set hidden=4,embed=4").code == 0
    model = dnc.load("every", "vm")
    down = {
        "Tree": {
            "arm": ["Node", "Leaf", "Node", "Leaf", "Leaf"],
            "word": [None, "a", None, "b", "c"],
            "label": [0, 1, 2, 3, 4],
            "left": [1, None, 3, None, None],
            "right": [2, None, 4, None, None],
        },
        "root": 0,
    }
    nested = {"word": "a", "label": 3}
    model.attach([nested, down, nested, down])
    found = model.predict()["w"]
    assert [each.tolist() for each in found] == [[3], [0, 1, 2, 3, 4], [3], [0, 1, 2, 3, 4]]
    assert model.predict([1, 0])["w"][0].tolist() == [0, 1, 2, 3, 4]


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
    assert "target cuda:sm_90a" in both and "registers for weights" in both and "ns a vertex" in both


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


def test_check_reads_what_other_systems_write(command, workplace):
    text = TREE.read_text()
    (workplace / "marked.dn").write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    done = command("check marked.dn --data train.jsonl")
    assert done.code == 0 and done.error == ""
