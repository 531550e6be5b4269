"""The command line of the benchmark: compiles builds on one machine, measures them on another.

Every part prints its table line by line and writes a JSON file after every line, so that what was measured
before a time limit is kept. A part that fails leaves the others to run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.applications import points
from benchmarks.applications.tables import tables
from dnc.diagnostics import DiagnosticError

PARTS = ("trees", "vpps", "fixed", "whole", "inference", "ablation", "workers")


def main() -> None:
    options = arguments()
    if options.command == "compile":
        from benchmarks.applications.builds import compile_builds

        compile_builds(options.builds, options.names, options.target, options.traced)
        return
    if options.command == "table":
        print(tables(options.results), end="")
        return
    failed = [part for part in options.parts if not measured(part, options)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.applications")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("compile", help="where the compiler is installed")
    making.add_argument("builds", type=Path)
    making.add_argument("--names", nargs="+", choices=points.BUILDS, default=[], metavar="NAME")
    making.add_argument("--target", default="cuda:sm_90a", help="one target")
    making.add_argument("--traced", action="store_true", help="traced kernels beside all builds")
    showing = commands.add_parser("table", help="results as Markdown")
    showing.add_argument("results", type=Path, nargs="+")
    running = commands.add_parser("run", help="needs neither TVM nor Lark on a GPU")
    running.add_argument("builds", type=Path)
    running.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    running.add_argument("--trees", type=Path, help="JSONL of SST, as of `dnc import ptb-trees`")
    running.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    running.add_argument("--seconds", type=float, default=0.4, help="of a repeat")
    running.add_argument("--repeats", type=int, default=3)
    running.add_argument("--no-torch", action="store_true")
    running.add_argument("--out", type=Path, default=common.RESULTS, help="the folder of the results")
    running.add_argument("--commit", help="where the working tree came from, if git cannot say it")
    return parser.parse_args()


def lines_of(part: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a part finds, line by line."""
    import attrs

    from benchmarks.applications import ablation, inference, training
    from benchmarks.applications.data import DataSets
    from benchmarks.applications.measure import Effort

    data, device = DataSets(options.trees), options.device
    effort = Effort(options.seconds, options.repeats)
    if part == "inference":
        return inference.measure(options.builds, data, device, effort)
    if part == "ablation":
        return ablation.measure(options.builds, data, device, attrs.evolve(effort, repeats=1))
    if part == "workers":
        return ablation.workers(options.builds, data, device)
    parts = {"trees": points.TREES, "vpps": points.VPPS, "fixed": points.FIXED, "whole": points.WHOLE}
    chosen = parts[part]
    if options.no_torch:
        chosen = tuple(attrs.evolve(point, peer="") for point in chosen)
    return training.measure(chosen, options.builds, data, device, effort, part in ("fixed", "whole"))


def measured(part: str, options: argparse.Namespace) -> bool:
    """Whether a part went through to its end."""
    result: dict[str, Any] = {"what": f"applications: {part}", "seconds": options.seconds, "points": []}
    out: Path | None = None
    try:
        for found in lines_of(part, options):
            print(found.pop("title", None) or found.pop("line"), flush=True)
            if not found:
                continue
            result["points"].append(found)
            device = found.get("device", result.get("device", ""))
            if out is None:
                result = common.stamp(device, options.commit) | {"load": os.getloadavg()[0]} | result
                short = device if options.device == "cuda" else "cpu"
                out = options.out / common.default_out(short, f"applications-{part}").name
            common.write(out, result)
    except DiagnosticError as error:
        print(f"{part}: {error}", flush=True)
        return False
    return True
