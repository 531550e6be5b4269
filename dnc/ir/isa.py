"""The instruction set and the layout of a schedule: the one table that encoder, disassembler,
verifier, reference VM and both kernels' decoders are derived from.

A schedule is an array of int32 words: header, base table, list table, queue table, queues, lists,
vector data. Offsets of words count from the start of the schedule; addresses count units of 4
words from the start of the pool. An instruction is `INSTRUCTION_WORDS` words: its opcode, then
its fields in the order of the table below. All workers of a replica run the same queue: which
rows or units of an instruction are theirs follows from their rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from dnc.ir.cutting import has_outer, made_along
from dnc.ir.early import early
from dnc.ir.machine import machine
from dnc.ir.optimizers import COEFFICIENTS, MOST_STATES, OPTIMIZERS
from dnc.ir.plan import (
    BF16,
    FP32,
    SPARSE,
    TF32,
    TF32X3,
    Opcode,
    Plan,
    SlotsAddress,
    TableGradient,
    TableProduct,
    padded,
)
from dnc.ir.program import TABLE, Parameter
from dnc.ir.regions import ANYWHERE, FRONT, Regions, generates
from dnc.ir.sparse import packed_words

INSTRUCTION_WORDS = 8
VERSION = 9

# How many runs a record of a reduced buffer has: as many as workers, or one, which they have added up.
RUNS = "runs"
# Words of the header, by name. Floats are stored as their bits. `lists`, `bases` and `queues` are
# offsets of the tables; `queues` holds one offset per worker, replica by replica. `sync` is the
# offset of the words for synchronisation.
HEADER = (
    "version",
    "words",
    "replicas",
    "workers",
    "bases",
    "lists",
    "queues",
    "sync",
    RUNS,
    "samples",
    "loss_scale",
    "clip_norm",
    *COEFFICIENTS,
)

# How many records of polled states a launch sets to "not yet" before the recursion, and how many of polled
# partial sums; 0: no level polls those. Where a list is that says whose they are: of every replica its first
# one, then where those of the last end.
AWAITED, AWAITED_SUMS, AWAITED_FROM = "awaited", "awaited_sums", "awaited_from"
# How many workers share out the tiles of `outer` instructions: those with the first numbers.
SHARERS = "sharers"

# Words for synchronisation, zero in every encoded schedule, so that no launch has to clear them:
# the counter of the grid, the abort record, the counters of the replicas, SYNC_STRIDE words apart. Those of
# posts lie in the line of the grid's, SYNC_POSTS words behind it: nobody waits there while others post.
SYNC_GRID, SYNC_ABORT, SYNC_REPLICAS = 0, 1, 2
SYNC_STRIDE, SYNC_POSTS = 32, 16

# Words of the abort record. `waiter` is the worker that gave up plus one (0: no abort), `missing`
# the arrivals that had not come, `exchange` an index into the names.
ABORT_FIELDS = ("waiter", "instruction", "exchange", "missing")
GRID, REPLICA, UNKNOWN_OPCODE, GPUS, POSTED = range(5)  # where a worker gave up, and what that is called
ABORT_EXCHANGES = (
    "barrier of the whole grid",
    "barrier of a replica",
    "none: an unknown opcode",
    "barrier of several GPUs",
    "posts of other replicas",
)

# Places in the pool beside buffers and parameters; each has a base in the base table.
PARAMETERS, GRADIENTS, CHUNKS, NORMS, RESULTS = (
    "@parameters",
    "@gradients",
    "@chunks",
    "@norms",
    "@results",
)
# What optimizers keep for every word of the trained parameters, an arena a state.
STATES = tuple(f"@state{number}" for number in range(1, MOST_STATES + 1))
PLACES = (PARAMETERS, GRADIENTS, CHUNKS, *STATES, NORMS, RESULTS)

# Words of the results: the norm of the gradient, 1 if the update was made (0 if the norm was not
# finite), then what `reduce` instructions sum up.
RESULT_NORM, RESULT_UPDATED, RESULT_FIRST = 0, 1, 2
RESULT_WORDS = 64

# The gradient's norm is summed over chunks of this many floats, then over the chunks in order.
NORM_CHUNK = 4096

# The rows of a weight gradient are cut into chunks, and every tile of every chunk is a piece of work
# for a worker: chunk c has rows row + c * size up to row + (c + 1) * size, with `chunk_rows` as size.
# Chunk 0 is summed into GRADIENTS, the others into arenas of their own at CHUNKS; NORM adds them up in
# order. All gradients of a parameter have as many chunks, different parameters as many as suits them.
CHUNK_MULTIPLE = 32
MOST_CHUNKS = 12

NOP, END, REPLICA_BARRIER, GRID_BARRIER = "nop", "end", "replica_barrier", "grid_barrier"
NORM, REDUCE, FOLLOW, OUTER = "norm", "reduce", "follow", "outer"
LEAVE, POST, EARLY = "leave", "post", "early"
DEVICE_BARRIER, ALL_REDUCE = "device_barrier", "all_reduce"

# `ordinal` counts the barriers of one kind in a queue, from 1: a counter has been passed when every
# worker has added one for each of them.
BARRIER_FIELDS = ("ordinal",)
SEGMENT_FIELDS = ("row", "rows")
# Goes on at instruction `to` if the words `begins` and `ends` lead to the class `word` in every one of
# `lists` lists: entries of a list are the words from the offset at begins + list up to that at ends + list,
# each the address of a record whose first float is a class. Workers of a replica decide alike.
LEAVE_FIELDS = ("to", "lists", "begins", "ends", "word")
# Weight gradients of levels that have ended (`ir.early`): a worker says that post `number` is behind it;
# others wait until so many have, and gradients that follow are shared out to workers from `first` on.
POST_FIELDS, EARLY_FIELDS = ("number",), ("first", "number", "posts")
# `index` is the number of a parameter in its stack (0 where there is no stack), `tile` an index into
# `cutting.gradient_tiles`.
DENSE_GRADIENT_FIELDS = ("row", "rows", "first_worker", "accumulate", "chunks", "index", "tile")
# The same of few rows, in tiles of `outer_tile`: one body for all gradients, of which `gradient` is the
# number. The workers that the header counts take turns. A vector of `outer_beside` is made along. The squares
# of each tile are summed into the norms from `first_norm` on, and NORM is left out; NO_NORM where others add
# to the same elements behind it, or what is summed is no gradient.
OUTER_FIELDS = ("gradient", "row", "rows", "first_worker", "accumulate", "index", "first_norm")
NO_NORM = -1
NORM_FIELDS = ("first", "count", "chunks", "first_norm")
# Adds what rows gave to running parameters, unless the norm is not finite.
REDUCE_FIELDS = ("base", "rows", "stride", "result")
FOLLOW_FIELDS = ("first", "count", "norms", "chunks")
# Adds up the deltas of every touched token of a table (`plan.TableProduct`).
SUM_FIELDS = ("tokens", "first_worker")
# Training on several GPUs (`encoder/devices.py`): device number `device` of `devices`. The floats from the
# address `base` on lie at the same place on all of them. Spans of NORM_CHUNK floats are dealt out to devices,
# and those of a device to its workers: whoever has a span adds up what all devices have, in their order, and
# writes the sum, and its square into the norms, to all of them. NO_NORM as above. `width`: of padded records
# the words that count, the others become zero; 0 where all do.
DEVICE_BARRIER_FIELDS = (*BARRIER_FIELDS, "device", "devices")
ALL_REDUCE_FIELDS = ("base", "count", "first_norm", "width", "device", "devices")
MEETINGS = 2  # barriers of all devices in a launch, at most
# On a GPU a token with more than FEW_SLOTS slots is made in parts of so many columns, each by a worker. Every
# token leaves a norm a part: see `table_norms`.
TABLE_GRADIENT_FIELDS = ("tokens", "first_norm", "accumulate", "first_worker")
FEW_SLOTS, PART_COLUMNS = 16, 64
# The same of a table with products, in tiles of `groups` groups of tokens and a part of the columns. Workers
# take turns from the first on, without the `left_out` that follow the first `before`.
TABLE_PRODUCT_FIELDS = (*TABLE_GRADIENT_FIELDS, "before", "left_out", "groups")
TOKEN_GROUP = 8
# `rate` is the factor of these parameters on the learning rate, the bits of a float; behind it, where a plan
# has such, whether these are sparse: what is zero stays so.
UPDATE_FIELDS = ("first", "count", "norms", "rate")
KEEPS_ZEROS = "keeps_zeros"
FLOAT_FIELDS = ("rate",)
TABLE_UPDATE_FIELDS = ("tokens", "norms", "rate")


def table_norms(table: TableGradient) -> int:
    """Norms that every touched token of a table leaves; those behind the first may be zero."""
    return -(-table.width // PART_COLUMNS)


def chunk_rows(rows: int, chunks: int) -> int:
    """Rows of a chunk: whole multiples of CHUNK_MULTIPLE, so the last ones may be short or empty."""
    size = -(-rows // chunks)
    return -(-size // CHUNK_MULTIPLE) * CHUNK_MULTIPLE


def optimizers_of(plan: Plan, table: str = "") -> dict[int, str]:
    """The opcodes that update the dense parameters (or a table), which follow one another: optimizers.

    None in a plan that does not train.
    """
    if not plan.trains:
        return {}
    return {plan.opcode(f"{name} {table}".rstrip()).number: name for name in OPTIMIZERS}


def float_bits(value: float) -> int:
    """The bits of a float32, as a field of an instruction holds them."""
    return int(np.float32(value).view(np.int32))


def table_lists(parameter: str) -> tuple[str, str, str]:
    """Lists of a table's gradient: addresses of the touched rows, and the ragged slot lists.

    The compact gradient of touched row i is record i of the base `table_base(parameter)`.
    """
    return f"table {parameter}:rows", f"table {parameter}:plain", f"table {parameter}:partial"


def table_fields(table: TableGradient) -> tuple[str, ...]:
    """The fields of a table's gradient."""
    return TABLE_PRODUCT_FIELDS if table.products else TABLE_GRADIENT_FIELDS


