"""dnc trace: what a timeline says, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dnc.api import Summary, WorkerTime

# Of more workers than this the table shows the replicas.
MOST_WORKERS = 16


def trace(
    file: Annotated[Path, typer.Argument(help="A trace that dnc run --trace wrote.")],
    workers: Annotated[
        bool, typer.Option("--workers", help="A line for every worker, also of many.")
    ] = False,
) -> None:
    """Sum up a timeline: time by opcode, idle workers."""
    from dnc.api import read_summary

    show(read_summary(file), Console(), workers)


def show(summary: Summary, console: Console, all_workers: bool = False) -> None:
    """Prints the tables; names are text, not markup."""
    about, times = summary.about, summary.launch_us
    console.print(Text(f"{about.get('model')} on {about.get('device')} ({about.get('target')})"))
    console.print(
        f"{len(times)} launches: {sum(times) / len(times):,.1f} us each, "
        f"{min(times):,.1f} to {max(times):,.1f}",
        highlight=False,
    )
    console.print(_opcodes(summary), _workers(summary, all_workers), _host(summary), sep="\n")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.ASCII2, title_justify="left", title_style="")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    return table


def _opcodes(summary: Summary) -> Table:
    table = _table("time by opcode", "opcode", "kind", "count", "us", "share", "mean us", "longest")
    whole = sum(worker.total for worker in summary.workers) or 1.0
    for each in summary.opcodes:
        table.add_row(
            Text(each.name),
            each.category,
            f"{each.count:,}",
            f"{each.total:,.1f}",
            _percent(each.total / whole),
            f"{each.mean:,.2f}",
            f"{each.longest:,.2f}",
        )
    return table


def _workers(summary: Summary, every: bool) -> Table:
    """Shares of every worker; of many only the means of their replicas."""
    grouped = len(summary.workers) > MOST_WORKERS and not every
    title = "workers, mean of a replica" if grouped else "workers"
    table = _table(title, "worker", "work", "wait", "load", "idle", *(["most idle"] if grouped else []))
    groups: dict[str, list[WorkerTime]] = {}
    for number, each in enumerate(summary.workers):
        groups.setdefault(each.replica if grouped else str(number), []).append(each)
    for found in groups.values():
        name = found[0].replica if grouped else f"{found[0].replica}, {found[0].worker}"
        total = sum(worker.total for worker in found) or 1.0
        parts = (
            sum(worker.work for worker in found),
            sum(worker.wait for worker in found),
            sum(worker.setup for worker in found),
            sum(worker.idle for worker in found),
        )
        most = max(worker.idle / (worker.total or 1.0) for worker in found)
        shown = [*(part / total for part in parts), *([most] if grouped else [])]
        table.add_row(Text(name), *(_percent(share) for share in shown))
    return table


def _host(summary: Summary) -> Table:
    table = _table("host", "", "times", "batches", "us", "us a batch")
    for each in summary.host:
        batches = summary.host_batches[each.name]
        table.add_row(
            Text(each.name),
            f"{each.count:,}",
            f"{batches:,}",
            f"{each.total:,.1f}",
            f"{each.total / max(batches, 1):,.1f}",
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
