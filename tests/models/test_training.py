"""Every example learns: `dnc run` on made data makes its loss smaller, on the reference VM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dnc.kernel_cache
from benchmarks.model_data import MAKERS, program_of, samples
from dnc.cli import execute
from dnc.compiler import read_program
from dnc.runtime.outside import pulled_fields
from tests.models.sizes import SIZES, SMALL, settings
from tests.support.models import EXAMPLES

EPOCHS, SAMPLES = 8, 6


FROM_OUTSIDE = ("token_vectors",)
"""What `dnc run` cannot train. It is not found out here, which would take every process of tests seconds."""


def test_what_has_values_from_outside() -> None:
    programs = {name: read_program(EXAMPLES / f"{program_of(name)}.dn", {})[1] for name in MAKERS}
    assert sorted(name for name in MAKERS if pulled_fields(programs[name])) == list(FROM_OUTSIDE)


@pytest.mark.parametrize("name", sorted(set(MAKERS).difference(FROM_OUTSIDE)))
def test_dnc_run_makes_the_loss_smaller(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setattr("dnc.api.runs.draw_curves", lambda events, path: None)
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    sizes = [f"--set={key}={value}" for key, value in settings(name, SMALL).items()]
    assert execute(["compile", str(EXAMPLES / f"{program_of(name)}.dn"), "-o", "build", *sizes]) == 0
    data = samples(name, dnc.load("build", "vm").program, SAMPLES, SIZES)
    Path("data.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in data))
    how = f"--device vm --epochs {EPOCHS} --batch 3 --optimizer adam --lr 0.02 --run-dir run"
    code = execute(["run", "build", "--data", "data.jsonl", "--dev", "data.jsonl", *how.split()])
    assert code == 0, capsys.readouterr().err
    events = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = [event["dev"]["loss"] for event in events if "dev" in event]
    assert len(losses) == EPOCHS
    assert losses[-1] < 0.9 * losses[0] and losses[-1] == min(losses), losses
