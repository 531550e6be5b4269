"""benchmarks/applications: what a device cannot run is a line of the table, not the end of a run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from benchmarks.applications import ablation
from benchmarks.applications.data import DataSets
from benchmarks.applications.measure import Effort
from benchmarks.applications.tables import tables
from dnc.diagnostics import fail


@pytest.mark.usefixtures("nothing_to_collect")
def test_a_variant_that_does_not_run_is_a_line(tmp_path, monkeypatch):
    names = {size: ["", *ablation.ablated(size).values()] for size in (128, 256)}
    for size, found in names.items():
        for name in found:
            (tmp_path / "builds" / (name or f"tree-{size}")).mkdir(parents=True)

    def load(path, device, **given):
        if path.name == "tree-128-clusters-of-16":
            raise fail("it holds 0 clusters of 16 workers of this build at once; 1 were asked for")
        return SimpleNamespace(device="a made-up GPU", name=path.name)

    def speed(model, size, effort, on_gpu):
        return {"rate": 10.0 * size, "kernel_us": 4.0}  # of batches of its own: `launches` counts

    def launches(model, size):
        if model.name == "tree-128-without-fuse" and size == 128:
            raise fail("cannot launch 64 workers")
        return {"kernel_us": 10.0 if "fuse" in model.name else 5.0}

    monkeypatch.setattr(ablation.dnc, "load", load)
    monkeypatch.setattr(ablation, "dnc_speed", speed)
    monkeypatch.setattr(ablation, "launches", launches)
    monkeypatch.setattr(ablation, "alone", lambda model, size, effort: {"rate": 2.0 * size})
    monkeypatch.setattr(ablation, "ABLATED", (128, 256))
    monkeypatch.setattr(DataSets, "attach", lambda self, model, name, most: [])
    found = list(ablation.measure(tmp_path / "builds", DataSets(None), "cuda", Effort(0.0, 1)))[1:]
    lines = [each.pop("line") for each in found]
    assert sum("holds 0 clusters" in line for line in lines) == 1
    assert sum("cannot launch 64 workers" in line for line in lines) == 1
    assert {each["hidden"] for each in found} == {128, 256}
    assert [each["batch"] for each in found if each["variant"] == "without fuse"] == [1, 128, 1, 128]
    result = {"what": "applications: ablation", "points": found, "device": "a made-up GPU"}
    out = tmp_path / "ablation.json"
    out.write_text(json.dumps({**result, "date": "2026-01-01T00:00", "commit": "abc"}))
    shown = tables([out])
    assert "| clusters of 16 | does not run | does not run | (1.00) | (1.00) |" in shown
    assert "| without fuse | (2.00) | does not run | (2.00) | (2.00) |" in shown
    assert "- without fuse, h 128: cannot launch 64 workers\n" in shown
