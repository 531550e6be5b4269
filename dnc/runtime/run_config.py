"""The configuration of a run: every option of `dnc run` that says what is trained, and how.

In: a TOML file, whose keys are the options with `_` for `-`. Out: a `RunConfig`; and back. Guaranteed:
a key that does not exist, or a value of a wrong type, is a DiagnosticError; relative paths in a file
count from the folder it is in.
"""

from __future__ import annotations

import difflib
import json
import re
import typing
from pathlib import Path
from typing import Any

import msgspec

from dnc.diagnostics import fail
from dnc.ir.optimizers import CLIP, OPTIMIZERS, SETTINGS
from dnc.runtime.atomic import write_atomically
from dnc.runtime.rates import KINDS, decay_of
from dnc.runtime.toml_file import read_toml

# What belongs to a value of an option: another value has defaults of its own.
OWN = {
    "optimizer": ("lr", "momentum", "beta1", "beta2", "epsilon", "weight_decay"),
    "schedule": ("decay", "decay_every"),
}
PATHS = ("build", "data", "dev", "weights", "checkpoint")
TABLES = ("embeddings", "vocabulary")  # of paths by name
WANTED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
FROM_ZERO = ("seed", "warmup")
CHOICES = {"optimizer": tuple(OPTIMIZERS), "schedule": tuple(KINDS)}
MOST_SHOWN = 40  # letters of a value in a message
# What a run begins with.
BEGINNING = ("weights", "embeddings", "vocabulary", "min_count", "checkpoint")
# What may be another while a run goes on, and its bits are those of a run that was asked for it at first.
# Others compare data by their samples, devices, and what is best by its name.
HARMLESS = (
    *BEGINNING,
    *("build", "data", "dev", "epochs", "patience", "seed", "log_every", "save_every"),
    *("tensorboard", "device", "best"),
)
HEAD = "# The configuration of a run. To make it again: dnc run --config {name}\n"
NOT_AGAIN = "# The configuration of a run, which this file does not make again: the run "
GONE = "began with weights that are gone"
OVERWRITTEN = f"{NOT_AGAIN}{GONE}\n"


class RunConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """None stands for the default, which the documentation of `dnc run` has."""

    build: str | None = None
    data: str | None = None
    dev: str | None = None
    epochs: int | None = None
    batch: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    schedule: str | None = None
    decay: float | None = None
    decay_every: int | None = None
    warmup: int | None = None
    patience: int | None = None
    best: str | None = None
    seed: int | None = None
    min_count: int | None = None
    weights: str | None = None
    checkpoint: str | None = None
    embeddings: dict[str, str] | None = None
    vocabulary: dict[str, str] | None = None
    log_every: int | None = None
    save_every: int | None = None
    tensorboard: bool | None = None
    device: str | None = None
    memory: int | None = None
    replicas: int | None = None
    workers: int | None = None


NO_SCHEDULE = RunConfig(schedule="constant", warmup=0)
# What every number can be that is not whole.
NUMBERS = {"lr": SETTINGS["learning_rate"], "clip": CLIP} | {
    name: setting for name, setting in SETTINGS.items() if name in RunConfig.__struct_fields__
}
# The least value of every whole number, which is less than 2**31.
LEAST = {
    name: 0 if name in FROM_ZERO else 1
    for name, kind in typing.get_type_hints(RunConfig).items()
    if int in typing.get_args(kind)
}


def with_values(config: RunConfig, **values: Any) -> RunConfig:
    """The configuration with those values that are not None; another optimizer, and another schedule, have
    defaults of their own."""
    for name, settings in OWN.items():
        before = getattr(config, name)
        if before is not None and values.get(name) not in (None, before):
            config = msgspec.structs.replace(config, **dict.fromkeys(settings))
    return msgspec.structs.replace(config, **{k: v for k, v in values.items() if v is not None})


def files_of(config: RunConfig) -> list[str]:
    """The files and folders that a configuration names."""
    paths = [getattr(config, name) for name in PATHS]
    for name in TABLES:
        paths += (getattr(config, name) or {}).values()
    return [path for path in paths if path is not None]


ELSEWHERE = {"learning_rate": "lr", "batch_size": "batch", "num_epochs": "epochs", "max_epochs": "epochs"}
"""What other tools call options."""