# What a tile of a table's products costs, in cycles: to start and to end it, for a row of the matrices, and
# for every group of tokens beside; by precision, as seen on an H200.
_TOKEN_TILE = 3000
_TOKEN_ROW = {FP32: (14.3, 4.75), TF32X3: (14.3, 1.5), TF32: (14.3, 0.5), BF16: (14.3, 0.5)}


def token_groups(plan: Plan) -> tuple[int, ...]:
    """How many groups of tokens a tile of a table's products may have. On tensor cores a group more costs so
    little that some sizes would be code for nothing."""
    return (1, 2, 3, 4) if plan.precision == FP32 else (1, 2, 4, 6, 8)


def token_tile_cycles(plan: Plan, table: TableGradient, groups: int) -> int:
    """What a tile of a table's products costs, in cycles."""
    rows = sum(product.rows for product in table.products)
    row, group = _TOKEN_ROW[plan.precision]
    return int(_TOKEN_TILE + rows * (row + groups * group))


def sum_opcode(product: TableProduct) -> str:
    """The opcode that fills the buffer of a product's sums."""
    return f"sum {product.sums}"


def sum_opcodes(plan: Plan) -> dict[str, TableProduct]:
    """The products of a plan's tables by the opcodes that fill the buffers of their sums."""
    return {sum_opcode(product): product for product in plan.table_products}


