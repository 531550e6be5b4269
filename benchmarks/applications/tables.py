"""Results as tables in Markdown, for docs/performance.md.

In: JSON files of parts. Out: text. A row of the ablation is a variant, its columns are sizes and batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def tables(paths: Iterable[Path]) -> str:
    """A table for every file, with its device and date."""
    made = []
    for path in paths:
        result = json.loads(path.read_text())
        part, found = result["what"].rpartition(" ")[2], result["points"]
        where = f"{result['device']}, {result['date'][:10]}, {result['commit']}"
        made.append(f"{part}: {where} (`{path.name}`)\n")
        make = {"ablation": _ablation, "workers": _workers, "inference": _inference}.get(part, _training)
        made.append(make(found))
    return "\n".join(made)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _training(found: list[Found]) -> str:
    head = ("model", "data", "batch", "dnc, samples/s", "launch, us", "GPU idle")
    head = (*head, "PyTorch", "its graph", "times")
    rows = []
    for point in found:
        own, peer = point["dnc"], point.get("peer") or {}
        best = max(peer.get("rate", 0.0), peer.get("graph rate", 0.0))
        idle = own.get("idle_of_gpu_time")
        times = f"{own['rate'] / best:.1f}" if best else "-"
        speed = _number(own["rate"]), _number(own.get("kernel_us")), "-" if idle is None else f"{idle:.0%}"
        peers = _number(peer.get("rate")), _number(peer.get("graph rate")), times
        rows.append((point["model"], point["data"], str(point["batch"]), *speed, *peers))
    return _table(head, rows)


def _inference(found: list[Found]) -> str:
    head = ("model", "batch", "stream, samples/s", "calls", "read in the call", "known shapes")
    head = (*head, "launch, us", "launches at once", "GPU idle")
    rows = []
    for point in found:
        kernel = point.get("kernel_us")
        name = point["model"] + (f", {point['pass']} of a set" if "pass" in point else "")
        idle = point.get("idle_of_gpu_time")
        stream, calls = (None, point["rate"]) if "pass" not in point else (point["rate"], None)
        speeds = point.get("stream", stream), calls, point.get("new"), point.get("known"), kernel
        shown = [_number(value) for value in speeds]
        at_once = f"{point['at_once']:.1f}" if "at_once" in point else "-"
        rows.append((name, str(point["batch"]), *shown, at_once, "-" if idle is None else f"{idle:.0%}"))
    return _table(head, rows)


def _workers(found: list[Found]) -> str:
    head = ("model", "batch", "launch, us", "work", "waiting", "loading weights", "idle")
    rows = []
    for point in found:
        shares = point["shares"]
        parts = [f"{shares[name]:.0%}" for name in ("work", "wait", "setup", "idle")]
        rows.append((point["model"], str(point["batch"]), _number(point["launch_us"]), *parts))
    return _table(head, rows)


def _ablation(found: list[Found]) -> str:
    ran = [point for point in found if "dnc" in point]
    places = sorted({(point["hidden"], point["batch"]) for point in ran})
    variants = list(dict.fromkeys(point["variant"] for point in found))
    by = {(point["variant"], point["hidden"], point["batch"]): point["dnc"] for point in ran}
    failed = {(point["variant"], point["hidden"]) for point in found if "problem" in point}

    def cell(variant: str, place: tuple[int, int]) -> str:
        own, plain = by.get((variant, *place)), by.get((variants[0], *place))
        if own is None:
            return "does not run" if (variant, place[0]) in failed else "-"
        if plain is None:
            return f"{own['rate']:,.0f}"
        if variant == variants[0]:
            return f"{own['rate']:,.0f} ({_number(own.get('kernel_us'))} us)"
        kernels = own.get("kernel_us"), plain.get("kernel_us")
        shown = [f"{own['rate'] / plain['rate']:.2f}"] if "rate" in own else []
        return " ".join([*shown, *([f"({kernels[0] / kernels[1]:.2f})"] if all(kernels) else [])])

    head = ("left out", *(f"h {hidden}, batch {batch}" for hidden, batch in places))
    rows = ((variant, *(cell(variant, place) for place in places)) for variant in variants)
    whys = [
        f"- {point['variant']}, h {point['hidden']}: {point['problem']}\n"
        for point in found
        if "problem" in point
    ]
    return _table(head, rows) + "".join(["\n", *whys] if whys else [])
