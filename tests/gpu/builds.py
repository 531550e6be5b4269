"""The kernels that `tests/gpu` runs.

`python -m tests.gpu.builds emit FOLDER [NAME ...]` writes their CUDA text on a machine with TVM,
`python -m tests.gpu.builds compile FOLDER` compiles it wherever NVRTC is. The GPU machine then
needs neither TVM nor a toolkit: `DNC_GPU_BUILDS=FOLDER pytest tests/gpu`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from dnc.compiler import PlanOptions, make_plan, transform
from dnc.diagnostics import Source
from dnc.ir import lean
from dnc.ir.printer import print_program

EXAMPLES = Path(__file__).parents[2] / "examples"

# name -> (example, settings, options)
CASES: dict[str, tuple[str, dict[str, int], PlanOptions]] = {
    "treelstm-256": ("treelstm", {"hidden": 256, "embed": 256}, PlanOptions()),
    "treelstm-tf32": ("treelstm", {"hidden": 256, "embed": 256}, PlanOptions(precision="tf32")),
    "treelstm-tf32x3": ("treelstm", {"hidden": 256, "embed": 256}, PlanOptions(precision="tf32x3")),
    "treelstm-odd-tf32x3": (
        "treelstm",
        {"hidden": 72, "embed": 40},
        PlanOptions(cluster=8, precision="tf32x3"),
    ),
    # Columns that no block of a transposed product divides, rows for tensor cores.
    "treelstm-columns-tf32": (
        "treelstm",
        {"hidden": 64, "embed": 200},
        PlanOptions(cluster=8, precision="tf32"),
    ),
    "lstm2-tf32": ("lstm2", {"hidden": 100, "embed": 20}, PlanOptions(cluster=8, precision="tf32")),
    "treelstm-odd-tf32": (
        "treelstm",
        {"hidden": 72, "embed": 40},
        PlanOptions(cluster=8, residency="shared", precision="tf32"),
    ),
    "treelstm-bf16": ("treelstm", {"hidden": 256, "embed": 256}, PlanOptions(precision="bf16")),
    "treelstm-wide-bf16": ("treelstm", {"hidden": 512, "embed": 512}, PlanOptions(precision="bf16")),
    "treelstm-odd-bf16": (
        "treelstm",
        {"hidden": 72, "embed": 40},
        PlanOptions(cluster=8, residency="shared", precision="bf16"),
    ),
    "treelstm-registers-bf16": ("treelstm", {"hidden": 72, "embed": 40}, PlanOptions(precision="bf16")),
    "lstm2-bf16": ("lstm2", {"hidden": 100, "embed": 20}, PlanOptions(cluster=8, precision="bf16")),
    "treelstm-chip": ("treelstm", {"hidden": 48, "embed": 40}, PlanOptions(cluster=0)),
    "treelstm-shared": ("treelstm", {"hidden": 36, "embed": 20}, PlanOptions(cluster=8, residency="shared")),
    "treelstm-streamed": (
        "treelstm",
        {"hidden": 40, "embed": 24},
        PlanOptions(residency="streamed", window=256),
    ),
    # Weights come from L2 once for up to eight vertices.
    "tree_fc-streamed": (
        "tree_fc",
        {"hidden": 160},
        PlanOptions(cluster=0, workers=4, residency="streamed"),
    ),
    # Streamed weights on tensor cores, and levels that fill a tile; "256" for its large batches.
    "treelstm-256-streamed-tf32": (
        "treelstm",
        {"hidden": 256, "embed": 256},
        PlanOptions(cluster=0, workers=16, residency="streamed", precision="tf32"),
    ),
    "treelstm-unfused": ("treelstm", {"hidden": 16, "embed": 16}, PlanOptions(without=("fuse", "hoist"))),
    # Levels of cells alone, which have no products to wait for.
    "treelstm-cells": (
        "treelstm",
        {"hidden": 64, "embed": 64},
        PlanOptions(cluster=8, without=("fuse",), residency="streamed"),
    ),
    "treelstm-1024": ("treelstm", {"hidden": 1024, "embed": 1024}, PlanOptions()),
    "bilstm": ("bilstm_tagger", {"hidden": 24, "embed": 20}, PlanOptions()),
    "crf": ("crf_tagger", {"hidden": 24, "embed": 20}, PlanOptions()),
    "layer-norm": ("layer_norm_lstm", {"hidden": 72, "embed": 20}, PlanOptions(cluster=8)),
    "layer-norm-256": ("layer_norm_lstm", {"hidden": 256, "embed": 256}, PlanOptions()),
    "layer-norm-streamed": (
        "layer_norm_lstm",
        {"hidden": 72, "embed": 20},
        PlanOptions(cluster=8, residency="streamed"),
    ),
    "layer-norm-chip": ("layer_norm_lstm", {"hidden": 150, "embed": 20}, PlanOptions(cluster=0)),
    "lstm2": ("lstm2", {"hidden": 24, "embed": 20}, PlanOptions(cluster=8)),
    "lstm": ("lstm_classifier", {"hidden": 24, "embed": 20}, PlanOptions(cluster=0, workers=64)),
    "lstm-256": ("lstm_classifier", {"hidden": 256, "embed": 256}, PlanOptions()),
    "lstm-256-bf16": ("lstm_classifier", {"hidden": 256, "embed": 256}, PlanOptions(precision="bf16")),
    "gru": ("torch_gru", {"hidden": 72, "embed": 20}, PlanOptions(cluster=8, window=128)),
    "gru-unpushed": (
        "torch_gru",
        {"hidden": 72, "embed": 20},
        PlanOptions(cluster=8, without=("mailboxes",)),
    ),
    # Values that every worker makes in whole.
    "gru-repeated": ("gru_classifier", {"hidden": 72, "embed": 20}, PlanOptions(cluster=8, repeat=True)),
    "gru-repeated-odd": ("gru_classifier", {"hidden": 50, "embed": 50}, PlanOptions(batch=8)),
    "gru-repeated-bf16": (
        "gru_classifier",
        {"hidden": 64, "embed": 20},
        PlanOptions(cluster=8, repeat=True, precision="bf16"),
    ),
    "top_down": ("top_down", {}, PlanOptions(cluster=8)),
    "dag": ("dag", {}, PlanOptions()),
    # Runs of partial sums that lanes add up together: of vertices with several parents, and where neither
    # runs nor units fill what lanes have.
    "dag-chip": ("dag", {}, PlanOptions(cluster=0)),
    "treelstm-runs": ("treelstm", {"hidden": 150, "embed": 20}, PlanOptions(cluster=0, workers=72)),
    # Cells without products by blocks of units, of which neither these nor the runs are a multiple.
    "treelstm-blocks": ("treelstm", {"hidden": 152, "embed": 20}, PlanOptions(cluster=0, workers=72)),
    # Replicas beside each other, each with runs that a thread has under way together.
    "treelstm-beside": (
        "treelstm",
        {"hidden": 150, "embed": 20},
        PlanOptions(cluster=0, workers=33, residency="shared"),
    ),
    # On tensor cores, whose steps have as many columns as there is room for.
    "lstm-beside-tf32": (
        "lstm_classifier",
        {"hidden": 264, "embed": 64},
        PlanOptions(cluster=0, workers=33, residency="shared", precision="tf32"),
    ),
    "treelstm-chip-512": ("treelstm", {"hidden": 512, "embed": 512}, PlanOptions(batch=1)),
    # Weights in registers and shared memory together, of levels with many rows and with few: rows and columns
    # that fill neither; a slice of a recursion beside others.
    "treelstm-512-split": ("treelstm", {"hidden": 512, "embed": 512}, PlanOptions()),
    "treelstm-split": ("treelstm", {"hidden": 150, "embed": 20}, PlanOptions(batch=1, registers=20)),
    "childsum-split": ("childsum", {"hidden": 72, "embed": 20}, PlanOptions(batch=1, registers=4)),
    "treelstm-512-split-tf32": ("treelstm", {"hidden": 512, "embed": 512}, PlanOptions(precision="tf32")),
    "treelstm-split-tf32": (
        "treelstm",
        {"hidden": 150, "embed": 20},
        PlanOptions(batch=1, registers=20, precision="tf32"),
    ),
    "treelstm-split-bf16": (
        "treelstm",
        {"hidden": 150, "embed": 20},
        PlanOptions(batch=1, registers=14, precision="bf16"),
    ),
    # Operands that are polled while others have cells, which read little beside their runs.
    "rnn-runs": (
        "../benchmarks/applications/rnn",
        {"hidden": 150, "embed": 20},
        PlanOptions(cluster=0, workers=33),
    ),
    # Partial sums that a cluster adds up, of vertices with several parents.
    "td_lstm-tf32x3": (
        "td_lstm",
        {"hidden": 64, "embed": 20},
        PlanOptions(cluster=8, precision="tf32x3"),
    ),
    "childsum": ("childsum", {"hidden": 24, "embed": 20}, PlanOptions()),
    "decoder": ("../tests/support/decoder", {"hidden": 24, "embed": 20}, PlanOptions(cluster=8)),
    "decoder-chip": ("../tests/support/decoder", {}, PlanOptions(cluster=0)),
    "drawing": ("../tests/support/drawing", {"hidden": 24, "embed": 20}, PlanOptions(cluster=8)),
    # Names of C, a list that is averaged and attended to where a class is learned.
    "hidden-names": ("../tests/support/hidden_names", {"d": 40}, PlanOptions(cluster=8)),
    # Levels have loops apart from a product that streams its weights, of one recursion and of two.
    "language_model-apart": (
        "language_model",
        {"hidden": 40, "embed": 20, "vocab": 12000},
        PlanOptions(cluster=8),
    ),
    "strata-apart": (
        "encoder_decoder",
        {"hidden": 32, "embed": 20, "targets": 12000},
        PlanOptions(cluster=8),
    ),
    # Levels that push, and behind them some that do not.
    "strata-tree": (
        "tree_to_sequence",
        {"hidden": 32, "embed": 20, "targets": 300},
        PlanOptions(cluster=8),
    ),
    # Two recursions that have the same registers.
    "strata-registers": (
        "encoder_decoder",
        {"hidden": 64, "embed": 20, "targets": 30},
        PlanOptions(cluster=8, registers=16),
    ),
    # Recursions behind each other: pushed states, polled ones, directions apart in both.
    "strata": ("encoder_decoder", {"hidden": 32, "embed": 20, "targets": 300}, PlanOptions(cluster=8)),
    "strata-chip": (
        "encoder_decoder",
        {"hidden": 32, "embed": 20, "targets": 300},
        PlanOptions(cluster=0, workers=20),
    ),
    "strata-parts": (
        "char_tagger",
        {"hidden": 32, "half": 16, "char": 12, "mlp": 24},
        PlanOptions(cluster=8),
    ),
    # What is not zero, with its columns: as one replica over the chip and as clusters.
    "sparse": (
        "sparse_lstm",
        {"hidden": 150, "embed": 20, "chars": 30},
        PlanOptions(cluster=0, workers=33, residency="sparse", mode="infer"),
    ),
    "sparse-clusters": (
        "sparse_lstm",
        {"hidden": 264, "embed": 20, "chars": 30},
        PlanOptions(cluster=8, residency="sparse", mode="infer", precision="tf32"),
    ),
    # Where shared memory is lent between levels, and where something else multiplies by the weights, too.
    "sparse-lent": (
        "sparse_lstm",
        {"hidden": 520, "embed": 20, "chars": 12000},
        PlanOptions(cluster=0, workers=33, registers=0, mode="infer"),
    ),
    "sparse-outside": (
        "../tests/support/sparse_outside",
        {"hidden": 128, "chars": 6000},
        PlanOptions(cluster=8, registers=0, residency="sparse", mode="infer"),
    ),
    "sparse-1792": ("sparse_lstm", {}, PlanOptions(mode="infer")),
    "sparse-training": ("sparse_lstm", {"hidden": 72, "embed": 20, "chars": 30}, PlanOptions(cluster=8)),
    "tags": ("../tests/support/tags", {"vocab": 11}, PlanOptions()),
    "attention": ("attention", {"hidden": 40, "embed": 20, "targets": 300}, PlanOptions()),
    "additive": ("additive_attention", {"hidden": 40, "embed": 20, "targets": 300}, PlanOptions(cluster=8)),
    "mvrnn": ("mvrnn", {"width": 12}, PlanOptions()),
    "similarity": ("similarity", {"hidden": 40, "embed": 24}, PlanOptions()),
    "char_rnn": ("char_rnn", {"hidden": 24, "embed": 20}, PlanOptions(cluster=8)),
    "stack": ("rnn_stack", {"hidden": 40, "layers": 5, "chars": 30}, PlanOptions(cluster=8)),
    "stack-chip": ("rnn_stack", {"hidden": 150, "layers": 5, "chars": 30}, PlanOptions(cluster=0)),
    "language_model": ("language_model", {"hidden": 40, "embed": 20, "vocab": 12000}, PlanOptions()),
    # Several replicas without clusters; shared memory holds weights in levels, and is lent to others.
    "language_model-lent": (
        "language_model",
        {"hidden": 64, "embed": 20, "vocab": 14000},
        PlanOptions(cluster=0, workers=20, registers=0),
    ),
}

# Cases that also have a traced kernel, in a folder `traced` inside theirs.
TRACED = ("treelstm-256", "treelstm-chip", "bilstm")


def emit(folder: Path, names: list[str]) -> None:
    """Writes program, options and kernel text of every case."""
    from dnc.codegen.cuda_files import emit_sources
    from dnc.frontend.build import load_program

    for name in names or list(CASES):
        example, settings, options = CASES[name]
        source = Source(f"{example}.dn", (EXAMPLES / f"{example}.dn").read_text())
        program = transform(load_program(source, settings)[0], options)
        plan = make_plan(program, "sm_90a", options)
        files = emit_sources(plan)
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "program.ir").write_text(print_program(program))
        (target / "options.json").write_text(json.dumps(attrs.asdict(options)))
        for file, content in files.items():
            (target / file).write_bytes(content)
        if name in TRACED:
            (target / "traced").mkdir(exist_ok=True)
            for file, content in emit_sources(plan, traced=True).items():
                (target / "traced" / file).write_bytes(content)
        print(f"{name}: {len(files['kernel.cu'])} bytes of CUDA", flush=True)


def kernel_files(folder: Path) -> dict[str, bytes]:
    """What a backend loads of a case: its kernel, and its lean one if it has one."""
    names = [f"{name}.{kind}" for name in ("kernel", lean.NAME) for kind in ("cubin", "json")]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def open_devices(most: int = 4) -> list[Any]:
    """The GPUs that there are; CudaError if there is none."""
    from dnc.runtime.cuda_driver import CudaError, open_device

    found = [open_device()]
    with suppress(CudaError):
        for number in range(1, most):
            found.append(open_device(number))
    return found


def compile_case(target: Path) -> str:
    """Compiles the kernel of one case; what the compiler said."""
    from dnc.codegen.nvrtc import compiled

    kinds = (".cu", ".json")
    made = compiled(
        {path.name: path.read_bytes() for path in target.iterdir() if path.suffix in kinds}, "sm_90a"
    )
    lines = []
    for file, content in made.items():
        (target / file).write_bytes(content)
        if file.endswith(".cubin"):
            found = json.loads(made[file.replace(".cubin", ".json")])
            lines.append(f"{target}: {found['registers']} registers, {found['spill_stores']} bytes spilled")
    return "\n".join(lines)


def compile_all(folder: Path) -> None:
    """Compiles every case of the folder, in parallel."""
    with ProcessPoolExecutor() as pool:
        for line in pool.map(compile_case, sorted(path.parent for path in folder.rglob("kernel.cu"))):
            print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "emit":
        emit(Path(sys.argv[2]), sys.argv[3:])
    else:
        compile_all(Path(sys.argv[2]))
