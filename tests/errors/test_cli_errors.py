"""Mistakes on the command line: exit code 2, the exact message, nothing written."""

import hashlib
import json

import pytest

import dnc
from dnc.ir.plan import PRECISIONS
from dnc.runtime.build import FORMAT
from dnc.runtime.checkpoint import Course, Position
from tests.support.command_line import TREE

RUN = "run build --device vm --data"
SIZE = "expected a dimension and its size, as hidden=512"
PLAN_PASSES = (
    "fuse, reassociate, select-tiles, plan-weights, mailboxes, polls, reductions, select-instructions"
)
PASSES = f"canonicalize, inline, merge, hoist, differentiate, share, {PLAN_PASSES}"
INFER_PASSES = PASSES.replace("differentiate", "drop-training")
OPTIONAL = "canonicalize, inline, merge, hoist, share, fuse, reassociate, mailboxes, polls, reductions"
TARGETS = "cuda:sm_80, cuda:sm_86, cuda:sm_89, cuda:sm_90a, cuda:sm_100a, cuda:sm_120"

FLOAT = "expected a positive number that a 32-bit float holds"
ONE_OF = "error: expected one of --latency and --throughput"
NO_BUILD = "error: none: there is no such build; make one with dnc compile"
LOST = "is read here too and would be lost; choose another file to write"

DIGITS = "9" * 5000  # more than Python makes a number of
A_RUN = "is a file, expected the folder of a run"
A_PRECISION = f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"

