"""What benchmarks share: where results go, and what is said with every one of them.

In: measurements. Out: a JSON file with date, device, commit and command, written whole. Imports
nothing but the standard library, so that scripts run where only the runtime is installed.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dnc.runtime.cores import cores as cores

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


def commit() -> str:
    """The commit of the working tree, with a + behind it if there are changes; "unknown" without git."""
    try:
        found = [
            subprocess.run(
                ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found[0] + ("+" if found[1] else "")


def processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def stamp(device: str, known_commit: str | None) -> dict[str, Any]:
    """What every result says about where it comes from."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "processor": processor(),
        "cores": cores(),
        "commit": known_commit or commit(),
        "command": " ".join(["python", *sys.orig_argv[1:]]),  # as it was typed
        "python": platform.python_version(),
    }


def default_out(device: str, name: str) -> Path:
    """results/<date>-<device>-<name>.json"""
    short = device.lower().split(",")[0].replace("nvidia ", "").replace(" ", "-")
    return RESULTS / f"{datetime.now(UTC).date()}-{short}-{name}.json"


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes a result beside its place, then moves it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".tmp")
    made.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    made.replace(path)
