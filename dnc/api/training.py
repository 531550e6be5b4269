"""`Model.train`: epochs over data, written into a run folder.

In: a model, data, and how to train. Out: the folder with configuration, metrics and checkpoints.
Guaranteed: all requests that cannot be met are refused before the folder is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnc.api.arguments import Data, check_whole
from dnc.api.kept import asked_for, begun, gone_on
from dnc.api.saving import write
from dnc.diagnostics import fail
from dnc.runtime.checkpoint import Course, checkpoint_place
from dnc.runtime.curves import TensorBoard, read_events, tensorboard_library
from dnc.runtime.data import Dataset
from dnc.runtime.interrupts import Interrupts
from dnc.runtime.outside import check_unaided
from dnc.runtime.phases import RESULT_KINDS, TRAIN
from dnc.runtime.rates import RateSchedule
from dnc.runtime.run_config import RunConfig
from dnc.runtime.run_folder import (
    CONFIG,
    METRICS,
    RUNS,
    RunFolder,
    check_free,
    check_named,
    lies_in,
    new_run,
)
from dnc.runtime.trainer import Event, Trainer, TrainOptions, score_name

if TYPE_CHECKING:
    from dnc.api.model import Model


def train(
    model: Model,
    data: Data,
    *,
    epochs: int = 1,
    batch: int = 32,
    dev: Data | None = None,
    run_dir: str | Path | None = None,
    resumed: str | Path | None = None,
    log_every: int = 10,
    schedule: RateSchedule | None = None,
    patience: int | None = None,
    best: str | None = None,
    save_every: int | None = None,
    tensorboard: bool = False,
    config: RunConfig | None = None,
    again: bool = False,
    same_data: bool = False,
    report: Callable[[Event], None] = lambda event: None,
    tick: Callable[[int, float], None] = lambda samples, loss: None,
    stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Trains for `epochs` (those before a checkpoint included) and writes a run folder; its path.

    schedule: of the learning rate. patience: epochs without a better score on `dev` after which training
    ends. best: what that score is, a metric's name or "loss"; None for the first metric, else the loss.
    log_every, save_every: batches between two lines of metrics.jsonl, and between two checkpoints inside an
    epoch. report: gets every event that goes to metrics.jsonl. tick: told now and then how far an epoch is,
    as samples and their mean loss. stop: asked before every batch is taken; True ends training with a
    checkpoint. Ctrl-C and SIGTERM end it likewise, and go on behind it as KeyboardInterrupt and SystemExit,
    unless the caller handles them. resumed: the checkpoint's path. again: the folder may hold a run without
    a checkpoint. same_data: those of before are meant, and others are refused; without it they are taken
    between two epochs, and the event "start" has "other_samples". config: what else the run was asked for;
    with what is known here, it becomes run.toml.
    """
    model.check_trains()
    for name, given, kind in (("schedule", schedule, RateSchedule), ("config", config, RunConfig)):
        if not isinstance(given, kind | None):
            raise fail(f"{name} is {given!r}, expected a {kind.__name__}")
    for name, told in (("report", report), ("tick", tick), ("stop", stop)):
        if not callable(told):
            raise fail(f"{name} is {told!r}, expected a function")
    if not isinstance(run_dir, str | Path | None):
        raise fail(f"run_dir is {run_dir!r}, expected a path")
    for name, value in (("epochs", epochs), ("batch", batch), ("log_every", log_every)):
        check_whole(name, value, 1)
    check_whole("patience", patience, 1, optional=True)
    check_whole("save_every", save_every, 1, optional=True)
    # Those of NumPy are written to no file.
    epochs, batch, log_every = int(epochs), int(batch), int(log_every)
    patience, save_every = (None if each is None else int(each) for each in (patience, save_every))
    if patience is not None and dev is None:
        raise fail("patience counts epochs without a better score on the dev set, and there is none")
    if best is not None and dev is None:
        raise fail("best is a score on the dev set, and there is none")
    if tensorboard:  # before there is a folder, which the next attempt would find
        tensorboard_library()
    _check_model(model, epochs, batch)
    score = score_name(model.plan, best)
    if resumed is not None and checkpoint_place(resumed)[1] != model.position.step:
        check_free(Path(resumed).parent)  # who has written another checkpoint since this one was loaded
        raise fail(f"{resumed}: the model is not where this checkpoint is; load it with Model.restore")
    dataset = model.attach(data)
    samples = dataset.digest()
    others = _check_samples(model, dataset, samples)
    if others and same_data:
        raise fail(
            f"{dataset.path}: holds other samples than training went over so far",
            f"to go on with them all the same, name them: --data {dataset.path}",
        )
    encoder = model.encoder(dataset)
    measures = None if dev is None else model.read(dev)
    for each in (dataset, measures):
        if each is not None:
            each.check_labels()
    measured = None if measures is None else model.encoder(measures)
    course = model.course if measures is None else model.course.on(measures.digest(), score)
    options = TrainOptions(
        epochs,
        batch,
        model.hyper,
        model.seed,
        log_every,
        schedule or RateSchedule(),
        patience,
        save_every,
        best,
    )

    def record(event: Event) -> None:
        folder.record(event)
        if board is not None:
            board.record(event)
        report(event)

    def save(kind: str) -> None:
        keep()
        write(model, folder.checkpoint(kind))

    def keep() -> None:
        """The model knows how far it is, and with what."""
        model.position = trainer.place()
        scores = trainer.best, trainer.best_epoch
        model.course = Course(batch, dataset.samples, *scores, course.dev, samples, course.score)

    interrupts = Interrupts()
    trainer = Trainer(
        model.session,
        encoder,
        options,
        record,
        save,
        measured,
        model.position,
        course.best,
        course.best_epoch,
        lambda: interrupts.asked() or stop(),
        tick,
    )
    asked = asked_for(model, config or RunConfig(), data, dev, options, tensorboard)
    kept: tuple[RunConfig | None, str] = None, ""
    is_there = run_dir is not None and (Path(run_dir) / CONFIG).exists()
    if not (trainer.exhausted() and is_there):  # else there is nothing new to keep
        if resumed is not None and run_dir is not None and lies_in(resumed, run_dir):
            kept = gone_on(model, asked, Path(run_dir), others, None if measures is None else course)
        else:
            kept = begun(model, asked, samples, dev is not None)
    check_named(run_dir or RUNS, kept[0])  # before a folder is made
    place = run_dir or new_run(model.build.model)
    folder = RunFolder(place, resumed, model.position.step, again, *kept)
    assert model.vocabularies is not None
    folder.keep_vocabularies(model.vocabularies)
    board = TensorBoard(folder.path, read_events(folder.path / METRICS)) if tensorboard else None
    try:
        model.keep_place = keep
        with interrupts:
            start = _start_event(model, dataset, options, folder.path)
            record(start | ({"other_samples": True} if others else {}))
            done = trainer.run()
            if not folder.checkpoint("last").exists():  # nothing was left to train
                save("last")
        record({"event": "end", "finished": done, "step": trainer.position.step})
    finally:
        keep()
        model.keep_place = lambda: None
        if board is not None:
            board.close()
        folder.close()
    interrupts.go_on()
    return folder.path


