"""Writes the tables in docs/models.md from the examples, their plans and what was measured.

    python docs/make_models.py          # rewrites the generated blocks
    python docs/make_models.py --check  # exit code 1 if they are stale

In: examples/*.dn; docs/models.json (differences, from `python -m tests.models.compare`); the newest
sentences a second of every model in benchmarks/results/*-models*.json (from benchmarks/models.py).
Guaranteed: an example without a line in MODELS is an error, and so is a line without an example
(or a variant: an example on other data).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from generated import Stale, rewrite, with_blocks

from benchmarks.model_data import VARIANTS, program_of
from dnc.compiler import make_plan, read_program, transform
from dnc.explain.facts import exchange_count, levels
from dnc.ir.machine import machine
from dnc.ir.plan import REGISTER, SHARED, STREAMED, Plan

DOCS = Path(__file__).parent
PAGE, RECORD = DOCS / "models.md", DOCS / "models.json"
EXAMPLES, RESULTS = DOCS.parent / "examples", DOCS.parent / "benchmarks" / "results"
TARGET = "sm_90a"

# name -> (source, what it exercises, the file of its reference under tests/models)
MODELS = {
    "additive_attention": (
        "Bahdanau et al. 2015",
        "attention within a recursion; scores that are computed of a vertex and every child",
        "pairs",
    ),
    "attention": (
        "Luong et al. 2015; OpenNMT in the sparse paper",
        "a sum weighted by softmax over all states of another sequence",
        "pairs",
    ),
    "bilstm_tagger": ("VPPS", "two directions that meet; output at every token", "taggers"),
    "char_rnn": (
        "GRNN",
        "three layers as wavefronts over layers and time; dropout between them",
        "sequences",
    ),
    "char_tagger": ("VPPS", "structure inside structure; an arm chosen by the data", "taggers"),
    "childsum": (
        "Tai et al. 2015, 3.1",
        "reductions over any number of children; a gate for each child",
        "trees",
    ),
    "crf_tagger": (
        "Lample et al. 2016",
        "a conditional random field: vectors beside a matrix, logsumexp and maxima of its rows, Viterbi",
        "taggers",
    ),
    "dag": ("Cavs", "given DAGs: shared vertices, a vector a vertex, a child that may be missing", "graphs"),
    "encoder_decoder": (
        "Sutskever et al. 2014; Cavs",
        "one recursion feeding another, teacher forcing, a large output layer",
        "pairs",
    ),
    "gru_classifier": ("Cho et al. 2014; GRNN", "two dependent products in one cell", "sequences"),
    "language_model": (
        "Cavs, 5",
        "a large output layer hoisted out of the recursion; loss at every step",
        "sequences",
    ),
    "language_model_variable": (
        "Cavs, 5",
        "language_model on sentences of any length",
        "sequences",
    ),
    "layer_norm_lstm": (
        "Ba et al. 2016",
        "layer normalization: means of whole vectors inside the recursion",
        "sequences",
    ),
    "lstm2": ("GRNN", "two layers as wavefronts over layers and time", "sequences"),
    "lstm_classifier": ("GRNN", "sequences of any length; loss at the root alone", "sequences"),
    "mvrnn": ("Socher et al. 2012", "matrices as states; products of states; tables of matrices", "trees"),
    "nary_treelstm": ("Tai et al. 2015, 3.2", "children that may be missing, a matrix for each", "trees"),
    "ner_tagger": (
        "VPPS",
        "a hidden layer at every token; F1 over entities; dropout of inputs",
        "taggers",
    ),
    "rnn_stack": (
        "Diamos et al. 2016 (Persistent RNNs)",
        "depth: a stack of weights chosen by the layer; residuals; running statistics; wavefronts over "
        "layers and time",
        "graphs",
    ),
    "rvnn": ("VPPS", "untied weights of leaves and inner vertices", "trees"),
    "similarity": (
        "Tai et al. 2015, 4.2",
        "two structures a sample; KL divergence, Pearson; frozen parameters",
        "pairs",
    ),
    "sparse_lstm": (
        "Sparse Persistent RNNs",
        "recurrent weights of which a tenth is kept",
        "sequences",
    ),
    "td_lstm": ("VPPS", "a derived DAG with shared vertices; the cell of the Tree-LSTM", "graphs"),
    "td_rnn": ("VPPS", "a derived DAG with shared vertices: a pyramid over the words", "graphs"),
    "tied_language_model": (
        "Press and Wolf 2017",
        "weight tying: a matrix that is read by tokens and multiplied",
        "sequences",
    ),
    "token_vectors": (
        "Cavs",
        "pull and push: vectors from another net, a state to it, gradients both ways",
        "trees",
    ),
    "torch_gru": (
        "PyTorch's nn.GRU, cuDNN",
        "the reset gate behind the product; one product a step",
        "sequences",
    ),
    "top_down": ("Irsoy and Cardie 2013", "a state handed down after one handed up", "trees"),
    "tree_fc": ("Looks et al. 2017 (Fold); Cavs", "complete trees: wide wavefronts", "trees"),
    "tree_fc_random": (
        "Looks et al. 2017 (Fold)",
        "tree_fc on trees of random splits: deep, narrow",
        "trees",
    ),
    "tree_to_sequence": (
        "Eriguchi et al. 2016; Cavs",
        "a recursion over a tree feeding one over a sequence",
        "pairs",
    ),
    "treelstm": (
        "Tai et al. 2015; all five papers",
        "loss at every vertex; own weights for leaves",
        "trees",
    ),
}


def examples() -> list[str]:
    """All examples; Stale unless every one is described and recorded."""
    names = sorted([*(path.stem for path in EXAMPLES.glob("*.dn")), *VARIANTS])
    for what, known in (("MODELS in docs/make_models.py", MODELS), ("docs/models.json", differences())):
        if differing := set(names) ^ set(known):
            raise Stale(f"examples/ and {what} differ in {sorted(differing)}")
    return names


def differences() -> Mapping[str, Any]:
    """What was recorded for every example."""
    found: Mapping[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["models"]
    return found


def program_lines(name: str) -> int:
    """Lines that are neither blank nor only a comment."""
    lines = (EXAMPLES / f"{program_of(name)}.dn").read_text(encoding="utf-8").splitlines()
    return sum(1 for line in lines if line.partition("#")[0].strip())


def plan_of(name: str) -> Plan:
    """The plan at the example's own sizes."""
    _, program, _ = read_program(EXAMPLES / f"{program_of(name)}.dn", {})
    return make_plan(transform(program), TARGET)


