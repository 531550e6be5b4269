"""Index lists: what the encoder resolves for every batch, so that a kernel finds what a row reads.

In: a plan. Out: descriptions of lists, by name; addresses count units of 4 words from the start of the pool.
"""

from __future__ import annotations

import attrs

from dnc.ir.structure import Path


@attrs.frozen
class GatherList:
    """Per row: the address of `function`'s state record at `path`; 0 where absent."""

    name: str
    space: str
    function: str
    path: Path


@attrs.frozen
class TableList:
    """Per row: the address of the table's row for the token `field` of the vertex at `path`."""

    name: str
    space: str
    parameter: str
    field: str
    path: Path


@attrs.frozen
class ClassList:
    """Per row: the integer in `field` of the vertex at `path`; -1 where missing."""

    name: str
    space: str
    field: str
    path: Path


@attrs.frozen
class VectorList:
    """Per row: the address of the float vector in `field` of the vertex at `path`."""

    name: str
    space: str
    field: str
    path: Path
    width: int


@attrs.frozen
class NoiseList:
    """Per row: the key of its random numbers; 0 for none. draws: as `NoiseInput` has it."""

    name: str
    space: str
    draws: bool


@attrs.frozen
class ShareList:
    """Per row: the address of a float, one over the rows that move the running `parameter` as it does:
    of a stack those with the same index `field`."""

    name: str
    space: str
    parameter: str
    field: str


@attrs.frozen
class ChildrenList:
    """Ragged: begin[rows + 1], then the addresses of the children's state records."""

    name: str
    space: str
    function: str
    path: Path


@attrs.frozen
class SlotSource:
    """Slots in `buffer`, written by rows of `space` for the vertex (or children) at `path`."""

    buffer: str
    space: str
    path: Path
    is_list: bool = False
    field: str | None = None


@attrs.frozen
class SlotList:
    """Ragged: begin[rows + 1], then the addresses of the gradient slots of every row's vertex.

    Order: sources as listed, then rows of the source. `partial` slots hold a run per worker.
    """

    name: str
    space: str
    sources: tuple[SlotSource, ...]
    partial: bool


@attrs.frozen
class OperandList:
    """Per row: what `list` says; where the deltas of a token's vertices are added up first, per touched row
    of the table `parameter` its address (`plan.TableProduct`)."""

    name: str
    space: str
    list: str
    parameter: str


IndexList = (
    GatherList
    | TableList
    | ClassList
    | VectorList
    | NoiseList
    | ShareList
    | ChildrenList
    | SlotList
    | OperandList
)
