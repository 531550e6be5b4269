"""What is kept of a run as `run.toml`: what it was asked for, what it began with, and why that is not all.

In: a model that is about to be trained. Out: a configuration, and in words what its run has done that the
configuration does not do again. Guaranteed: where there are no such words, `dnc run --config` makes the run
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dnc.api.arguments import Data
from dnc.diagnostics import DiagnosticError
from dnc.ir.optimizers import OPTIMIZERS
from dnc.runtime.checkpoint import Course
from dnc.runtime.curves import read_events
from dnc.runtime.data import Dataset
from dnc.runtime.memory import MEGABYTE
from dnc.runtime.rates import RateSchedule
from dnc.runtime.run_config import (
    BEGINNING,
    GONE,
    RunConfig,
    changed,
    read_config,
    why_not_again,
    with_values,
)
from dnc.runtime.run_folder import CONFIG, METRICS
from dnc.runtime.trainer import TrainOptions

if TYPE_CHECKING:
    from dnc.api.model import Model


def asked_for(
    model: Model,
    config: RunConfig,
    data: Data,
    dev: Data | None,
    options: TrainOptions,
    tensorboard: bool,
) -> RunConfig:
    """A configuration with what the run has chosen; data that are no file have no place in it."""
    hyper, schedule = model.hyper, options.schedule
    values: dict[str, Any] = {name: getattr(hyper, name) for name in OPTIMIZERS[hyper.optimizer].settings}
    values["lr"] = values.pop("learning_rate")
    values |= {"build": str(model.build.place), "data": _path(data), "dev": _path(dev)}
    values |= {"epochs": options.epochs, "batch": options.batch, "seed": options.seed}
    values |= {"patience": options.patience, "best": options.best, "log_every": options.log_every}
    values |= {"save_every": options.save_every, "tensorboard": tensorboard or None}
    replicas, workers = (None if each is None else int(each) for each in model.grid)
    values |= {"replicas": replicas, "workers": workers, "memory": _memory(model)}
    if schedule != RateSchedule():
        values |= {"schedule": schedule.kind, "warmup": schedule.warmup or None}
        values["decay"] = None if schedule.kind == "constant" else schedule.decay
        values["decay_every"] = schedule.every if schedule.kind in ("step", "exponential") else None
    clip = hyper.clip_norm if np.isfinite(hyper.clip_norm) else None
    return with_values(config, optimizer=hyper.optimizer, clip=clip, **values)


def begun(model: Model, asked: RunConfig, data: str, measures: bool) -> tuple[RunConfig, str]:
    """The configuration of a new run, and why it does not make it again, "" if it does.

    data: the digest of the training data. measures: whether there is a dev set.
    """
    first, why = model.origin.beginning(model.session.steps_done, model.build.digest, data)
    reasons = (
        (why, bool(why)),
        ("was trained on samples of no file", asked.data is None),
        ("was measured on samples of no file", measures and asked.dev is None),
        ("had memory of no whole number of MiB", model.memory_words is not None and _memory(model) is None),
    )
    return _with_beginning(asked, first), _first(reasons)


def gone_on(
    model: Model, asked: RunConfig, run: Path, others: bool, course: Course | None
) -> tuple[RunConfig, str]:
    """The same of a run that goes on in its folder: it begins as it did.

    others: whether it goes on over other data. course: what it has on its dev set, None without one.
    """
    dev, score = ("", model.course.score) if course is None else (course.dev, course.score)
    step, up_to = model.session.steps_done, f"up to step {model.session.steps_done}"
    try:
        before, why = read_config(run / CONFIG), why_not_again(run / CONFIG)
    except (DiagnosticError, OSError):
        before, why = asked, "began with what no file says"
    device, had, old = _device(run), model.course, changed(before, asked)
    reasons = (
        (why, bool(why)),
        (GONE, not step),
        (f"had other weights {up_to}", not model.origin.is_checkpoint(step)),
        (f"had other data {up_to}", others),
        (f"had {'another' if had.dev else 'no'} dev set {up_to}", dev != had.dev),
        (f"had best {had.score} {up_to}", had.score not in ("", score)),
        (f"ran on {device} {up_to}", device not in (None, model.device)),
        (f"had {old} {up_to}", bool(old)),
    )
    return _with_beginning(asked, before), _first(reasons)


def _first(reasons: Iterable[tuple[str, bool]]) -> str:
    """The first one that is so; "" for none."""
    return next((why for why, is_so in reasons if is_so), "")


def _with_beginning(config: RunConfig, first: RunConfig) -> RunConfig:
    return msgspec.structs.replace(config, **{name: getattr(first, name) for name in BEGINNING})


def _memory(model: Model) -> int | None:
    """The memory of a model in MiB; None where it is all there is, or no whole number."""
    words = model.memory_words
    return None if words is None or words * 4 % MEGABYTE else int(words * 4 // MEGABYTE)


def _path(data: Data | None) -> str | None:
    """Where data come from, if that is a file or a folder."""
    path = data.place if isinstance(data, Dataset) else data
    return str(path) if isinstance(path, str | Path) and Path(path).exists() else None


def _device(run: Path) -> str | None:
    """What a run ran on; None if that is not known."""
    try:
        events = read_events(run / METRICS)
    except DiagnosticError:
        return None
    return next((each.get("device") for each in reversed(events) if each.get("event") == "start"), None)
