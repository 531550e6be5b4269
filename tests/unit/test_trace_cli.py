"""dnc run --trace and dnc trace: messages, and tables of a trace."""

from __future__ import annotations

import json

import pytest

from dnc.runtime.trace.chrome import shift_to_host


def trace(workers: int = 2, replicas: int = 1) -> dict[str, object]:
    """A trace of one launch of 10 us: 4 us of work, 3 of waiting, 1 of loading on every worker."""
    events: list[dict[str, object]] = []
    for worker in range(workers):
        place = {"ph": "X", "pid": 2 + worker % replicas, "tid": 100 + worker}
        events += [
            {**place, "name": "launch 0", "cat": "launch", "ts": 0, "dur": 10, "args": {"launch": 0}},
            {**place, "name": "load weights", "cat": "setup", "ts": 0, "dur": 1},
            {**place, "name": "encode/0", "cat": "work", "ts": 2, "dur": 4},
            {**place, "name": "grid_barrier", "cat": "wait", "ts": 6, "dur": 3},
            {"ph": "M", "name": "process_name", "pid": place["pid"], "tid": 0, "args": {"name": "replica"}},
            {
                "ph": "M",
                "name": "thread_name",
                **{k: place[k] for k in ("pid", "tid")},
                "args": {"name": "w"},
            },
        ]
    host = {"ph": "X", "pid": 1, "tid": 1, "cat": "host", "ts": 0, "dur": 30, "args": {"batches": 3}}
    events.append({**host, "name": "encode"})
    about = {"dnc": "1", "model": "Tree", "device": "a device", "target": "cpu"}
    return {"traceEvents": events, "otherData": about}


def test_tables(command, workplace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    (workplace / "t.json").write_text(json.dumps(trace()))
    done = command("trace t.json")
    assert done.code == 0 and done.error == "" and done.out.isascii()
    assert "Tree on a device (cpu)\n1 launches: 10.0 us each" in done.out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.out.splitlines() if "|" in line]
    assert ["encode/0", "work", "2", "8.0", "40.0 %", "4.00", "4.00"] in rows
    assert ["grid_barrier", "wait", "2", "6.0", "30.0 %", "3.00", "3.00"] in rows
    assert ["replica, w", "40.0 %", "30.0 %", "10.0 %", "20.0 %"] in rows
    assert ["encode", "1", "3", "30.0", "10.0"] in rows


def test_names_are_text_not_markup(command, workplace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    found = json.loads(json.dumps(trace()).replace("encode", "[/red]:x:[b]").replace("a device", "[/b]"))
    for event in found["traceEvents"]:
        if event["name"] == "process_name":
            event["args"]["name"] = "[/i]"
    (workplace / "t.json").write_text(json.dumps(found))
    done = command("trace t.json")
    assert done.code == 0, done.error
    assert "Tree on [/b] (cpu)\n" in done.out and "| [/i], w " in done.out
    assert "| [/red]:x:[b]/0 |" in done.out and "| [/red]:x:[b] |" in done.out


def test_names_are_whole_on_a_narrow_terminal(command, workplace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (workplace / "t.json").write_text(json.dumps(trace()))
    done = command("trace t.json")
    assert done.out.isascii() and max(map(len, done.out.splitlines())) <= 60


def test_many_workers_are_shown_as_replicas(command, workplace):
    (workplace / "t.json").write_text(json.dumps(trace(40)))
    short, long = command("trace t.json"), command("trace t.json --workers")
    assert "mean of a replica" in short.out and short.out.count("replica, w") == 0
    assert long.out.count("replica, w") == 40


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "error: t.json: there is no such file"),
        (b"{", "error: t.json: not JSON: Input data was truncated"),
        (b"\xff\xfe", "error: t.json: not JSON:"),
        (b'{"otherData": {"a": ' + b"[" * 200_000, "error: t.json: not JSON: nested too deeply"),
        (b"[]", "error: t.json: not a trace of dnc: Expected `object`, got `array`"),
        (b'{"traceEvents": [{}]}', "error: t.json: not a trace of dnc: Object missing required field `ph`"),
        (
            b'{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "args": {"launch": "x"}}]}',
            "error: t",
        ),
        (b'{"traceEvents": []}', "error: t.json: not a trace of dnc, which dnc run --trace writes"),
    ],
)
def test_what_is_no_trace(command, workplace, content, message):
    if content is not None:
        (workplace / "t.json").write_bytes(content)
    done = command("trace t.json")
    assert done.code == 2 and done.out == "" and done.error.startswith(message)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--trace out.json", "error: reference VM, 1 x 1 workers: has no clock; a timeline needs the device"),
        ("--trace-batches 3", "error: --trace-batches: there is no timeline; ask for one with --trace FILE"),
        ("--predict out.json --trace out.json", "error: --trace: out.json has another use here"),
        ("--trace build", "error: build: is a directory, expected a file to write"),
        ("--run-dir out --trace out", "error: --trace: out has another use here"),
        ("--trace link", "error: link: there is no directory"),
        (f"--trace {'t' * 250}", f"error: {'t' * 250}: cannot be written: File name too long"),
        (f"--trace {'t' * 300}", f"error: {'t' * 300}: cannot be written: File name too long"),
        ("--trace nowhere/out.json", "error: nowhere/out.json: there is no directory nowhere"),
        ("--trace train.jsonl", "error: train.jsonl: is read here too and would be lost"),
        ("--trace build/out.json", "error: build/out.json: lies in the build"),
        ("--trace out.json --trace-batches 0", "error: Invalid value for '--trace-batches'"),
        ("--trace out.json --trace-batches 9999", "error: 9999 batches to trace, expected 1 to 1000"),
    ],
)
def test_mistakes(command, workplace, options, message):
    (workplace / "link").symlink_to(workplace / "nowhere" / "out.json")
    done = command(f"run build --data train.jsonl --device vm {options}")
    assert done.code == 2 and done.error.splitlines()[-1].startswith(message)
    assert not (workplace / "out.json").exists() and not (workplace / "runs").exists()


def test_launches_of_a_gpu_begin_no_earlier_than_they_were_asked_for():
    class Clocked:
        def __init__(self, asked, begin):
            self.launch, self.begin = type("", (), {"asked": asked}), begin

    assert shift_to_host([Clocked(1000, 10), Clocked(1200, 190), Clocked(1400, 450)]) == 1010
