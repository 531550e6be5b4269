"""dnc run: trains a build, or evaluates it, or predicts with it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dnc.cli.options import Device, check_one_origin, run_option, tell_changed
from dnc.cli.pipes import PIPE, STDIN, put
from dnc.diagnostics import counted, fail

if TYPE_CHECKING:
    from dnc.api import Model, RunConfig

OPTIMIZER = "sgd, momentum, nesterov, adagrad, adam, adamw. [default: adagrad]"
SCHEDULE = "Of the learning rate: constant, step, exponential, cosine. [default: constant]"

MEASURING = (
    "build",
    "data",
    "weights",
    "checkpoint",
    "device",
    "memory",
    "replicas",
    "workers",
)
"""Options that --eval and --predict look at; --predict has a seed, too; all others are for training."""
STARTING = ("weights", "checkpoint")
"""Those that a configuration has for the beginning of training: there they count if they are given."""


def run(
    build: Annotated[Path | None, typer.Argument(help="The build folder; it is only read.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The data, JSONL; - is standard input, for --eval and --predict.", metavar="<path>"
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs in all; those before a checkpoint count too. [default: 1]")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples of a batch. [default: 32]")] = None,
    optimizer: Annotated[str | None, typer.Option(help=OPTIMIZER)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. [default: that of the optimizer]")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of momentum, nesterov. [default: 0.9]")] = None,
    beta1: Annotated[float | None, typer.Option(help="Of adam, adamw. [default: 0.9]")] = None,
    beta2: Annotated[float | None, typer.Option(help="Of adam, adamw. [default: 0.999]")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of adagrad, adam, adamw.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="[default: 0; 0.01 for adamw]")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of a batch's gradient.")] = None,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE)] = None,
    decay: Annotated[float | None, typer.Option(help="Factor of the schedule.")] = None,
    decay_every: Annotated[int | None, typer.Option(help="Epochs of step, exponential. [default: 1]")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps in which the rate rises. [default: 0]")] = None,
    dev: Annotated[Path | None, typer.Option(help="Data to measure on after every epoch.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="End after so many epochs that are no better on the dev set.")
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(
            help="The metric, or loss, of the dev set that is to be best. [default: the first one]",
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of first weights and shuffling; of draws. [default: 1]")
    ] = None,
    run_dir: Annotated[Path | None, run_option("What is written goes there. [default: runs/...]")] = None,
    config: Annotated[Path | None, typer.Option(help="Options from a TOML file; those here win.")] = None,
    resume: Annotated[Path | None, run_option("Go on with the run in this folder.", "RUN")] = None,
    eval_: Annotated[bool, typer.Option("--eval", help="Only measure loss and metrics.")] = False,
    predict: Annotated[
        str | None,
        typer.Option(help="Only write the outputs there, JSONL; - is standard output.", metavar="<path>"),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Take weights by name, safetensors.")] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option(help="First rows of a table, from a text file of vectors.", metavar="TABLE=FILE"),
    ] = None,
    vocabulary: Annotated[
        list[str] | None,
        typer.Option(
            help="Words or labels that are known beside those of the training data, one a line.",
            metavar="NAME=FILE",
        ),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Go on from, or measure, this checkpoint.")] = None,
    device: Device = None,
    min_count: Annotated[
        int | None, typer.Option(help="Rarer words of the training data are <unk>. [default: 1]")
    ] = None,
    log_every: Annotated[
        int | None, typer.Option(help="Batches between two lines of metrics. [default: 10]")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Batches between two checkpoints inside an epoch.")
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write events for TensorBoard too.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline of the first batches there, JSON for Perfetto.")
    ] = None,
    trace_batches: Annotated[
        int | None, typer.Option(help="Batches of that timeline. [default: 4]", min=1)
    ] = None,
    memory: Annotated[int | None, typer.Option(help="Use at most so many MiB.", min=1)] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of the weights.", min=1, hidden=True)] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of a replica.", min=1, hidden=True)] = None,
) -> int:
    """Train a build, measure it, or predict with it."""
    from dnc import api

    if eval_ and predict is not None:
        raise fail("--eval and --predict exclude each other")
    measuring = eval_ or predict is not None
    given = {
        "build": build, "data": data, "dev": dev, "epochs": epochs, "batch": batch, "optimizer": optimizer,
        "lr": lr, "momentum": momentum, "beta1": beta1, "beta2": beta2, "epsilon": epsilon,
        "weight_decay": weight_decay, "clip": clip, "schedule": schedule, "decay": decay,
        "decay_every": decay_every, "warmup": warmup, "patience": patience, "best": best, "seed": seed,
        "min_count": min_count, "weights": weights, "checkpoint": checkpoint,
        "embeddings": _files("--embeddings", embeddings, "a table", "E=vectors.txt"),
        "vocabulary": _files("--vocabulary", vocabulary, "a dimension", "tags=tags.txt"),
        "log_every": log_every, "save_every": save_every, "tensorboard": tensorboard, "device": device,
        "memory": memory, "replicas": replicas, "workers": workers,
    }  # fmt: skip
    base, last = api.RunConfig(), None
    if resume is not None:
        others = {"--config": config, "--checkpoint": checkpoint, "--run-dir": run_dir}
        for name, value in {**others, "--eval or --predict": measuring or None}.items():
            if value is not None:
                raise fail(f"--resume and {name} exclude each other")
        base, last = api.run_of(resume)
    elif config is not None:
        base = api.read_config(config)
    if measuring:  # what a configuration says of training does not matter here
        _refuse_training(given, predict is not None)
        check_one_origin(checkpoint, run_dir)
        base = api.RunConfig(**{name: getattr(base, name) for name in MEASURING if name not in STARTING})
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    wanted = api.with_values(base, **texts)
    api.check_options(wanted)
    if resume is not None and last is not None:
        _refuse_beginning(base, wanted, resume)
    if wanted.build is None:
        raise fail("Missing argument 'build' (see dnc run --help)")
    if wanted.data is None:
        raise fail("Missing option '--data' (see dnc run --help)")
    if wanted.data == PIPE:
        if not measuring or wanted.weights is not None:
            asking = "--weights" if measuring else "training"
            raise fail(f"--data: - is standard input, which can be read once; {asking} reads data again")
        wanted = api.with_values(wanted, data=STDIN)
    vectors = map(Path, [*(wanted.embeddings or {}).values(), *(wanted.vocabulary or {}).values()])
    out = None if predict is None or predict == PIPE else Path(predict)
    begun = None if wanted.checkpoint is None else Path(wanted.checkpoint)
    tracing = _tracing(trace, trace_batches, wanted, out, begun, run_dir, resume, config, *vectors)
    if out is not None:
        api.check_result(out, wanted.data, begun, wanted.weights, config)
    if measuring:
        return _measure(wanted, predict, begun, run_dir, tracing)
    if config is not None:
        _tell_another(config, wanted.checkpoint is not None)
    elif resume is not None and last is None:
        _tell_another(resume / api.CONFIG)
    same_data = resume is not None and data is None
    return _train(wanted, last, resume or run_dir, resume is not None, same_data, tracing)


def _tell_another(config: Path, has_weights: bool = False) -> None:
    """Says so where a run is made of the configuration of one that it does not make again.

    has_weights: it begins with a checkpoint.
    """
    from dnc import api

    why, is_another = api.why_not_again(config), "this one is another"
    if why == api.GONE:
        is_another = "this one begins with random ones; --checkpoint FILE gives it others"
    if why and not (why == api.GONE and has_weights):
        _say(f"note: the run of {config} {why}, and {is_another}")


def _refuse_beginning(begun: RunConfig, wanted: RunConfig, run: Path) -> None:
    """DiagnosticError if an option asks for another beginning than a run has had.

    Its checkpoint has all that it began with, so that these mean nothing to a run that goes on.
    """
    from dnc import api

    for name in api.BEGINNING:
        if name != "checkpoint" and _beginning(wanted, name) != _beginning(begun, name):
            raise fail(
                f"--resume and --{name.replace('_', '-')} exclude each other: {run} has begun already",
                "another run begins with it: without --resume, with another --run-dir",
            )


def _beginning(config: RunConfig, name: str) -> object:
    """What a configuration says of the beginning, comparable: paths from wherever they count."""
    match getattr(config, name):
        case str(path):
            return os.path.abspath(path)
        case dict(paths):
            return {table: os.path.abspath(path) for table, path in paths.items()}
        case value:
            return value or 1


def _refuse_training(given: Mapping[str, object], predicts: bool) -> None:
    """DiagnosticError if an option was given that means nothing where nothing is trained."""
    mode, known = ("--predict", (*MEASURING, "seed")) if predicts else ("--eval", MEASURING)
    if given["embeddings"]:
        raise fail(f"--embeddings and {mode} exclude each other: a checkpoint has its own vectors")
    for name, value in given.items():
        if value is not None and name not in known:
            raise fail(f"--{name.replace('_', '-')} is for training; with {mode} nothing is trained")


def _tracing(
    path: Path | None, batches: int | None, config: RunConfig, *inputs: Path | None
) -> tuple[Path, int] | None:
    """Where a timeline goes and how many batches it has; None if there is to be none."""
    from dnc import api

    if path is None:
        if batches is not None:
            raise fail("--trace-batches: there is no timeline; ask for one with --trace FILE")
        return None
    if path in inputs:
        raise fail(f"--trace: {path} has another use here; choose another file")
    api.check_trace_path(path, config.data, config.dev, config.weights, *inputs)
    return path, batches or api.LAUNCHES


def _open(config: RunConfig, tracing: tuple[Path, int] | None = None) -> Model:
    """The model of a configuration, without weights."""
    from dnc import api

    assert config.build is not None
    model = api.load(
        config.build,
        config.device,
        seed=1 if config.seed is None else config.seed,
        replicas=config.replicas,
        workers=config.workers,
        memory_bytes=None if config.memory is None else config.memory * 2**20,
    )
    _say(f"{model.build.model} on {model.device}")
    tell_changed(model)
    if tracing is not None:
        model.trace(tracing[1])
    return model


def _tell_trace(model: Model, tracing: tuple[Path, int] | None) -> None:
    """Writes the timeline, if there is one, and sums it up."""
    from rich.console import Console

    from dnc import api
    from dnc.cli.trace import show

    if tracing is None:
        return
    path, batches = tracing
    show(api.summary_of(api.write_trace(model.timeline, path), path), Console(stderr=True))
    less = "" if len(model.timeline.launches) == batches else f" ({batches} were asked for)"
    _say(f"wrote {path}: {len(model.timeline.launches)} batches{less}; it opens in https://ui.perfetto.dev")


def _measure(
    config: RunConfig,
    predict: str | None,
    checkpoint: Path | None,
    run_dir: Path | None,
    tracing: tuple[Path, int] | None,
) -> int:
    """Loss and metrics on standard output, or the outputs there or into a file, drawn by a seed if given."""
    from dnc import api

    assert config.build is not None and config.data is not None
    if checkpoint is None and (config.weights is None or run_dir is not None):
        checkpoint = api.find_checkpoint(config.build, run_dir)
    if predict not in (None, PIPE):
        api.check_result(predict, checkpoint)
    model = _open(config, tracing)
    _start(model, config, checkpoint, False)
    notes: list[str] = []
    if predict is None:
        _evaluate(model, Path(config.data))
    elif predict == PIPE:
        put(b"".join(api.predict_lines(model, config.data, seed=config.seed, told=notes.append)).decode())
    else:
        lines = api.predict_to_file(model, config.data, predict, seed=config.seed, told=notes.append)
        _say(f"wrote {predict}: {counted(lines, 'line')}")
    for note in notes:
        _say(f"note: {note}")
    _tell_trace(model, tracing)
    return 0


def _start(model: Model, config: RunConfig, checkpoint: Path | None, trains: bool) -> None:
    """Weights from a checkpoint, by name, from vectors of words."""
    from dnc import api
    from dnc.ir.sparse import keeping

    assert config.data is not None
    if checkpoint is not None:
        model.restore(checkpoint)
        _say(f"weights of {checkpoint}, {model.position.step} steps, seed {model.seed}")
    vectors = config.embeddings or {}
    least = config.min_count or 1
    if config.weights is not None:
        if model.vocabularies is None:
            names = api.start_by_name(
                model,
                config.weights,
                config.data,
                trains=trains,
                min_count=least,
                vocabulary=config.vocabulary,
            )
        else:
            names = model.load_weights(config.weights)
        _say(f"{config.weights}: {', '.join(names)}")
        for parameter in map(model.program.parameter, names):
            if parameter.is_sparse:
                _say(keeping(parameter))
    if vectors and model.vocabularies is None:
        model.attach(config.data, min_count=least, vocabulary=config.vocabulary)
    for table, path in vectors.items():
        _say(str(model.load_embeddings(table, path)))


def _train(
    config: RunConfig,
    last: Path | None,
    run_dir: Path | None,
    resumes: bool,
    same_data: bool,
    tracing: tuple[Path, int] | None,
) -> int:
    """Trains; the exit code. last: the checkpoint of the run that goes on, None where none does."""
    from dnc import api
    from dnc.cli.progress import Progress

    assert config.data is not None
    checkpoint = last
    if last is None and config.checkpoint is not None:
        checkpoint = Path(config.checkpoint)
        if config.embeddings:
            raise fail("--embeddings and --checkpoint exclude each other: a checkpoint has its own vectors")
        if (config.min_count or 1) > 1:
            raise fail("--min-count and --checkpoint exclude each other: a checkpoint has its own words")
        if config.vocabulary:
            raise fail("--vocabulary and --checkpoint exclude each other: a checkpoint has its own words")
    schedule = api.rate_schedule(config.schedule, config.decay, config.decay_every, config.warmup)
    model = _open(config, tracing)
    model.check_trains()
    if resumes and last is None:
        _say(f"{run_dir} has no checkpoint yet: training begins again")
    first = api.with_values(api.RunConfig(), data=config.data) if last is not None else config
    _start(model, first, checkpoint, True)
    if checkpoint is not None and config.seed not in (None, model.seed):
        raise fail(f"--seed {config.seed}: the run of {checkpoint} has seed {model.seed}")
    model.configure(
        config.optimizer,
        config.lr,
        config.clip,
        momentum=config.momentum,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
    )
    epochs, begun = config.epochs or 1, model.position.step
    samples = model.attach(config.data, min_count=config.min_count or 1, vocabulary=first.vocabulary)
    if last is None:
        for note in (*api.unnamed_classes(model), *api.missing_everywhere(samples)):
            _say(f"note: {note}")
    with api.Interrupts() as interrupts, Progress(samples.samples, epochs) as progress:
        folder = model.train(
            samples,
            epochs=epochs,
            batch=config.batch or model.course.batch_size or 32,
            dev=config.dev,
            run_dir=run_dir,
            resumed=checkpoint,
            log_every=config.log_every or 10,
            schedule=schedule,
            patience=config.patience,
            best=config.best,
            save_every=config.save_every,
            tensorboard=bool(config.tensorboard),
            config=config,
            again=resumes,
            same_data=same_data,
            report=progress.report,
            tick=progress.tick,
            stop=lambda: interrupts.asked() or progress.lost(),
        )
    if progress.problem is not None:
        _say(f"standard output cannot be written to: {progress.problem.strerror}")
    if interrupts.asked() or progress.problem is not None:
        _say(f"stopped; to go on: --resume {folder}")
    elif 0 < begun == model.position.step:
        _say(f"the training of {folder} had ended by --patience; nothing was trained (a larger one goes on)")
    else:
        _draw(folder)
        _say(f"wrote {folder}")
    if model.timeline.launches:
        _tell_trace(model, tracing)
    if progress.problem is not None:
        return 141 if progress.problem.errno == errno.EPIPE else 2
    return interrupts.code


def _draw(folder: Path) -> None:
    from dnc import api

    try:
        api.draw_run(folder)
    except api.Missing as missing:
        _say(missing.diagnostics[0].message)


def _evaluate(model: Model, data: Path) -> None:
    import msgspec

    from dnc.cli.progress import as_line

    measured = model.evaluate(data)
    values = {"loss": measured.loss, **measured.metrics, "samples": measured.samples}
    if sys.stdout.isatty():
        print(as_line(values))
    else:
        print(msgspec.json.encode(values).decode())


def _files(option: str, given: list[str] | None, what: str, example: str) -> dict[str, str] | None:
    """The files in `--embeddings E=vectors.txt`, by name; None where the option is not given."""
    found: dict[str, str] = {}
    for item in given or []:
        name, _, path = item.partition("=")
        if not name or not path:
            raise fail(f"{option}: found '{item}', expected {what} and a file, as {example}")
        if name in found:
            raise fail(f"{option}: {name} is named twice")
        found[name] = path
    return found or None


def _say(text: str) -> None:
    print(text, file=sys.stderr)
