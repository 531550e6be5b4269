"""The first experiment, whose kernel is not made by the compiler: it still builds."""

import json
import subprocess
import sys
from pathlib import Path

from dnc.ir.isa import ABORT_FIELDS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "experiment0.py"


def test_the_kernel_builds_without_a_spill(tmp_path):
    command = [sys.executable, str(SCRIPT), "build", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "no spill" in done.stdout, done.stderr
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["abort_fields"] == list(ABORT_FIELDS) and manifest["registers"] <= 255
    assert (tmp_path / "kernel.cubin").stat().st_size > 10_000