COMMANDS = [
    (
        f"compile {TREE} --target tpu",
        f"error: unknown target 'tpu'\n  targets: cpu, cuda (= cuda:sm_90a), {TARGETS}",
    ),
    (f"compile {TREE} --set hidden", f"error: --set: found 'hidden', {SIZE}"),
    (f"compile {TREE} --set hidden=2.5", f"error: --set: found 'hidden=2.5', {SIZE}"),
    (f"compile {TREE} --set hidden={DIGITS}", "error: --set: hidden has 5000 digits, expected a size of at"),
    (f"bench build --data train.jsonl --latency --batch {DIGITS}", f"error: --batch: found '{DIGITS}'"),
    (f"compile {TREE} --set hidden=2,hidden=3", "error: --set: hidden is set twice"),
    (f"compile {TREE} --precision fp16", f"error: precision: found 'fp16', expected {A_PRECISION}"),
    (
        f"compile {TREE} --precision tf32",
        "error: precision tf32 is for GPUs, and no target is one: a CPU computes in fp32",
    ),
    (f"compile {TREE} --mode fast", "error: --mode: found 'fast', expected train or infer"),
    (
        f"compile {TREE} --mode infer --stop-after differentiate",
        f"error: there is no pass 'differentiate'\n  passes: {INFER_PASSES}",
    ),
    (f"compile {TREE} --without fusion", f"error: there is no pass 'fusion'\n  passes: {PASSES}"),
    (
        f"compile {TREE} --without differentiate",
        f"error: pass 'differentiate' cannot be left out\n  these can: {OPTIONAL}",
    ),
    (f"compile {TREE} --cluster 3", "error: not every target has clusters of 3\n  cpu has none"),
    (
        f"compile {TREE} --cluster 3 --target cuda",
        "error: not every target has clusters of 3\n  cuda:sm_90a has those of 2, 4, 8, 16",
    ),
    (
        f"compile {TREE} --dump-dir {TREE}",
        f"error: {TREE}: is a file, expected a folder for the IR behind every pass",
    ),
    (
        f"compile {TREE} -o out --dump-dir out/ir",
        "error: out/ir: is where the build is written; choose another folder for the IR",
    ),
    (
        f"compile {TREE} --batch 8",
        "error: a plan for batches of 8 is made for GPUs, and no target is one",
    ),
    (f"compile {TREE} --batch 8 --target cuda --cluster 8", "error: cluster and batch exclude each other"),
    (
        f"compile {TREE} --batch 2147483648 --target cuda",
        "error: batch: found 2147483648, expected less than 2147483648",
    ),
    (f"compile {TREE} --cluster 0", "error: clusters are for GPUs, and no target is one"),
    (f"compile {TREE} --target cpu,", "error: --target: found 'cpu,', which has an empty entry"),
    (f"compile {TREE} --without ,hoist", "error: --without: found ',hoist', which has an empty entry"),
    ("compile none.dn", "error: none.dn: there is no such file"),
    (f"compile {TREE} -o thesis", "error: thesis: exists and is not a build; nothing was written"),
    ("check none.dn", "error: none.dn: there is no such file"),
    (
        "import xml a -o b",
        "error: unknown format 'xml'; the formats are 'conll', 'conllu-trees', 'conllu-words', 'csv', "
        "'ptb-trees', 'sick', 'tagged', 'text'",
    ),
    (
        "import tagged a -o b --fields tag",
        "error: --fields: found 'tag', expected a field and its new name, as tag=label",
    ),
    ("import tagged a -o b --fields tag=a,tag=b", "error: --fields: tag is named twice"),
    (
        "import csv a -o b --classes 3",
        "error: --classes does not go with the format 'csv'; its options are: --columns, --delimiter, "
        "--quotes, --numeric, --tokens, --unlabelled, --structure, --seed, --rare, --counted-in, --longest",
    ),
    ("bench build --data train.jsonl", ONE_OF),
    (
        "bench build --data train.jsonl --latency --throughput",
        ONE_OF,
    ),
    (
        "bench build --data train.jsonl --throughput --prepared",
        "error: --prepared goes with --latency: throughput is that of prepared structures anyway",
    ),
    ("bench build --data train.jsonl --throughput --calls 3", "error: --calls goes with --latency"),
    ("bench build --data train.jsonl --latency --seconds 1", "error: --seconds goes with --throughput"),
    (
        "bench build --data train.jsonl --latency --batch ,",
        "error: --batch: found ',', which has an empty entry",
    ),
    (
        "bench build --data train.jsonl --latency --batch 1,,8",
        "error: --batch: found '1,,8', which has an empty entry",
    ),
    (
        "bench build --data train.jsonl --latency --batch 1,0",
        "error: --batch: found '0', expected the samples of a call, 1 or more",
    ),
    ("bench build --data train.jsonl --latency --calls 0", "error: --calls: found 0, expected 1 or more"),
    ("bench build --data train.jsonl --latency --warmup -1", "error: --warmup: found -1, expected 0 or more"),
    (
        "bench build --data train.jsonl --throughput --seconds 0",
        "error: --seconds: found 0, expected a positive number",
    ),
    (
        "bench none --data train.jsonl --latency",
        NO_BUILD,
    ),
    ("bench build --data none.jsonl --latency", "none.jsonl: error: there is no such file"),
    ("tune build --emit 2 --dry-run", "error: --emit and --dry-run exclude each other"),
    ("tune build --emit 2 --rounds 3", "error: --emit and --rounds exclude each other: nothing is timed"),
    (
        "generate build --data train.jsonl --end x --checkpoint c.safetensors --run-dir r",
        "error: --checkpoint and --run-dir exclude each other: both name the weights",
    ),
    ("run none --data train.jsonl", NO_BUILD),
    ("run thesis --data train.jsonl", "error: thesis: not a build: manifest.json is missing"),
    ("run train.jsonl --data train.jsonl", "error: train.jsonl: is a file, expected the folder of a build"),
    (
        f"run {TREE} --data train.jsonl",
        f"error: {TREE}: is a file, expected the folder of a build\n"
        f"  dnc compile {TREE} -o build/ makes one of a program",
    ),
    ("run build --data train.jsonl --device tpu", "error: unknown device 'tpu'; devices: cpu, cuda, vm"),
    ("run build --data train.jsonl --quux", "error: No such option: --quux (see dnc run --help)"),
    ("run build", "error: Missing option '--data' (see dnc run --help)"),
    ("train build", "error: No such command 'train'; it is dnc run BUILD --data FILE (see dnc run --help)"),
    ("serve build", "error: No such command 'serve' (see dnc --help)"),
    ("explain build --target cuda:sm_80", "error: build: has no target cuda:sm_80, only cpu, cuda:sm_90a"),
    (
        f"{RUN} train.jsonl --eval",
        "error: build: no run of this model in runs/; train it first, or give --checkpoint",
    ),
    (f"{RUN} train.jsonl --eval --run-dir thesis", "error: thesis: holds no checkpoint"),
    (f"{RUN} -", "error: --data: - is standard input, which can be read once; training reads data again"),
    (
        f"{RUN} - --eval --weights train.jsonl",
        "error: --data: - is standard input, which can be read once; --weights reads data again",
    ),
    (f"{RUN} train.jsonl --eval --predict out", "error: --eval and --predict exclude each other"),
    (f"{RUN} train.jsonl --eval --seed 3", "error: --seed is for training; with --eval nothing is trained"),
    (
        f"{RUN} train.jsonl --predict out --min-count 3",
        "error: --min-count is for training; with --predict nothing is trained",
    ),
    (
        f"{RUN} train.jsonl --eval --checkpoint c.safetensors --run-dir r",
        "error: --checkpoint and --run-dir exclude each other: both name the weights",
    ),
    (
        f"{RUN} train.jsonl --eval --epochs 3",
        "error: --epochs is for training; with --eval nothing is trained",
    ),
    (
        f"{RUN} train.jsonl --predict out --save-every 2",
        "error: --save-every is for training; with --predict",
    ),
    (
        f"{RUN} train.jsonl --optimizer adamax",
        "error: unknown optimizer 'adamax'; optimizers: sgd, momentum, nesterov, adagrad, adam, adamw",
    ),
    (
        f"{RUN} train.jsonl --lr fast",
        "error: Invalid value for '--lr': found 'fast', expected a number (see ",
    ),
    (f"{RUN} train.jsonl --epochs 1.5", "error: Invalid value for '--epochs': found '1.5', expected a whole"),
    (f"{RUN} train.jsonl --lr 0", "error: --lr: found 0, expected a positive number"),
    (f"{RUN} train.jsonl --clip nan", "error: --clip: found nan, expected a positive number"),
    (f"{RUN} train.jsonl --lr nan", f"error: --lr: found nan, {FLOAT}"),
    (f"{RUN} train.jsonl --lr inf", f"error: --lr: found inf, {FLOAT}"),
    (f"{RUN} train.jsonl --lr 1e39", f"error: --lr: found 1e+39, {FLOAT}"),
    (f"{RUN} train.jsonl --lr 1e-60", f"error: --lr: found 1e-60, {FLOAT}"),
    (f"{RUN} train.jsonl --batch 0", "error: --batch: found 0, expected 1 or more"),
    (f"{RUN} train.jsonl --batch 9999999999", "error: --batch: found 9999999999, expected less than"),
    (f"{RUN} train.jsonl --seed -1", "error: --seed: found -1, expected 0 or more"),
    (f"{RUN} train.jsonl --epochs 0", "error: --epochs: found 0, expected 1 or more"),
    (f"{RUN} train.jsonl --checkpoint none", "error: none: there is no such file"),
    (f"{RUN} train.jsonl --weights thesis/chapter", "error: thesis/chapter: not a safetensors file"),
    (f"{RUN} train.jsonl --checkpoint thesis", "error: thesis: is a directory, expected a file"),
    (f"{RUN} train.jsonl --weights thesis", "error: thesis: is a directory, expected a file"),
    (f"{RUN} train.jsonl --predict thesis", "error: thesis: is a directory, expected a file to write"),
    (f"{RUN} train.jsonl --predict no/out", "error: no/out: there is no directory no"),
    (f"{RUN} train.jsonl --predict train.jsonl", f"error: train.jsonl: {LOST}"),
    ("import ptb-trees thesis/chapter -o ./thesis/chapter", f"error: thesis/chapter: {LOST}"),
    (f"compile {TREE} --set hidden=\u0663", f"error: --set: found 'hidden=\u0663', {SIZE}"),
    (f"{RUN} none.jsonl", "none.jsonl: error: there is no such file"),
    (f"{RUN} dags.jsonl", "dags.jsonl:1:"),
    (f"{RUN} train.jsonl --dev broken.jsonl", "broken.jsonl:2:"),
    (f"{RUN} train.jsonl --run-dir build/run", "error: build/run: lies in the build"),
    (f"{RUN} train.jsonl --run-dir=", "error: a run folder is named by an empty text"),
    ("run --resume=", "error: a run folder is named by an empty text"),
    ("explain build --memory inf", "error: --memory: found inf, expected GiB"),
    (f"{RUN} train.jsonl --run-dir build", "error: build: lies in the build"),
    (f"{RUN} train.jsonl --run-dir train.jsonl", f"error: train.jsonl: {A_RUN}"),
    (f"{RUN} train.jsonl --eval --run-dir train.jsonl", f"error: train.jsonl: {A_RUN}"),
    (f"{RUN} train.jsonl --resume train.jsonl", f"error: train.jsonl: {A_RUN}"),
    (f"{RUN} train.jsonl --run-dir train.jsonl/run", "error: train.jsonl/run: cannot be written: Not a"),
]


