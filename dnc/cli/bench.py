"""dnc bench: how long predictions take, from structures to values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.cli.options import Device, names_of
from dnc.diagnostics import fail

if TYPE_CHECKING:
    from dnc.api.bench import Latency, Throughput


CALLS, WARM_UP, SECONDS = 1000, 100, 2.0


def bench(
    build: Annotated[Path, typer.Argument(help="The build folder; best one of --mode infer.")],
    data: Annotated[Path, typer.Option(help="Samples to predict, JSONL.")],
    latency: Annotated[bool, typer.Option("--latency", help="Time single calls.")] = False,
    throughput: Annotated[bool, typer.Option("--throughput", help="Samples a second.")] = False,
    batch: Annotated[
        list[str] | None, typer.Option(help="Samples of a call; several by commas. [default: 1]")
    ] = None,
    calls: Annotated[int | None, typer.Option(help=f"Calls that are timed. [default: {CALLS}]")] = None,
    warmup: Annotated[int | None, typer.Option(help=f"Calls before them. [default: {WARM_UP}]")] = None,
    seconds: Annotated[
        float | None, typer.Option(help=f"How long throughput is measured. [default: {SECONDS:g}]")
    ] = None,
    prepared: Annotated[
        bool, typer.Option("--prepared", help="Read the structures before the clock starts.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the order, and of weights where none are given.")] = 1,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights and vocabulary.")] = None,
    device: Device = None,
    json_: Annotated[bool, typer.Option("--json", help="A line of JSON for every batch size.")] = False,
    replicas: Annotated[int | None, typer.Option(help="Copies of the weights.", min=1, hidden=True)] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of a replica.", min=1, hidden=True)] = None,
) -> None:
    """Time predictions, copies and encoding included."""
    from dnc import api
    from dnc.api.bench import as_json, measure_latency, measure_throughput, read_lines
    from dnc.api.outputs import lines_of

    if latency == throughput:
        raise fail("expected one of --latency and --throughput")
    if throughput and prepared:
        raise fail("--prepared goes with --latency: throughput is that of prepared structures anyway")
    others = {"--seconds": seconds} if latency else {"--calls": calls, "--warmup": warmup}
    for option, given in others.items():
        if given is not None:
            raise fail(f"{option} goes with {'--throughput' if latency else '--latency'}")
    calls, warmup = CALLS if calls is None else calls, WARM_UP if warmup is None else warmup
    seconds = SECONDS if seconds is None else seconds
    if not 0 < seconds < float("inf"):
        raise fail(f"--seconds: found {seconds:g}, expected a positive number")
    for option, value, least in (("--calls", calls, 1), ("--warmup", warmup, 0), ("--seed", seed, 0)):
        if not least <= value < 2**31:
            raise fail(f"{option}: found {value}, expected {least} or more")
    sizes = [_size(text) for text in (names_of("--batch", batch) or ("1",))]
    numbered = read_lines(data) if latency else []
    samples = [sample for _, sample in numbered]
    model = api.load(build, device, checkpoint=checkpoint, seed=seed, replicas=replicas, workers=workers)
    if latency:  # a mistake is at its line, whatever sample a call has
        with lines_of(str(data), [line for line, _ in numbered]):
            model.read(samples, labels_required=False)
    elif model.vocabularies is None:
        model.read(data, labels_required=False)
    found: list[Latency | Throughput] = []
    for size in sizes:
        if latency:
            measured: Latency | Throughput = measure_latency(
                model, samples, batch=size, calls=calls, warmup=warmup, seed=seed, prepared=prepared
            )
        else:
            measured = measure_throughput(model, data, batch=size, seconds=seconds, seed=seed)
        found.append(measured)
        if json_:
            print(as_json(measured), flush=True)
    if not json_:
        _show(found)


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 0 < int(text) < 2**31):
        raise fail(f"--batch: found '{text}', expected the samples of a call, 1 or more")
    return int(text)


def _show(found: list[Latency | Throughput]) -> None:
    """A table; on a pipe without colours."""
    from rich.console import Console
    from rich.table import Table

    from dnc.api.bench import Latency

    first = found[0]
    if isinstance(first, Latency):
        read = "read before" if first.prepared else "read in the call"
        title = f"microseconds a call, {first.calls:,} calls behind {first.warmup:,}, structures {read}"
        table = Table(title=title, title_justify="left", caption_justify="left")
        for name in ("batch", "of", "p50", "p90", "p99", "mean", "least", "new shapes"):
            table.add_column(name, justify="left" if name == "of" else "right")
        for each in found:
            assert isinstance(each, Latency)
            for what, time in (("call", each.call), ("kernel", each.kernel)):
                if time is not None:
                    values = (time.p50, time.p90, time.p99, time.mean, time.least)
                    shown = [f"{value:,.1f}" for value in values]
                    new = f"{each.encoded:,}" if what == "call" else ""
                    table.add_row(f"{each.batch}" if what == "call" else "", what, *shown, new)
    else:
        table = Table(title="samples a second, prepared structures", title_justify="left")
        for name in ("batch", "samples", "seconds", "samples/s"):
            table.add_column(name, justify="right")
        for each in found:
            assert not isinstance(each, Latency)
            speed = f"{each.samples_per_second:,.1f}"
            table.add_row(f"{each.batch}", f"{each.samples:,}", f"{each.seconds:.2f}", speed)
    print(f"{first.model} on {first.device}", file=sys.stderr)
    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(table)
