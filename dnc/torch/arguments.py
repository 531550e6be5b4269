"""Pulled vectors as a caller hands them in.

In: a tensor, or tensors by field, or by sample. Out: one tensor a field, [vertices, width], on the device.
Guaranteed: a wrong name, shape, device or type is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from dnc.diagnostics import counted, fail
from dnc.ir.forest import Ints

Vectors: TypeAlias = Tensor | Sequence[Tensor]
Pulled: TypeAlias = Vectors | Mapping[str, Vectors] | None


def check_pulled(
    pulled: Pulled, sizes: Mapping[str, Ints], widths: Mapping[str, int], device: torch.device
) -> dict[str, Tensor]:
    """The tensors by field, in the order of `sizes`, which says how many vertices every sample has."""
    given = _by_field(pulled, tuple(sizes))
    unknown = sorted(set(given) - set(sizes))
    missing = sorted(set(sizes) - set(given))
    if unknown or missing:
        name, how = (unknown[0], "is unknown") if unknown else (missing[0], "is missing")
        raise fail(f"the pulled vector '{name}' {how}; the program has: {', '.join(sizes) or 'none'}")
    return {name: _checked(name, given[name], sizes[name], widths[name], device) for name in sizes}


def _by_field(pulled: Pulled, fields: tuple[str, ...]) -> Mapping[str, Vectors]:
    if pulled is None:
        return {}
    if isinstance(pulled, Mapping):
        return pulled
    if len(fields) != 1:
        if not fields:
            raise fail("found vectors to pull; the program pulls none")
        found = ", ".join(fields)
        raise fail(f"found vectors without a name; the program pulls {found}: hand them in by name")
    return {fields[0]: pulled}


def _checked(name: str, given: Vectors, sizes: Ints, width: int, device: torch.device) -> Tensor:
    if not isinstance(given, Tensor):
        return _joined(name, given, sizes, width, device)
    _check_kind(f"the pulled vector '{name}'", given, device)
    count = int(sizes.sum())
    if given.shape != (count, width):
        found, wanted = f"is {list(given.shape)}", f"{[count, width]}"
        if given.shape[1:] == (width,):
            found, wanted = f"has {counted(len(given), 'row')}", f"{count}"
        raise fail(
            f"the pulled vector '{name}' {found}, expected {wanted}: a row for every vertex with that "
            f"field in the batch of {counted(len(sizes), 'sample')}"
        )
    return _as_float(given)


def _joined(name: str, given: Sequence[Tensor], sizes: Ints, width: int, device: torch.device) -> Tensor:
    """One tensor of those of the samples."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        found = type(given).__name__
        raise fail(f"the pulled vector '{name}' is {found}, expected a tensor or a list of them")
    if len(given) != len(sizes):
        found = f"{counted(len(given), 'tensor')}, expected {len(sizes)}, one a sample"
        raise fail(f"the pulled vector '{name}' has {found}")
    for number, (each, size) in enumerate(zip(given, sizes, strict=True), 1):
        whose = f"the pulled vector '{name}' of sample {number}"
        if not isinstance(each, Tensor):
            raise fail(f"{whose} is {type(each).__name__}, expected a tensor")
        _check_kind(whose, each, device)
        if each.shape != (size, width):
            raise fail(f"{whose} is {list(each.shape)}, expected [{size}, {width}]")
    return torch.cat([_as_float(each) for each in given])


def _check_kind(whose: str, given: Tensor, device: torch.device) -> None:
    if given.device != device:
        raise fail(f"{whose} is on {given.device}, expected {device}")
    if given.layout != torch.strided:
        raise fail(f"{whose} is {given.layout}, expected a dense tensor")
    lower = torch.is_autocast_enabled(device.type) and given.dtype in (torch.float16, torch.bfloat16)
    if given.dtype != torch.float32 and not lower:
        raise fail(f"{whose} is {given.dtype}, expected torch.float32")


def _as_float(given: Tensor) -> Tensor:
    """float32, also under autocast, where the layers before give 16 bits."""
    return given if given.dtype == torch.float32 else given.float()
