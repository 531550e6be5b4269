"""Writes the tables and the example in docs/isa.md from the code.

    python docs/make_isa.py          # rewrites the generated blocks
    python docs/make_isa.py --check  # exit code 1 if they are stale

In: docs/isa.md with blocks between `<!-- generated: NAME -->` and `<!-- end -->`. Guaranteed: a
header field, an opcode or a field without a meaning here is an error, and so is one that is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from generated import Stale, rewrite, with_blocks

from dnc.compiler import make_plan, transform
from dnc.diagnostics import Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import Plan
from dnc.ir.program import TABLE
from dnc.runtime.data import read_samples
from dnc.runtime.encoder import Encoder
from dnc.runtime.pool import static_pool
from dnc.runtime.prepared import prepare
from dnc.runtime.schedule import Schedule, disassemble

DOCS = Path(__file__).parent
PAGE = DOCS / "isa.md"
MODEL = DOCS.parent / "examples" / "treelstm.dn"
SETTINGS = {"vocab": 4, "embed": 8, "hidden": 8, "classes": 5}
REPLICAS, WORKERS = 1, 2
SCHEDULE_WORDS = 4096
TREE = {
    "left": {"word": 1, "label": 3},
    "right": {"left": {"word": 2, "label": 1}, "right": {"word": 3, "label": 2}, "label": 1},
    "label": 3,
}

# What the example has no instruction for: running statistics, and a recursion that chooses classes.
OTHERS = """model Others(n = 4, k = 2100)
struct Word = Word(form: class<n>, word: token<n>)
struct Text = Text(words: [Word])
param F: [n, n], U: [n, n], E: table[n, k], W: [n, k]
running param m: [n] = zeros
fn run(w: Word) -> [n] = tanh(U @ run(w.prev) + F[argmax(run(w.prev))] + W @ E[w.word])
loss sum(w in all(Word)) cross_entropy(run(w) - follow(m, run(w), 0.1), w.form)
output words = [argmax(run(w)) for w in all(Word)]
"""

# What the words mean; the keys must be exactly those of the code.
# Words that some plans have.
SOME = (isa.SHARERS, isa.AWAITED, isa.AWAITED_FROM, isa.AWAITED_SUMS)
HEADER = {
    "version": "version of this layout",
    "words": "length of the schedule",
    "replicas": "replicas of the launch",
    "workers": "workers of a replica",
    "bases": "offset of the base table",
    "lists": "offset of the list table",
    "queues": "offset of the queue table",
    "sync": "offset of the words for synchronisation",
    "samples": "samples of this launch",
    "loss_scale": "float: one over the samples of the whole batch; the seed of every gradient",
    "clip_norm": "float: the largest norm of the gradient; infinity for no clipping",
    "learning_rate": "float",
    "epsilon": "float: added to the root in AdaGrad and Adam",
    "weight_decay": "float",
    "momentum": "float: what a velocity keeps",
    "gain1": "float: 1 - beta1, the share of the new gradient in its running mean",
    "gain2": "float: 1 - beta2, the share of the new square in its running mean",
    "correction1": "float: what the mean is multiplied with, because it began as zero",
    "correction2": "float: what the root of the mean square is multiplied with, for the same reason",
    "runs": "runs of a record of partial sums: one a worker, or one that a cluster has added up (which not "
    "every plan can)",
    "sharers": "workers that share out the tiles of `outer` instructions (only where a plan has these)",
    "awaited": 'records of a buffer of states that the launch sets to minus zero, "not yet", before the '
    "recursion; its levels then wait for states by looking at them; 0: at barriers (only in plans that poll)",
    "awaited_from": "offset of a list: of every replica its first such record, then where those of the last "
    "one end",
    "awaited_sums": "the same rows' records of partial sums, all runs of them, which the levels on the way "
    "back then wait for; 0: at barriers (only in plans that poll sums)",
}
PLACES = {
    "@parameters": "all parameters: trained dense ones, trained tables, frozen ones",
    "@gradients": "gradients of the trained dense parameters, in the same order",
    "@chunks": "in training: weight gradients of all chunks of rows but the first, an arena each",
    "@state1": "the optimizer's first state: a word for every word of the trained parameters",
    "@state2": "its second state; 0 where the optimizer has fewer",
    "@norms": "sums of squares: one per chunk of the dense gradients, or per tile, then one per touched row",
    "@results": "what the host reads back: words of the schedule, just before those for synchronisation",
}
RESULTS = {
    "RESULT_NORM": "norm of the gradient before clipping",
    "RESULT_UPDATED": "1 if the update was made, 0 if the norm was not finite",
    "RESULT_FIRST": "the first of the sums that `reduce` makes",
}
SYNC = {
    "SYNC_GRID": "counter of `grid_barrier`",
    "SYNC_POSTS": "counter of post 0; those of the others follow, a word each",
    "SYNC_ABORT": "abort record",
    "SYNC_REPLICAS": "counter of replica 0; those of the others follow",
}
ABORT = {
    "waiter": "the worker that gave up plus one; 0 if none did",
    "instruction": "its place in the queue, from 0",
    "exchange": "what it waited for: an index into the names below",
    "missing": "arrivals that had not come",
}
OPCODES = {
    "nop": "nothing; what a worker executes instead of its instructions after an abort",
    "end": "the queue ends here",
    "replica_barrier": "waits for all workers of the replica",
    "grid_barrier": "waits for all workers of the launch",
    "norm": "adds up the chunks of rows of neighbouring parameters, and the squares of what comes out, a "
    "span of these into a word of `@norms`; spans are dealt out to the grid, behind those of the last `norm`",
    "post": "says that some levels of the way back are behind this worker; it waits for nobody",
    "early": "waits until so many workers have posted; `outer` instructions behind it are shared out to the "
    "workers from `first` on, where that is not 0, up to the next `early`",
    "leave": "goes on at another instruction if all lists have ended, see below",
    "reduce": "the last worker adds up a column of records into a word of the results",
    "OPTIMIZER": "clips, and updates the trained dense parameters of one rate: an opcode each for "
    + ", ".join(f"`{name}`" for name in OPTIMIZERS),
    "OPTIMIZER TABLE": "the same for the touched rows of a table",
    "SEGMENT": "a segment of the plan on neighbouring rows of its space",
    "gradient PARAMETER #N": "adds up the gradient of a dense parameter, and where rows can be copied that "
    "of a vector with the same deltas; tiles of all chunks are dealt out to the grid",
    "outer": "the same over rows that are few, or are made early: a vector that adds up the same deltas is "
    "made along, the squares of every tile go into `@norms`, and there is no `norm`",
    "follow": "moves the running parameters, which lie behind the trained ones, by what the rows gave, "
    "unless the norm is not finite",
    "device_barrier": "the first worker waits for those of all GPUs that train together; between barriers of "
    "the grid",
    "all_reduce": "adds up what all these GPUs have, span by span, and the squares of what comes out, on all "
    "of them; spans are dealt out to the GPUs, and those of a GPU to its workers",
    "sum deltas": "adds up the deltas of every touched row of a table, with an exchange behind it: where "
    "vertices are many",
    "gradient TABLE": "adds up the slots of every touched row of a table; or what its products make of them "
    "or of those sums, in tiles that are dealt out to the grid",
}
FIELDS = {
    "ordinal": "how many barriers of this kind the queue has had, with this one; "
    "passed when the counter is `ordinal` times the workers that meet",
    "first": "the first float of those parameters, in the arena of trained dense ones; of `early` the first "
    "worker of those who share what follows",
    "rate": "bits of a float: the factor of these parameters on the learning rate",
    "count": "floats of these trained dense parameters, or of what is added up, padding included",
    "width": "words of a padded record that count; 0 where all do",
    "device": "the number of the GPU",
    "devices": "how many GPUs train together",
    "norms": "words of `@norms` to add up, in order, for the norm of the whole gradient",
    "tokens": "touched rows of the table",
    "first_norm": "the word of `@norms` for the first touched row, span or tile; -1 for none",
    "gradient": "the number of the gradient of a dense parameter",
    "chunks": "chunks of rows that are summed apart: as many for all gradients of a parameter",
    "to": "where the workers go on, counted in instructions from the queue's first",
    "lists": "lists of the replica",
    "begins": "offset of a word for every list: the offset of its first entry",
    "ends": "offset of a word for every list: the offset behind its last entry of those that are there",
    "word": "the class that ends a list",
    "accumulate": "1: add to what is there (a later part of a batch, a second use of the parameter, or rows "
    "that were made early, to which of several chunks the first alone adds); 0: overwrite",
    "base": "address of the first record, or float",
    "stride": "words from record to record",
    "result": "the word of the results",
    "row": "first row of the group",
    "rows": "number of rows",
    "index": "which parameter of a stack; 0 where there is no stack",
    "tile": "which of the shapes of tiles that the kernel has for the gradient; a CPU has one",
    "first_worker": "the worker that takes the first tile, or the first touched row; behind an `early` "
    "counted from its `first`",
    "number": "which post of the launch, from 0",
    "posts": "workers that have made it",
    "before": "workers, counted from the first one on, that come before those who are left out",
    "left_out": "workers that take no tiles, because they have more to do than others",
    "groups": "8 tokens each, of a tile",
}


def example_plan() -> Plan:
    """The plan of the small Tree-LSTM that the page shows."""
    source = Source(MODEL.name, MODEL.read_text(encoding="utf-8"))
    program, _ = load_program(source, SETTINGS)
    return make_plan(transform(program), "sm_90a")


def other_plan() -> Plan:
    """A plan that has what the example has not."""
    program, _ = load_program(Source("others.dn", OTHERS), {})
    return make_plan(transform(program), "sm_90a")


def example_schedule(plan: Plan) -> Schedule:
    """One training batch: a tree with three leaves, on one replica of two workers."""
    data = read_samples([TREE], plan.program)
    rows = {p.name: SETTINGS["vocab"] for p in plan.program.parameters if p.kind == TABLE}
    encoder = Encoder(prepare(plan, data.forest), static_pool(plan, rows, SCHEDULE_WORDS))
    return encoder.encode(np.zeros(1, np.int32), replicas=REPLICAS, workers=WORKERS)


def opcode_kind(plan: Plan, name: str) -> str:
    """The row of the opcode table that an opcode of a plan belongs to."""
    tables = {table.parameter for table in plan.table_gradients}
    if name in {segment.name for segment in plan.segments}:
        return "SEGMENT"
    if name in {gradient.name for gradient in plan.dense_gradients}:
        return "gradient PARAMETER #N"
    if name.startswith("sum deltas"):
        return "sum deltas"
    kind, _, rest = name.partition(" ")
    kind = "OPTIMIZER" if kind in OPTIMIZERS else kind
    return f"{kind} TABLE" if rest in tables else kind if kind == "OPTIMIZER" else name


def meanings(what: str, names: Sequence[str], known: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every name with its meaning; Stale unless both sides have the same names."""
    differing = set(names) ^ set(known)
    if differing:
        raise Stale(f"{what}: docs/make_isa.py and dnc/ir/isa.py differ in {sorted(differing)}")
    return [(name, known[name]) for name in names]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def blocks() -> dict[str, str]:
    """The generated blocks of the page by name."""
    plan = example_plan()
    plans = (plan, other_plan())
    kinds = {opcode_kind(each, opcode.name): opcode for each in plans for opcode in each.opcodes}
    fields = list(dict.fromkeys(field for opcode in kinds.values() for field in opcode.fields))
    lines = {name: isa.SYNC_STRIDE for name in SYNC} | {"SYNC_POSTS": 1}
    sync = {name: getattr(isa, name) * words for name, words in lines.items()}
    results = {name: getattr(isa, name) for name in RESULTS}
    exchanges = "; ".join(f"{number}: {name}" for number, name in enumerate(isa.ABORT_EXCHANGES))
    abort = meanings("abort record", isa.ABORT_FIELDS, ABORT)
    return {
        "sizes": table(
            ("constant", "value", "meaning"),
            (
                ("`VERSION`", isa.VERSION, "of the layout"),
                ("`INSTRUCTION_WORDS`", isa.INSTRUCTION_WORDS, "words of an instruction"),
                ("`SYNC_STRIDE`", isa.SYNC_STRIDE, "words between two counters (a line of the L2 cache)"),
                ("`RESULT_WORDS`", isa.RESULT_WORDS, "words of the results"),
                ("`NORM_CHUNK`", isa.NORM_CHUNK, "floats of a chunk of the norm"),
            ),
        ),
        "header": table(
            ("word", "field", "meaning"),
            [
                (word, f"`{name}`", text)
                for word, (name, text) in enumerate(meanings("header", (*isa.HEADER, *SOME), HEADER))
            ],
        ),
        "places": table(
            ("base", "what lies there"),
            [(f"`{name}`", text) for name, text in meanings("places", isa.PLACES, PLACES)],
        ),
        "sync": table(
            ("word behind `sync`", "name", "meaning"),
            [(sync[name], f"`{name}`", text) for name, text in SYNC.items()],
        )
        + "\n"
        + table(
            ("word of the abort record", "field", "meaning"),
            [(word, f"`{name}`", text) for word, (name, text) in enumerate(abort)],
        )
        + f"\nExchanges: {exchanges}.\n",
        "results": table(
            ("word", "name", "meaning"),
            [(results[name], f"`{name}`", text) for name, text in RESULTS.items()],
        ),
        "opcodes": table(
            ("opcode", "fields", "meaning"),
            [
                (f"`{kind}`", ", ".join(f"`{field}`" for field in kinds[kind].fields) or "none", text)
                for kind, text in meanings("opcodes", list(kinds), OPCODES)
            ],
        ),
        "fields": table(
            ("field", "meaning"),
            [(f"`{name}`", text) for name, text in meanings("fields", fields, FIELDS)],
        ),
        "example": _example(plan),
    }


def _example(plan: Plan) -> str:
    schedule = example_schedule(plan)
    rows = ", ".join(f"`{name}` {count}" for name, count in schedule.rows.items())
    text = disassemble(schedule.words, plan)
    return f"Rows of the spaces: {rows}.\n\n```text\n{text}\n```\n"


def render(page: str) -> str:
    """The page with its blocks made again; Stale if a block is missing or unknown."""
    return with_blocks("docs/isa.md", page, blocks())


if __name__ == "__main__":
    sys.exit(rewrite(PAGE, render, sys.argv[1:]))
