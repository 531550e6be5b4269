"""dnc run: trains a build, or evaluates it, or predicts with it."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.diagnostics import fail

if TYPE_CHECKING:
    from dnc.api import Model


def run(
    build: Annotated[Path, typer.Argument(help="The build folder; it is only read.")],
    data: Annotated[Path, typer.Option(help="The data, JSONL.")],
    epochs: Annotated[int, typer.Option(help="Epochs in all; those before a checkpoint count too.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Samples of a batch. [default: 32]")] = None,
    optimizer: Annotated[str | None, typer.Option(help="As sgd or adam. [default: adagrad]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. [default: that of the optimizer]")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of a batch's gradient.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Data to measure on after every epoch.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of first weights and shuffling. [default: 1]")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="What is written goes there. [default: runs/...]")
    ] = None,
    eval_: Annotated[bool, typer.Option("--eval", help="Only measure loss and metrics.")] = False,
    predict: Annotated[Path | None, typer.Option(help="Only write the outputs there, JSONL.")] = None,
    weights: Annotated[Path | None, typer.Option(help="First weights by name, safetensors.")] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option(help="First rows of a table, from a text file of vectors.", metavar="TABLE=FILE"),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Go on from, or measure, this checkpoint.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or vm. [default: the best there is]")] = None,
    min_count: Annotated[int, typer.Option(help="Rarer words of the training data are <unk>.", min=1)] = 1,
    log_every: Annotated[int, typer.Option(help="Batches between two lines of metrics.", min=1)] = 10,
    memory: Annotated[int | None, typer.Option(help="Use at most so many MiB.", min=1)] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of the weights.", min=1, hidden=True)] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of a replica.", min=1, hidden=True)] = None,
) -> int:
    """Train a build, measure it, or predict with it."""
    from dnc import api
    from dnc.api import check_output
    from dnc.cli.interrupts import Interrupts
    from dnc.cli.progress import Progress

    if eval_ and predict is not None:
        raise fail("--eval and --predict exclude each other")
    measuring = eval_ or predict is not None
    vectors = _embeddings(embeddings)
    if vectors and (measuring or checkpoint is not None):
        other = "--eval" if eval_ else "--predict" if measuring else "--checkpoint"
        raise fail(f"--embeddings and {other} exclude each other: a checkpoint has its own vectors")
    _check("--seed", seed, 0)
    _check("--epochs", epochs, 1)
    _check("--batch", batch, 1)
    if predict is not None:
        check_output(predict, data, checkpoint, weights)
    if measuring and checkpoint is None and weights is None:
        checkpoint = api.find_checkpoint(build, run_dir)
    model = api.load(
        build,
        device,
        seed=1 if seed is None else seed,
        replicas=replicas,
        workers=workers,
        memory_bytes=None if memory is None else memory * 2**20,
    )
    _say(f"{model.build.model} on {model.device}")
    if checkpoint is not None:
        model.restore(checkpoint)
        _say(f"weights of {checkpoint}, {model.position.step} steps, seed {model.seed}")
        if not measuring and seed not in (None, model.seed):
            raise fail(f"--seed {seed}: the run of {checkpoint} has seed {model.seed}")
    if (weights is not None or vectors) and model.vocabularies is None:
        model.attach(data, min_count=min_count)
    if weights is not None:
        _say(f"{weights}: {', '.join(model.load_weights(weights))}")
    for table, path in vectors.items():
        _say(str(model.load_embeddings(table, path)))
    if eval_:
        _evaluate(model, data)
        return 0
    if predict is not None:
        lines = api.predict_to_file(model, data, predict)
        _say(f"wrote {predict}: {lines} lines")
        return 0
    model.configure(optimizer, lr, clip)
    size = batch or (model.resumed.batch_size if model.resumed else 0) or 32
    samples = model.attach(data, min_count=min_count)
    with Interrupts() as interrupts, Progress(samples.samples, epochs) as progress:
        folder = model.train(
            samples,
            epochs=epochs,
            batch=size,
            dev=dev,
            run_dir=run_dir,
            resumed=checkpoint,
            log_every=log_every,
            report=progress.report,
            tick=progress.tick,
            stop=lambda: interrupts.asked() or progress.lost(),
        )
    finished = model.position.epoch >= epochs
    if progress.problem is not None:
        _say(f"standard output cannot be written to: {progress.problem.strerror}")
    if interrupts.asked() or not finished:
        _say(f"stopped; to go on: --checkpoint {folder / 'last.safetensors'} --epochs {epochs}")
    else:
        _say(f"wrote {folder}")
    if progress.problem is not None:
        return 141 if progress.problem.errno == errno.EPIPE else 2
    return interrupts.code


def _evaluate(model: Model, data: Path) -> None:
    import msgspec

    from dnc.cli.progress import as_line

    measured = model.evaluate(data)
    values = {"loss": measured.loss, **measured.metrics, "samples": measured.samples}
    if sys.stdout.isatty():
        print(as_line(values))
    else:
        print(msgspec.json.encode(values).decode())


def _embeddings(given: list[str] | None) -> dict[str, Path]:
    """The files in `--embeddings E=vectors.txt`, by table."""
    found: dict[str, Path] = {}
    for item in given or []:
        table, _, path = item.partition("=")
        if not table or not path:
            raise fail(f"--embeddings: found '{item}', expected a table and a file, as E=vectors.txt")
        if table in found:
            raise fail(f"--embeddings: {table} is named twice")
        found[table] = Path(path)
    return found


def _check(option: str, value: int | None, least: int) -> None:
    if value is not None and not least <= value < 2**31:
        expected = f"{least} or more" if value < least else f"less than {2**31}"
        raise fail(f"{option}: found {value}, expected {expected}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