def table_slots(table: TableGradient) -> SlotsAddress:
    """The slots of a touched row, without products."""
    _, plain, partial = table_lists(table.parameter)
    bare = not table.products
    found = (plain if table.plain or bare else None, partial if table.partial or bare else None)
    return SlotsAddress(*found, padded(table.width))


def table_base(parameter: str) -> str:
    """Base of the compact gradient rows of a table."""
    return f"table {parameter}:gradient"


def opcodes(plan: Plan) -> tuple[Opcode, ...]:
    """The instruction set of a plan: the fixed instructions, then the model's own, region by region."""
    regions = Regions.of(plan)
    behind = regions.behind
    named: list[tuple[str, tuple[str, ...], int]] = [
        (NOP, (), ANYWHERE),
        (END, (), ANYWHERE),
        (REPLICA_BARRIER, BARRIER_FIELDS, ANYWHERE),
        (GRID_BARRIER, BARRIER_FIELDS, ANYWHERE),
    ]
    named += [(segment.name, SEGMENT_FIELDS, regions.of_segment(segment)) for segment in plan.segments]
    named += [(LEAVE, LEAVE_FIELDS, FRONT + 1)] if generates(plan) else []  # levels are not apart there
    if (found := early(plan)) is not None:
        named += [(POST, POST_FIELDS, found.region), (EARLY, EARLY_FIELDS, behind)]
    named += [(NORM, NORM_FIELDS, behind)] if plan.trains else []
    named.append((REDUCE, REDUCE_FIELDS, behind))
    if plan.trains:
        named += [(optimizer, update_fields(plan), behind) for optimizer in OPTIMIZERS]
    if running_floats(plan):
        named.append((FOLLOW, FOLLOW_FIELDS, behind))
    for table in plan.table_gradients:
        named += [(f"{name} {table.parameter}", TABLE_UPDATE_FIELDS, behind) for name in OPTIMIZERS]
    if runs_on_several(plan):
        named += [(DEVICE_BARRIER, DEVICE_BARRIER_FIELDS, behind), (ALL_REDUCE, ALL_REDUCE_FIELDS, behind)]
    named += [(gradient.name, DENSE_GRADIENT_FIELDS, behind) for gradient in plan.dense_gradients]
    named += [(OUTER, OUTER_FIELDS, behind)] if has_outer(plan) else []
    named += [(name, SUM_FIELDS, behind) for name in sum_opcodes(plan)]
    named += [(f"gradient {table.parameter}", table_fields(table), behind) for table in plan.table_gradients]
    named.sort(key=lambda item: item[2])
    return tuple(Opcode(name, number, fields, region) for number, (name, fields, region) in enumerate(named))