def read_config(path: str | Path) -> RunConfig:
    """The configuration in a TOML file."""
    values = read_toml(path)
    known = RunConfig.__struct_fields__
    for key in values:
        if key not in known:
            meant = ELSEWHERE.get(key, key.replace("-", "_"))
            close = [meant] if meant in known else difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; there are {', '.join(known)}"
            raise fail(f"{_place(path, key)}: there is no option '{key}'{hint}")
    for key, value in values.items():
        _check(path, key, value)
        if key in PATHS and not value:
            raise fail(f'{_place(path, key)}: {key} is "", expected a path')
        choices = CHOICES.get(key, (value,))
        if value not in choices:
            raise fail(f"{_place(path, key)}: {key} is {_shown(value)}, expected one of {', '.join(choices)}")
        wrong = _out_of_range(key, value, values.get("schedule"))
        if wrong is not None:
            raise fail(f"{_place(path, key)}: {key} is {_shown(value)}, {wrong}")
    config = msgspec.convert(values, RunConfig)
    return _from_folder(config, Path(path).absolute().parent)


def why_not_again(path: str | Path) -> str:
    """What a run has done that its configuration does not do again; "" for nothing that is known.

    OSError where it cannot be read.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        head = file.readline()
    return head.removeprefix(NOT_AGAIN).rstrip("\n") if head.startswith(NOT_AGAIN) else ""


def changed(before: RunConfig, after: RunConfig) -> str:
    """Options with which a run that goes on would be another one, had it had them from the first: in words
    as they were; "" for none."""
    found = [name for name in RunConfig.__struct_fields__ if name not in HARMLESS]
    if "cosine" in (before.schedule, after.schedule):  # its rates follow from the number of epochs
        found.append("epochs")
    if after.patience is not None and (before.patience is None or before.patience > after.patience):
        found.append("patience")  # it might have ended earlier
    before, after = (with_values(NO_SCHEDULE, **msgspec.structs.asdict(each)) for each in (before, after))
    old = {name: getattr(before, name) for name in found if getattr(before, name) != getattr(after, name)}
    return ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in old.items())


def check_options(config: RunConfig) -> None:
    """DiagnosticError where a number of the command line is none that its option can have."""
    for name, value in msgspec.structs.asdict(config).items():
        wrong = _out_of_range(name, value, config.schedule)
        if wrong is not None:
            shown = f"{value:g}" if isinstance(value, float) else value
            raise fail(f"--{name.replace('_', '-')}: found {shown}, {wrong}")


def _check(path: str | Path, key: str, value: Any) -> None:
    """DiagnosticError, with the line, where a value is of another type than its option."""
    try:
        msgspec.convert({key: value}, RunConfig)
    except msgspec.ValidationError:
        kinds = typing.get_args(typing.get_type_hints(RunConfig)[key])
        wanted = WANTED.get(kinds[0], "a table of paths by name")
        raise fail(f"{_place(path, key)}: {key} is {_shown(value)}, expected {wanted}") from None


def _place(path: str | Path, key: str) -> str:
    """A file, with the line of a key where that can be told."""
    text = Path(path).read_text(encoding="utf-8-sig")
    at = re.search(rf"^\s*(\[\s*)?{re.escape(key)}\b", text, re.MULTILINE)
    return f"{path}:{text.count(chr(10), 0, at.end()) + 1}" if at else str(path)


def _out_of_range(option: str, value: Any, schedule: str | None) -> str | None:
    """What is expected of a number that an option cannot have; None where it can, and for what is no number.

    schedule: the one whose decay it may be.
    """
    setting = decay_of(schedule) if option == "decay" else NUMBERS.get(option)
    if value is not None and setting is not None:
        return None if setting.accepts(value) else f"expected {setting}"
    least = LEAST.get(option)
    if value is None or least is None or least <= value < 2**31:
        return None
    return f"expected {least} or more" if value < least else f"expected less than {2**31}"


def _shown(value: Any) -> str:
    """A value of TOML, as it is written there."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def write_config(path: Path, config: RunConfig, why: str = "") -> None:
    """Writes a configuration, its paths absolute; OSError where that fails.

    why: what its run has done that it does not do again, "" for nothing.
    """
    import tomli_w  # a machine that only runs a build through Python needs none

    values = msgspec.to_builtins(_from_folder(config, Path.cwd()))
    head = f"{NOT_AGAIN}{why}\n" if why else HEAD.format(name=path.name)
    text = head + tomli_w.dumps({k: v for k, v in values.items() if v is not None})
    write_atomically(path, [text.encode()])


def _from_folder(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with paths that count from `folder`."""
    changes: dict[str, Any] = {}
    for name in PATHS:
        path = getattr(config, name)
        changes[name] = None if path is None else str(folder / path)
    for name in TABLES:
        paths = getattr(config, name)
        changes[name] = None if paths is None else {key: str(folder / path) for key, path in paths.items()}
    return msgspec.structs.replace(config, **changes)