def _check_model(model: Model, epochs: int, batch: int) -> None:
    """DiagnosticError where a model cannot be trained so, or not from where it is."""
    if not any(result.kind in RESULT_KINDS[TRAIN] for result in model.plan.results):
        raise fail("the program has no loss of its own: train it with forward and backward")
    check_unaided(model.program, "train")
    if model.position.epoch >= epochs:
        raise fail(
            f"nothing to train: {model.position.epoch} of {epochs} epochs are done",
            "epochs count from the first one, those before a checkpoint included: a larger number goes on",
            "to count anew with these weights: --weights FILE, or load_weights of a new model",
        )
    known = model.course.batch_size
    if model.position.batch and known not in (0, batch):
        raise fail(f"training is inside an epoch with batches of {known}, not {batch}")


def _check_samples(model: Model, dataset: Dataset, digest: str) -> bool:
    """Whether training goes on over other data; DiagnosticError where it is inside an epoch over them."""
    known = model.course.samples
    if model.position.batch and known not in (0, dataset.samples):
        raise fail(
            f"training is inside an epoch over {known:,} samples; {dataset.path} has {dataset.samples:,}"
        )
    others = known not in (0, dataset.samples) or model.course.data not in ("", digest)
    if model.position.batch and others:
        raise fail(f"training is inside an epoch over other samples than those of {dataset.path}")
    return others


def _start_event(model: Model, dataset: Dataset, options: TrainOptions, folder: Path) -> Event:
    hyper = options.hyper
    return {
        "event": "start",
        "model": model.build.model,
        "device": model.device,
        "run": str(folder),
        "data": dataset.path,
        "samples": dataset.samples,
        "epochs": options.epochs,
        "batch": options.batch,
        "optimizer": hyper.optimizer,
        "learning_rate": hyper.learning_rate,
        "clip": hyper.clip_norm if np.isfinite(hyper.clip_norm) else None,
        "seed": options.seed,
        "first_epoch": model.position.epoch + 1,
    }