def runs_on_several(plan: Plan) -> bool:
    """Whether several devices can train on the shares of a batch, each with this plan."""
    return plan.trains and machine(plan.target).is_gpu


def header_names(plan: Plan) -> tuple[str, ...]:
    """Names of the header's words, in order; the last ones are there where the plan has `outer` instructions,
    levels that poll."""
    some = [(SHARERS, has_outer(plan)), (AWAITED, plan.polled), (AWAITED_FROM, plan.polled)]
    some.append((AWAITED_SUMS, any(each.partial for each in plan.polled)))
    return (*HEADER, *(name for name, is_there in some if is_there))


def packed_parameters(plan: Plan) -> tuple[str, ...]:
    """Parameters that are in the pool a second time, packed (`ir.sparse`), for SPARSE slices."""
    return tuple(dict.fromkeys(p.parameter for p in plan.placements if p.residency == SPARSE))


def packed_base(parameter: str) -> str:
    """Base of a packed parameter."""
    return f"packed {parameter}"


def packed_floats(plan: Plan, parameter: str) -> int:
    """Words of a packed parameter."""
    found = plan.program.parameter(parameter)
    return packed_words(found.type.shape[0], found.kept)


def base_names(plan: Plan) -> tuple[str, ...]:
    """Names of the base table's entries, in order: places, parameters, packed ones, tables' rows, buffers."""
    parameters = tuple(parameter.name for parameter in plan.program.parameters)
    parameters += tuple(map(packed_base, packed_parameters(plan)))
    tables = tuple(table_base(table.parameter) for table in plan.table_gradients)
    return (*PLACES, *parameters, *tables, *(buffer.name for buffer in plan.buffers))


def list_names(plan: Plan) -> tuple[str, ...]:
    """Names of the list table's entries, in order.

    A list of children is begin[rows + 1], whose values are offsets of words in the schedule, so the
    entries of a row are the words from begin[row] up to begin[row + 1]. A list of slots is
    head[rows]: 0 for no slot; -1 - address for one; else the offset of a count and its entries.
    """
    tables = tuple(name for table in plan.table_gradients for name in table_lists(table.parameter))
    tables += tuple(name for product in plan.table_products for name in (product.deltas, product.terms))
    return (*(item.name for item in plan.lists), *tables)


@attrs.frozen
class Layout:
    """Positions of everything static in a schedule, by name."""

    header: dict[str, int]
    bases: dict[str, int]
    lists: dict[str, int]

    @property
    def bases_at(self) -> int:
        """Word offset of the base table: behind the header, the same in every schedule."""
        return len(self.header)

    @property
    def lists_at(self) -> int:
        """Word offset of the list table."""
        return self.bases_at + len(self.bases)

    @property
    def queues_at(self) -> int:
        """Word offset of the queue table."""
        return self.lists_at + len(self.lists)


def layout(plan: Plan) -> Layout:
    """The layout of every schedule of a plan."""
    return Layout(
        {name: index for index, name in enumerate(header_names(plan))},
        {name: index for index, name in enumerate(base_names(plan))},
        {name: index for index, name in enumerate(list_names(plan))},
    )


def dense_parameters(plan: Plan) -> tuple[Parameter, ...]:
    """Dense parameters in arena order: trained ones, running, frozen ones.

    Trained and running ones to which rows add come first, in front of those that nothing depends on, so that
    arenas of chunks, which nobody clears, are added up as far as they are written. Among the trained ones
    those of one rate stand side by side.
    """
    dense = [parameter for parameter in plan.program.parameters if parameter.kind != TABLE]
    summed = _summed(plan)
    return tuple(
        sorted(dense, key=lambda p: (p.frozen, p.running, p.name not in summed, p.rate, p.is_sparse))
    )


def _summed(plan: Plan) -> set[str]:
    """Names of the dense parameters to whose gradient, or running value, rows add."""
    return {gradient.parameter for gradient in plan.dense_gradients}


