"""Weights in and out: `import_weights` makes a run folder of a safetensors file, `export_weights` the
file of a run.

In: builds, run folders, files, maps (docs/pytorch.md has their language). Out: checkpoints that
`dnc run` trains, evaluates and predicts with; files that PyTorch loads. Guaranteed: neither PyTorch nor a
device is needed; every mistake of the user is a `DiagnosticError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np

from dnc.api.arguments import check_whole
from dnc.api.first_values import check_class_metrics
from dnc.diagnostics import check_path, fail
from dnc.ir.optimizers import DEFAULT, OPTIMIZERS
from dnc.ir.parser import parse_program
from dnc.ir.program import TABLE, Program
from dnc.ir.sparse import keeping, pruned
from dnc.runtime.build import read_build
from dnc.runtime.checkpoint import Checkpoint, Position, load_checkpoint, save_checkpoint
from dnc.runtime.data import table_rows
from dnc.runtime.data.vocabulary import UNKNOWN
from dnc.runtime.initialize import initialize, shapes
from dnc.runtime.predictions import metric_classes
from dnc.runtime.run_config import RunConfig
from dnc.runtime.run_folder import (
    LAST,
    RUNS,
    RunFolder,
    check_named,
    check_nothing_lost,
    new_run,
    run_checkpoint,
)
from dnc.runtime.weights import (
    Gathered,
    WeightMap,
    gather,
    read_foreign,
    read_map,
    read_vocabularies,
    spread,
    write_foreign,
)
from dnc.runtime.weights.transfer import check_gates, rows_of
from dnc.runtime.weights.words import token_dimensions


@attrs.frozen(eq=False)
class Imported:
    """A run folder with the weights of a file: its checkpoint, and what the parameters were made of.

    sparse: what is kept of sparse parameters that the file has, in words. closed: dimensions of tokens in
    whose words none stands for others; data with others are refused. numbers: those of whose words nothing
    was said, only the rows of their tables known; data with words are refused.
    """

    folder: Path
    checkpoint: Path
    gathered: Gathered
    sparse: tuple[str, ...]
    closed: tuple[str, ...]
    numbers: tuple[str, ...]


def import_weights(
    build: str | Path,
    weights: str | Path,
    map: str | Path | None = None,
    *,
    vocabularies: Mapping[str, str | Path | int] | None = None,
    unknown: str = UNKNOWN,
    saved: str | Path | None = None,
    seed: int = 1,
    run_dir: str | Path | None = None,
) -> Imported:
    """Makes a run folder of the weights in a safetensors file.

    map: a TOML file; without one every tensor has the name of a parameter. vocabularies: by dimension a
    file of words in the order of their rows, or how many numbers there are. unknown: the word that
    stands for all others. saved: a vocabulary.json. seed: of the first values of parameters that
    the map keeps.
    """
    check_whole("seed", seed, 0)
    if not isinstance(vocabularies, Mapping | None):
        found = type(vocabularies).__name__
        raise fail(f"vocabularies: found {found}, expected files of words, or their numbers, by dimension")
    opened = read_build(build)
    program = parse_program(opened.program, str(opened.path / "program.ir"))
    names = WeightMap() if map is None else read_map(map)
    check_gates(names, {p.name: p.dimensions[0].name for p in program.parameters if p.dimensions})
    tensors, others = read_foreign(weights)

    def rows(dimension: str) -> int | None:
        found = (rows_of(names, table, tensors) for table in _tables(program, dimension))
        return next((count for count in found if count is not None), None)

    known = read_vocabularies(program, vocabularies or {}, unknown, saved, rows)
    check_class_metrics(
        program,
        metric_classes(program, known),
        "and no labels are given",
        "a label a line, in the order of their numbers: --vocabulary NAME=FILE; or a vocabulary.json",
    )
    sizes = table_rows(program, known)
    entries = {
        table: f"{'numbers' if each.words is None else 'words'} of '{name}'"
        for name, each in known.items()
        for table in _tables(program, name)
    }
    gathered = gather(names, tensors, others, shapes(program, sizes), str(weights), entries)
    first = initialize(program, sizes, seed) if gathered.kept else {}
    values = {p.name: gathered.values.get(p.name, first.get(p.name)) for p in program.parameters}
    whole = {n: pruned(program.parameter(n), value) for n, value in values.items() if value is not None}
    zeros = {p.name: np.zeros_like(whole[p.name]) for p in program.parameters if p.trained}
    state = {each.name: zeros for each in OPTIMIZERS[DEFAULT.optimizer].states}
    if run_dir is not None:
        check_nothing_lost(run_dir)
    # A folder that an import has left without weights, as on a full disk, is none that holds a run.
    config = RunConfig(build=str(build))
    check_named(run_dir or RUNS, config)
    folder = RunFolder(run_dir or new_run(opened.model), again=True, config=config)
    try:
        folder.keep_vocabularies(known)
        checkpoint = folder.checkpoint(LAST)
        save_checkpoint(
            checkpoint,
            Checkpoint(opened.model, opened.digest, whole, state, known, seed, Position(), DEFAULT, 0),
        )
        folder.record({"event": "import", "weights": str(weights), "map": names.path})
    finally:
        folder.close()
    tokens = token_dimensions(program)
    closed = tuple(name for name, each in known.items() if name in tokens and each.words and not each.unknown)
    sized = known if saved is not None else vocabularies or {}
    numbers = tuple(name for name in known if name in tokens.difference(sized) and known[name].words is None)
    sparse = tuple(keeping(p) for p in program.parameters if p.is_sparse and p.name in gathered.values)
    return Imported(folder.path, checkpoint, gathered, sparse, closed, numbers)


def _tables(program: Program, dimension: str) -> list[str]:
    return [p.name for p in program.parameters if p.kind == TABLE and p.dimensions[0].name == dimension]


def checkpoint_of(run: str | Path) -> Path:
    """Of a run folder its best checkpoint, else its last; or the checkpoint itself."""
    check_path(run, "a run folder or a checkpoint")
    path = run_checkpoint(run) if Path(run).is_dir() else Path(run)
    if path is None:
        raise fail(f"{run}: holds no checkpoint")
    return path


def export_weights(
    run: str | Path, out: str | Path, map: str | Path | None = None
) -> dict[str, tuple[int, ...]]:
    """Writes the weights of a run folder (its best checkpoint, else its last) or of a checkpoint.

    The tensors have the names and shapes that the map reads them with; their shapes by name. Without
    a map they have those of the parameters.
    """
    path = checkpoint_of(run)
    names = WeightMap() if map is None else read_map(map)
    tensors = spread(names, load_checkpoint(path).weights)
    write_foreign(out, tensors, path, map)
    return {name: value.shape for name, value in sorted(tensors.items())}