def residency(plan: Plan) -> str:
    """Where the weights live that the workers of a replica share."""
    found = {kind: [p.parameter for p in plan.placements if p.residency == kind] for kind in KINDS}
    return "; ".join(f"{kind.upper()} {', '.join(names)}" for kind, names in found.items() if names)


KINDS = (REGISTER, SHARED, STREAMED)


def replica(plan: Plan) -> str:
    """The workers of a replica, and how many replicas the chip holds."""
    assert plan.tiling is not None
    if plan.tiling.cluster > 1:
        return f"{machine(TARGET).cluster_replicas(plan.tiling.cluster)} of {plan.tiling.cluster}"
    return f"1 of {plan.tiling.workers}"


def exchanges(plan: Plan) -> str:
    """Exchanges between the workers of a replica for a level, forward and backward, of every recursion."""
    return ", ".join(" + ".join(str(exchange_count(steps)) for steps in both) for both in levels(plan))


def speeds() -> dict[bool, dict[str, tuple[float, int]]]:
    """(samples a second, batch) of every model, by whether it ran on a GPU; the newest count."""
    found: dict[bool, dict[str, tuple[float, int]]] = {True: {}, False: {}}
    read = (json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*-models*.json"))
    for result in sorted(read, key=lambda each: str(each.get("date", ""))):
        on_gpu = not result["device"].upper().startswith("CPU")
        for point in result["points"]:
            found[on_gpu][point["model"]] = point["samples_per_second"], point["batch"]
    return found


def speed(found: Mapping[str, tuple[float, int]], name: str) -> str:
    """A cell of the table."""
    if name not in found:
        return "-"
    number = found[name][0]
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def blocks() -> dict[str, str]:
    """The generated blocks of the page by name."""
    names, known, ran = examples(), differences(), speeds()
    plans = {name: plan_of(name) for name in names}
    return {
        "compared": table(
            ("model", "source", "exercises", "lines", "reference", "values", "gradients"),
            [
                (
                    f"[{name}](../examples/{program_of(name)}.dn)",
                    MODELS[name][0],
                    MODELS[name][1],
                    program_lines(name),
                    f"[{MODELS[name][2]}](../tests/models/{MODELS[name][2]}.py)",
                    f"{known[name]['values']:.0e}",
                    f"{known[name]['gradients']:.0e}",
                )
                for name in names
            ],
        ),
        "planned": table(
            ("model", "weights", "replicas", "exchanges a level", "samples/s, CPU", "samples/s, GPU"),
            [
                (
                    name,
                    residency(plans[name]) or "-",
                    replica(plans[name]),
                    exchanges(plans[name]),
                    speed(ran[False], name),
                    speed(ran[True], name),
                )
                for name in names
            ],
        ),
    }


def render(page: str) -> str:
    """The page with its blocks made again; Stale if a block is missing or unknown."""
    return with_blocks("docs/models.md", page, blocks())


if __name__ == "__main__":
    sys.exit(rewrite(PAGE, render, sys.argv[1:]))
