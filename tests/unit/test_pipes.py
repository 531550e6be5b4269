"""Data and predictions through pipes, and as JSON for who answers with it."""

import json
import os
import stat
import subprocess
import sys
import threading

import numpy as np

import dnc.api

TRAIN = "run build --data train.jsonl --device vm --batch 4"


def test_predictions_on_standard_output(command, workplace):
    """They alone, and no file: a file with that name is ./-"""
    command(TRAIN)
    run = "run build --data dev.jsonl --device vm --predict"
    done = command(f"{run} -")
    assert done.code == 0 and len(done.events) == 5 and "wrote -" not in done.error
    assert not (workplace / "-").exists()
    assert command(f"{run} ./-").out == "" and (workplace / "-").read_text() == done.out


def test_data_from_standard_input(command, workplace):
    command(TRAIN)
    run = [sys.executable, "-m", "dnc", "run", "build", "--device", "vm", "--data", "-"]
    data = (workplace / "dev.jsonl").read_bytes()
    expected = command("run build --data dev.jsonl --device vm --predict -").out
    assert (
        subprocess.run([*run, "--predict", "-"], input=data, capture_output=True).stdout == expected.encode()
    )
    broken = subprocess.run([*run, "--eval"], input=data + b"{", capture_output=True)
    assert broken.returncode == 2 and broken.stderr.splitlines()[-1].startswith(b"/dev/stdin:6:2: error:")


def test_an_import_from_a_pipe_into_a_pipe_or_a_file(workplace):
    """The samples alone: what is said of them goes to standard error, and not over them."""
    run, text = f"{sys.executable} -m dnc import tagged", b"a|X\nb|Y c|Z\nVienna|I-LOC is|O\n"
    lines = [
        b'{"words":[{"form":"a","tag":"X"}]}',
        b'{"words":[{"form":"b","tag":"Y"},{"form":"c","tag":"Z"}]}',
    ]
    for options, out in (("- -o -", "a.jsonl"), ("/dev/stdin -o /dev/stdout", "b.jsonl")):
        done = subprocess.run(f"{run} {options} > {out}", shell=True, input=text, capture_output=True)
        assert done.returncode == 0 and (workplace / out).read_bytes().splitlines()[:2] == lines
        assert done.stderr.startswith(b"/dev/stdin -> /dev/stdout: 3 samples, ") and not done.stdout
    assert len((workplace / "a.jsonl").read_bytes().splitlines()) == 3 and not (workplace / "-").exists()


def test_predictions_into_a_pipe_and_through_a_link(command, workplace):
    command(TRAIN)
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((workplace / "pipe").read_text()), daemon=True)
    reader.start()
    assert command("run build --data dev.jsonl --device vm --predict pipe").code == 0
    reader.join(10)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode) and len(read[0].splitlines()) == 5
    (workplace / "link").symlink_to("target.jsonl")
    assert command("run build --data dev.jsonl --device vm --predict link").code == 0
    assert (workplace / "link").is_symlink() and (workplace / "target.jsonl").read_text() == read[0]


def test_outputs_as_json(command, workplace):
    """As `--predict` writes them: words of classes, digits of a float32, what is absent as null."""
    command(TRAIN)
    lines = command("run build --data dev.jsonl --device vm --predict -").events
    model = dnc.load("build", "vm")
    model.restore(dnc.api.find_checkpoint("build", None))
    found = dnc.as_json(model, model.predict("dev.jsonl"))
    assert json.loads(json.dumps(found)) == lines and len(lines) == 5


def test_a_terminal_without_unicode_and_none_at_all(command, workplace):
    """Texts are in UTF-8 wherever they go, and who closes standard output has no use for them."""
    explain = [sys.executable, "-m", "dnc", "explain", "build"]
    narrow = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(explain, capture_output=True, env=narrow)
    assert done.returncode == 0 and done.stdout.decode() == command("explain build").out
    closed = subprocess.run(f"{' '.join(explain)} >&-", shell=True, capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")
    full = subprocess.run(f"{' '.join(explain)} > /dev/full", shell=True, capture_output=True)
    assert (full.returncode, full.stderr) == (2, b"error: standard output: No space left on device\n")


def test_numbers_that_json_has_not(workplace):
    infinite = np.array([1.5, -np.inf, np.nan], np.float32)
    model = dnc.load("build", "vm")
    model.attach("train.jsonl")
    assert dnc.as_json(model, {"p": [infinite]}) == [{"p": [1.5, None, None]}]
