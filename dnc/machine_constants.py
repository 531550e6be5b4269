"""Constants of machines that `dnc calibrate` has measured, one file a device in the user's cache.

In: the name of an architecture, or what was measured. Out: `Measured`. Guaranteed: a file is written
whole or not at all; one that is damaged, or of another version, counts as none, so that a cache never
stops a compilation.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import msgspec

from dnc.cache_folder import cache_folder
from dnc.diagnostics import fail
from dnc.ir.machine import Constants
from dnc.runtime.atomic import check_output, write_text
from dnc.runtime.json_text import decode_json
from dnc.version import VERSION


@attrs.frozen
class Measured:
    """Constants of a device (its name), whose kernels are made for `machine`; when they were measured.

    error: the median of |predicted / measured - 1| over the launches that they were fitted to.
    """

    device: str
    machine: str
    date: str
    error: float
    launches: int
    constants: Constants
    version: str = VERSION


def folder() -> Path:
    """Where the files are; it need not exist."""
    return cache_folder() / "machines"


def check_place(device: str) -> Path:
    """Where the file of a device goes, in a folder that is made; DiagnosticError if none can be written."""
    path = folder() / f"{re.sub('[^A-Za-z0-9]+', '-', device).strip('-')}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"{path}: cannot be written: {error.strerror}") from None
    check_output(path)
    return path


def save(measured: Measured) -> Path:
    """Writes the file of a device; DiagnosticError where that fails."""
    path = check_place(measured.device)
    write_text(path, msgspec.json.format(msgspec.json.encode(measured), indent=1).decode() + "\n")
    return path


def known(machine: str) -> Measured | None:
    """What was measured last for an architecture, on whatever device of it."""
    found = list[Measured]()
    for path in sorted(folder().glob("*.json")):
        try:
            found.append(decode_json(path.read_bytes(), Measured))
        except (OSError, ValueError, TypeError):
            continue
    matching = [each for each in found if each.machine == machine and each.version == VERSION]
    return max(matching, key=lambda each: each.date, default=None)


def known_constants(machine: str) -> Constants | None:
    """The constants to plan with, None for the machine's own."""
    found = known(machine)
    return None if found is None else found.constants