def trained_floats(plan: Plan) -> int:
    """Floats of all trained dense parameters, of which a plan that trains has the gradient."""
    return sum(group.count for group in update_groups(plan)) if plan.trains else 0


def norm_groups(plan: Plan) -> tuple[tuple[int, int, str], ...]:
    """Runs of an arena that as many chunks add to: first float, floats, a parameter among them.

    A vector that is made along with a matrix has as many as this one. On a CPU nothing has chunks.
    """
    along = {
        beside.parameter: next(g.parameter for g in plan.dense_gradients if g.name == name)
        for name, beside in made_along(plan).items()
    }
    splits, summed = machine(plan.target).splits_gradients, _summed(plan)
    groups: list[tuple[int, int, str]] = []
    at = 0
    for parameter in dense_parameters(plan):
        if not parameter.trained or parameter.name not in summed:
            continue
        floats = parameter_floats(plan, parameter.name)
        owner = along.get(parameter.name, parameter.name)
        if groups and (groups[-1][2] == owner or not splits):
            first, count, owner = groups.pop()
            groups.append((first, count + floats, owner))
        else:
            groups.append((at, floats, owner))
        at += floats
    return tuple(groups) or ((0, 0, ""),)


def norm_count(plan: Plan) -> int:
    """Norms that `norm` instructions leave."""
    return sum(-(-count // NORM_CHUNK) for _, count, _ in norm_groups(plan))


def summed_floats(plan: Plan) -> int:
    """Floats of trained dense parameters to which rows add: the first ones of an arena of gradients."""
    return sum(count for _, count, _ in norm_groups(plan))


def running_floats(plan: Plan) -> int:
    """Floats of all running parameters, behind the trained ones; 0 in a plan that does not train."""
    return _floats(plan, [p for p in dense_parameters(plan) if p.running])


def followed_floats(plan: Plan) -> int:
    """Floats of the running parameters that rows move: the first running ones of an arena."""
    summed = _summed(plan)
    return _floats(plan, [p for p in dense_parameters(plan) if p.running and p.name in summed])


def _floats(plan: Plan, parameters: Sequence[Parameter]) -> int:
    return sum(parameter_floats(plan, each.name) for each in parameters) if plan.trains else 0


def gradient_floats(plan: Plan) -> int:
    """Floats of an arena of gradients: those of trained parameters, then what running ones move by."""
    return trained_floats(plan) + running_floats(plan)


@attrs.frozen
class UpdateGroup:
    """Trained dense parameters that lie side by side and are updated alike.

    first: their first float in the arena. count: floats. sparse: what is zero stays so.
    """

    first: int
    count: int
    rate: float
    sparse: bool


def update_groups(plan: Plan) -> tuple[UpdateGroup, ...]:
    """Those of a plan; one, of no floats, where all that is trained are tables."""
    groups: list[UpdateGroup] = []
    at = 0
    for parameter in dense_parameters(plan):
        if not parameter.trained:
            break
        own = UpdateGroup(at, parameter_floats(plan, parameter.name), parameter.rate, parameter.is_sparse)
        at += own.count
        if groups and (groups[-1].rate, groups[-1].sparse) == (own.rate, own.sparse):
            groups[-1] = attrs.evolve(groups[-1], count=groups[-1].count + own.count)
        else:
            groups.append(own)
    return tuple(groups) or (UpdateGroup(0, 0, 1.0, False),)


def update_fields(plan: Plan) -> tuple[str, ...]:
    """The fields of an update of dense parameters."""
    some = any(parameter.is_sparse and parameter.trained for parameter in plan.program.parameters)
    return (*UPDATE_FIELDS, KEEPS_ZEROS) if some else UPDATE_FIELDS


def update_words(plan: Plan, group: UpdateGroup) -> dict[str, int]:
    """What the fields of an update say of its group."""
    found = {"first": group.first, "count": group.count, "rate": float_bits(group.rate)}
    return found | ({KEEPS_ZEROS: int(group.sparse)} if KEEPS_ZEROS in update_fields(plan) else {})


def parameter_floats(plan: Plan, name: str) -> int:
    """Floats that a dense parameter takes in the pool, in the plan's weight format."""
    return plan.program.parameter(name).count * slice_floats(plan, name)


def slice_floats(plan: Plan, name: str) -> int:
    """Floats from one parameter of a stack to the next; all of them for any other dense parameter."""
    parameter = plan.program.parameter(name)
    assert parameter.kind != TABLE
    return plan.weight_format.floats(parameter.type.shape)
