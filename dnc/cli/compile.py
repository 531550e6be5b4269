"""dnc compile: a `.dn` file becomes a build folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.cli.options import Settings, names_of, settings_of
from dnc.cli.under_way import under_way
from dnc.diagnostics import fail

if TYPE_CHECKING:
    from dnc.compiler import CompileReport

Names = list[str] | None
DEFAULT = Path("build")


def compile_command(
    program: Annotated[Path, typer.Argument(help="The model, a .dn file.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The build folder to write. [default: build]")
    ] = None,
    target: Annotated[
        Names, typer.Option(help="cpu, cuda, cuda:sm_90a, ...; several by commas. [default: cpu]")
    ] = None,
    settings: Settings = None,
    mode: Annotated[
        str, typer.Option(help="train, or infer: a smaller and faster build that cannot train.")
    ] = "train",
    precision: Annotated[
        str,
        typer.Option(
            help="Of products on a GPU: fp32; on tensor cores bf16, tf32, or tf32x3, as exact as fp32."
        ),
    ] = "fp32",
    without: Annotated[Names, typer.Option(help="Leave out an optional pass.")] = None,
    cluster: Annotated[
        int | None, typer.Option(help="Workers of a cluster; 0: the whole GPU is one replica.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Make a GPU's plan for batches of so many samples, 1 for the least latency."
        ),
    ] = None,
    repeat: Annotated[
        bool | None,
        typer.Option(
            "--repeat/--no-repeat",
            help="Have every worker make what a product of the recursion needs whole, or workers exchange"
            " it. [default: what is expected to be faster]",
            show_default=False,
        ),
    ] = None,
    print_ir_after: Annotated[Names, typer.Option(help="Print the IR behind these passes.")] = None,
    print_ir_after_all: Annotated[
        bool, typer.Option("--print-ir-after-all", help="Print the IR behind every pass.")
    ] = False,
    stop_after: Annotated[str | None, typer.Option(help="Stop behind this pass; no build.")] = None,
    dump_dir: Annotated[Path | None, typer.Option(help="Write the IR behind every pass there.")] = None,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="Say what could not be hoisted, fused, kept on the chip.")
    ] = False,
    time_passes: Annotated[
        bool, typer.Option("--time-passes", help="Print how long every pass took, and the kernels.")
    ] = False,
) -> None:
    """Compile a model for one or several targets."""
    from dnc.compiler import MODES, PlanOptions, compile_model
    from dnc.passes.pass_manager import PassOptions

    if mode not in MODES:
        raise fail(f"--mode: found '{mode}', expected {' or '.join(MODES)}")
    print_after = ("all",) if print_ir_after_all else names_of("--print-ir-after", print_ir_after)
    if stop_after is not None and dump_dir is None and stop_after not in print_after:
        print_after = (*print_after, stop_after)
    left_out, values = names_of("--without", without), settings_of(settings)
    if out is None and stop_after is None:
        _check_default(program, values)
    targets = names_of("--target", target) or ("cpu",)
    options = PlanOptions(
        without=left_out, cluster=cluster, mode=mode, precision=precision, batch=batch, repeat=repeat
    )
    prints = bool(print_after) or time_passes
    with under_way(sys.stderr.isatty() and not prints) as tell:
        show = PassOptions(
            print_after=print_after,
            stop_after=stop_after,
            dump_dir=dump_dir,
            time_passes=time_passes,
            tell=tell,
        )
        report = compile_model(program, out or DEFAULT, targets, values, options, show)
    if remarks:
        for remark in report.remarks:
            print(remark.diagnostic(), file=sys.stderr)
    _tell(report)


def _check_default(program: Path, settings: Mapping[str, int]) -> None:
    """DiagnosticError where a build of another model would be replaced that nobody has named."""
    from dnc.compiler import read_program
    from dnc.runtime.build import model_of

    known = model_of(DEFAULT)
    if known is not None and known != read_program(program, settings)[1].name:
        raise fail(
            f"{DEFAULT}: holds a build of another model, {known}", "name the folder to write: -o FOLDER"
        )


def _tell(report: CompileReport) -> None:
    for warning in report.warnings:
        print(warning, file=sys.stderr)
    for target in report.targets:
        size = sum(target.files.values()) / 1024
        origin = "from the cache" if target.cached else f"{target.seconds:.1f} s"
        kernels = f"{len(target.files)} files, {size:,.0f} KiB" if target.files else "no kernels"
        print(f"{report.model} for {target.name}: {kernels}, {origin}", file=sys.stderr)
    if report.build is not None:
        print(f"wrote {report.build} ({report.seconds:.1f} s)", file=sys.stderr)