@pytest.fixture
def files(workplace):
    (workplace / "thesis").mkdir()
    (workplace / "thesis" / "chapter").write_text("x" * 100)
    (workplace / "dags.jsonl").write_text('{"x": [1], "target": 2}\n')
    good = (workplace / "dev.jsonl").read_text().splitlines()[0]
    (workplace / "broken.jsonl").write_text(f"{good}\n{good[:-4]}\n")
    return workplace


def snapshot(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def last_lines(error):
    """The message, without the lines that say what was done before it."""
    kept = [
        line
        for line in error.splitlines()
        if " on reference VM" not in line and not line.startswith("weights of")
    ]
    return "\n".join(kept)


@pytest.mark.parametrize("line, message", COMMANDS, ids=[line[:120] for line, _ in COMMANDS])
def test_mistakes(command, files, line, message):
    before = snapshot(files)
    done = command(line)
    assert done.code == 2 and done.out == ""
    found = last_lines(done.error)
    assert found.startswith(message) and "Traceback" not in found
    assert snapshot(files) == before


@pytest.mark.parametrize(
    "given, setting",
    [
        ("--set hidden=3", "hidden=3"),
        ("--set=hidden=3", "hidden=3"),
        ("--hidden 3", "hidden=3"),
        ("--hidden=3", "hidden=3"),
        ("--hidden", "hidden=SIZE"),
        ("--bogus 3", None),
    ],
)
def test_sizes_are_set_elsewhere(command, files, given, setting):
    done = command(f"run build --data train.jsonl {given}")
    note = f"  the sizes of a model are set as it is compiled: dnc compile PROGRAM --set {setting}\n"
    assert done.code == 2 and done.error.endswith(f"(see dnc run --help)\n{note if setting else ''}")
    assert command(f"run none {given}").code == 2  # a build that is not there has no sizes


def test_checkpoints_of_other_models(command, workplace):
    assert command(f"{RUN} train.jsonl --run-dir first").code == 0
    command(f"compile {TREE} -o wide --set hidden=8,embed=4")
    command(f"compile {TREE} -o same --set hidden=4,embed=4")
    text = TREE.read_text()
    (workplace / "relu.dn").write_text(text.replace("sigmoid(o) * tanh(c)", "sigmoid(o) * relu(c)"))
    command("compile relu.dn -o relu --set hidden=4,embed=4")
    (workplace / "other.dn").write_text(text.replace("TreeLSTM", "Other"))
    command("compile other.dn -o other --set hidden=4,embed=4")
    evaluate = "--device vm --data dev.jsonl --eval --checkpoint first/last.safetensors"
    assert command(f"run same {evaluate}").code == 0
    for build, message in (
        ("wide", "error: first/last.safetensors: W is [12, 4], expected [24, 4]\n"),
        ("relu", "error: first/last.safetensors: a checkpoint of another program called TreeLSTM"),
        ("other", "error: first/last.safetensors: a checkpoint of model TreeLSTM; this build is of Other"),
    ):
        done = command(f"run {build} {evaluate}")
        assert done.code == 2 and last_lines(done.error).startswith(message)


def test_a_run_is_not_overwritten(command, workplace):
    assert command(f"{RUN} train.jsonl --run-dir first").code == 0
    before = snapshot(workplace)
    for_build = command("run first --data train.jsonl")
    assert last_lines(for_build.error) == (
        "error: first: not a build: manifest.json is missing\n"
        "  it holds a run: --run-dir first beside the build, or dnc run --resume first"
    )
    done = command(f"{RUN} train.jsonl --run-dir first")
    assert done.code == 2 and snapshot(workplace) == before
    choice = "dnc run --resume first goes on with it; else choose another --run-dir"
    assert last_lines(done.error) == f"error: first: holds a run already\n  {choice}"
    done = command(f"{RUN} train.jsonl --checkpoint first/last.safetensors --seed 5 --epochs 2")
    assert done.code == 2 and "--seed 5: the run of first/last.safetensors has seed 1" in done.error


def test_a_build_of_another_model_is_not_replaced_unasked(command, workplace):
    assert command(f"compile {TREE}").code == 0 and command(f"compile {TREE} --set hidden=8").code == 0
    text = (workplace / TREE).read_text(encoding="utf-8").replace("model TreeLSTM", "model Mine")
    (workplace / "mine.dn").write_text(text, encoding="utf-8")
    done = command("compile mine.dn")
    assert done.code == 2 and "error: build: holds a build of another model, TreeLSTM" in done.error
    assert command("compile mine.dn -o build").code == 0


def test_builds_of_another_version(command, workplace, monkeypatch):
    foreign = "error: build: its kernels are of another version of dnc than this one; compile it again\n"
    with monkeypatch.context() as patch:
        patch.setattr("dnc.compiler.VERSION", "9.0")
        assert command(f"{RUN} train.jsonl").error == foreign
    manifest = workplace / "build" / "manifest.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "format": 7, "dnc": "9.0"}))
    done = command(f"{RUN} train.jsonl")
    assert done.code == 2
    assert (
        done.error
        == f"error: build: a build of format 7 (dnc 9.0), expected {FORMAT} (dnc 0.1.0); compile it again\n"
    )
    values["targets"]["cpu"]["plan"] = "0"
    manifest.write_text(json.dumps(values))
    done = command(f"{RUN} train.jsonl")
    assert done.code == 2 and done.error == foreign
    values["targets"]["cpu"]["options"]["later"] = 1
    manifest.write_text(json.dumps(values))
    done = command(f"{RUN} train.jsonl")
    assert done.code == 2 and done.error == foreign


@pytest.mark.parametrize(
    "options",
    [
        {"residency": 5},
        {"residency": "x"},
        {"tile": {}},
        {"tile": 0},
        {"batch": "x"},
        {"workers": -1},
        {"cluster": 5},
        {"without": None},
        {"without": 3},
        {"precision": "x"},
        {"mode": []},
    ],
    ids=str,
)
def test_options_that_no_build_has(command, workplace, options):
    foreign = "error: build: its kernels are of another version of dnc than this one; compile it again\n"
    manifest = workplace / "build" / "manifest.json"
    values = json.loads(manifest.read_text())
    for target in values["targets"].values():
        target["options"] |= options
    manifest.write_text(json.dumps(values))
    done = command("explain build")
    assert (done.code, done.out, done.error) == (2, "", foreign)


@pytest.mark.parametrize("targets", [None, 5, "cpu", ["cpu"]])
def test_a_manifest_without_targets_is_replaced(command, workplace, targets):
    folder = workplace / "other"
    folder.mkdir()
    manifest = {"format": 1, "dnc": "0", "model": "TreeLSTM", "targets": targets, "candidates": targets}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = command(f"compile {TREE} -o other --set hidden=4,embed=4")
    assert done.code == 0 and (folder / "cpu").is_dir(), done.error


def test_builds_that_are_nested_too_deeply(command, workplace):
    remarks = workplace / "build" / "remarks.json"
    manifest = workplace / "build" / "manifest.json"
    remarks.write_text("[" * 200_000)
    values = json.loads(manifest.read_text())
    values["files"]["remarks.json"] = hashlib.sha256(remarks.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(values))
    damaged = "the build is damaged here; compile it again\n"
    assert command("explain build").error == f"error: build/remarks.json: {damaged}"
    manifest.write_text("[" * 200_000)
    assert command("explain build").error == f"error: build/manifest.json: {damaged}"
    done = command(f"compile {TREE}")
    assert done.error == "error: build: exists and is not a build; nothing was written\n"


def test_no_gpu(command, workplace, monkeypatch):
    manifest = workplace / "build" / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["targets"]["cpu"]
    manifest.write_text(json.dumps(values))
    monkeypatch.setattr("dnc.runtime.devices._gpu", lambda number: (0, None, "no NVIDIA driver is installed"))
    for_both = "  dnc compile --target cpu,cuda makes kernels for both\n"
    for device, helps in (("", for_both), (" --device cuda", "")):
        done = command(f"run build --data train.jsonl{device}")
        assert done.code == 2
        problem = "error: build: has kernels for cuda:sm_90a; no NVIDIA driver is installed\n"
        assert done.error == problem + helps
    done = command("run build --data train.jsonl --device cpu")
    assert done.error == f"error: build: has no kernels for the CPU, only for cuda:sm_90a\n{for_both}"
    monkeypatch.setattr("dnc.runtime.devices._gpu", lambda number: (0, "sm_80", ""))
    done = command("run build --data train.jsonl")
    assert done.error == (
        "error: build: has kernels for cuda:sm_90a; the GPU here is sm_80\n"
        "  compile it with --target cuda:sm_80\n"
    )
    (workplace / "cpu").mkdir()


def test_the_gpu_is_taken_only_if_it_is_there(command, workplace, monkeypatch):
    monkeypatch.setattr("dnc.runtime.devices._gpu", lambda number: (0, None, "no NVIDIA driver is installed"))
    done = command("run build --data train.jsonl")  # this build holds no kernels, see the fixture
    assert done.error == "error: build: holds no kernels for cpu; compile it again\n"
    monkeypatch.setattr("dnc.runtime.devices._gpu", lambda number: (0, "sm_90", ""))
    done = command("run build --data train.jsonl")
    assert done.error == "error: build: holds no kernels for cuda:sm_90a; compile it again\n"


def test_memory(command, workplace):
    done = command(f"{RUN} train.jsonl --memory 1")
    assert done.code == 0
    (workplace / "long.dn").write_text(TREE.read_text())
    command("compile long.dn -o big --set hidden=256,embed=4")
    done = command("run big --device vm --data train.jsonl --memory 1")
    assert done.code == 2 and "the parameters with their gradients need" in done.error
    assert "the largest is U [1280, 512]: 2.5 MiB" in done.error


def test_parameters_that_no_memory_holds(command, workplace):
    """The numbers are told before anything is allocated."""
    assert command(f"compile {TREE} -o big --set hidden=5000,embed=4").code == 0
    done = command("run big --device vm --data train.jsonl --memory 1000")
    assert done.code == 2 and "MiB are there" in done.error
    assert "the largest is U [25000, 10000]: 953.7 MiB" in done.error
    assert command(f"compile {TREE} -o huge --set hidden=100000000,embed=4").code == 0
    done = command("run huge --device vm --data train.jsonl")
    assert done.code == 2 and "a pool holds at most 32 GiB" in done.error
    (workplace / "far.jsonl").write_text('{"word": 400000000, "label": 1}\n')
    done = command(f"{RUN} far.jsonl --memory 1000")
    assert done.code == 2 and "the largest is E [400000001, 4]" in done.error
    assert not (workplace / "runs").exists()


def test_nothing_to_train(command, workplace):
    assert command(f"{RUN} train.jsonl --run-dir first").code == 0
    before = snapshot(workplace)
    done = command(f"{RUN} train.jsonl --run-dir first --checkpoint first/last.safetensors")
    assert done.code == 2 and "error: nothing to train: 1 of 1 epochs are done" in done.error
    assert snapshot(workplace) == before


def test_going_on_inside_an_epoch_needs_the_same_data(command, workplace):
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    model.step([0, 1])
    model.sync()
    model.position, model.course = Position(0, 1, 1), Course(2, 12)
    model.save("mid.safetensors")
    done = command(f"{RUN} dev.jsonl --checkpoint mid.safetensors")
    assert done.code == 2
    assert "training is inside an epoch over 12 samples; dev.jsonl has 5" in done.error
    assert command(f"{RUN} train.jsonl --checkpoint mid.safetensors").code == 0


def test_a_first_step_that_is_not_finite_is_no_matter_of_the_rate(command, workplace):
    program = (
        (workplace / TREE)
        .read_text()
        .replace("cross_entropy(logits(t)", "cross_entropy(log(0 * logits(t) - 1)")
    )
    (workplace / "negative.dn").write_text(program)
    assert command("compile negative.dn -o negative --set hidden=4,embed=4").code == 0
    done = command("run negative --device vm --data train.jsonl --batch 4")
    assert done.code == 2 and "error: step 1: the loss is nan" in done.error
    assert "its update was not made; no update was before it" in done.error and "--lr" not in done.error


def test_training_that_diverges(command, workplace):
    done = command(f"{RUN} train.jsonl --optimizer sgd --lr 1e38 --batch 4")
    assert done.code == 2 and "its update was not made; a smaller learning rate" in done.error
