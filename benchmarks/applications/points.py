"""What is measured: builds by name, and the points of every part.

In: nothing. Out: `BUILDS`, how each build is compiled, and `PARTS`, which name builds, batch sizes,
data and peers. A table of facts: sizes are those of the papers, bars those that the project set itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks.common import ROOT
from dnc.ir.plan import STREAMED

EXAMPLES, OWN = ROOT / "examples", Path(__file__).resolve().parent
SST = "sst"
"""The name of the trees that come from a file; all other data are made up."""


@attrs.frozen
class Recipe:
    """How a build is compiled: a program, its dimensions, and options of `PlanOptions`."""

    program: Path
    settings: dict[str, int] = attrs.field(factory=dict)
    options: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Point:
    """Training of a build at batch sizes.

    data: a key of `data.MAKERS`. peer: a class of `benchmarks.peers`, or none. bars: by batch size how
    many times PyTorch, or how many samples a second, it has to be at least.
    """

    build: str
    batches: tuple[int, ...]
    data: str
    peer: str = ""
    times: dict[int, float] = attrs.field(factory=dict)
    rates: dict[int, float] = attrs.field(factory=dict)


def _example(name: str, **settings: int) -> Recipe:
    return Recipe(EXAMPLES / f"{name}.dn", settings)


def _tree(size: int, **options: Any) -> Recipe:
    return Recipe(EXAMPLES / "treelstm.dn", {"hidden": size, "embed": size}, options)


# ---- Tree-LSTM by size -----------------------------------------------------------------------------

SIZES = (64, 128, 256, 512, 1024)
ABLATED = (128, 256, 512, 1024)
BATCHES, WIDE_BATCHES = (1, 8, 32, 128), (1, 8, 32, 128, 256)

_FP32 = {1: 12_000, 8: 60_000, 32: 120_000, 128: 200_000, 256: 250_000}
_TF32 = {1: 12_000, 8: 60_000, 32: 150_000, 128: 350_000, 256: 450_000}
TREES = (
    Point("tree-512", BATCHES, SST, "TreeLstm", rates={1: 8_000, 128: 60_000}),
    Point("tree-512-batch-1", (1, 8), SST, rates={1: 8_000}),
    Point("tree-1024-batch-1", (1, 8), SST),
    Point("tree-256-tf32", WIDE_BATCHES, SST, rates=_TF32),
    Point("tree-256-tf32x3", WIDE_BATCHES, SST, rates=_FP32),
    Point("tree-512-tf32x3", BATCHES, SST, rates={1: 8_000, 128: 60_000}),
    Point("tree-512-tf32", BATCHES, SST),
    Point("tree-256-bf16", WIDE_BATCHES, SST),
    Point("tree-512-bf16", BATCHES, SST),
    Point("tree-64", WIDE_BATCHES, SST),
    Point("tree-128", WIDE_BATCHES, SST),
    Point("tree-1024", BATCHES, SST),
    Point("tree-256", (256, 1024), SST, rates=_FP32),
    Point("tree-256", (8,), "trees of 1,000 leaves"),
)

# ---- the applications of VPPS (Khorasani et al. 2018) ------------------------------------------------

_FIVE = {1: 5.0, 8: 5.0, 32: 5.0, 128: 1.0}
VPPS = (
    Point("tree-256", BATCHES, SST, "TreeLstm", _FIVE, _FP32),
    Point("rvnn", BATCHES, SST, "Rvnn", _FIVE),
    Point("td_rnn", BATCHES, "pyramids", "TdRnn", _FIVE),
    Point("td_lstm", BATCHES, "pyramids", "TdLstm", _FIVE),
    Point("bilstm_tagger", BATCHES, "tagged sentences", "BiLstmTagger", _FIVE),
    Point("char_tagger", BATCHES, "spelled sentences", "CharTagger", _FIVE),
)

# ---- structures of fixed form ------------------------------------------------------------------------

FIXED = (
    Point("tree_fc", (64,), "complete trees of 256 leaves", "TreeFc", {64: 10.0}),
    Point("language_model", (64,), "texts of 64 words", "LanguageModel", {64: 1.0}),
    Point("tree_fc-tf32", (64,), "complete trees of 256 leaves", "TreeFc"),
    Point("language_model-tf32", (64,), "texts of 64 words", "LanguageModel"),
    Point("tree_fc-tf32x3", (64,), "complete trees of 256 leaves"),
    Point("language_model-tf32x3", (64,), "texts of 64 words"),
    Point("tree_fc-bf16", (64,), "complete trees of 256 leaves"),
    Point("language_model-bf16", (64,), "texts of 64 words"),
    Point("lstm", (16,), "sentences of 100 words", "LstmClassifier", {16: 1.0}, {16: 16 / 0.8e-3}),
    Point("lstm-bf16", (16,), "sentences of 100 words", rates={16: 16 / 0.5e-3}),
    Point("rnn", (4,), "sentences of 100 words", "RnnClassifier", {4: 1.0}),
)

# ---- what needs whole vectors inside a recursion ------------------------------------------------------

WHOLE = (
    Point("crf_tagger", BATCHES, "sentences with entities", "CrfTagger"),
    Point("layer_norm_lstm", BATCHES, "sentences of 100 words", "LayerNormLstm"),
)

# ---- inference ---------------------------------------------------------------------------------------

INFERENCE = (
    Point(
        "tree-256-infer",
        (1, 8, 32, 256),
        SST,
        rates={1: 3 * _FP32[1], 8: 3 * _FP32[8], 32: 3 * _FP32[32], 256: 600_000},
    ),
)

# ---- ablation, as in Cavs (Xu et al. 2018, Fig. 10) --------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "weights streamed": {"residency": STREAMED},
    "without hoist": {"without": ("hoist",)},
    "without fuse": {"without": ("fuse",)},
    "one replica on the whole chip": {"cluster": 0},
    "clusters of 16": {"cluster": 16},
    "without inline": {"without": ("inline",)},
    "without canonicalize": {"without": ("canonicalize",)},
    "without reassociate": {"without": ("reassociate",)},
    "without reductions": {"without": ("reductions",)},
}
"""What a build of the ablation is compiled with; everything else is as it is by default."""
ABLATION_BATCHES = (1, 128)
TRACED = ("tree-256", "tree-512")
"""Builds whose workers are looked at; the traced kernel of each lies beside it."""


def ablated(size: int) -> dict[str, str]:
    """The builds of an ablation: by variant the name of a build."""
    return {name: f"tree-{size}-{name.replace(' ', '-')}" for name in VARIANTS}


def _recipes() -> Iterator[tuple[str, Recipe]]:
    for size in (256, 512, 64, 128, 1024):
        yield f"tree-{size}", _tree(size)
    yield "rvnn", _example("rvnn", hidden=512)
    yield "td_rnn", _example("td_rnn", hidden=512)
    yield "td_lstm", _example("td_lstm", hidden=256, embed=256)
    yield "bilstm_tagger", _example("bilstm_tagger", hidden=256, embed=256)
    yield "char_tagger", _example("char_tagger", hidden=256, half=64, char=64, mlp=256)
    # Replicas of 4 workers, as `dnc tune` finds: half of a complete tree is one level, and these share 64 of
    # them evenly.
    tree_fc = attrs.evolve(_example("tree_fc", hidden=512), options={"cluster": 0, "workers": 4})
    language_model = _example("language_model", hidden=512, embed=512, vocab=10_000)
    yield "tree_fc", tree_fc
    yield "language_model", language_model
    lstm = _example("lstm_classifier", hidden=256, embed=256)
    yield "lstm", lstm
    yield "lstm-bf16", attrs.evolve(lstm, options={"precision": "bf16"})
    # A replica for each of four rows a level.
    yield "rnn", Recipe(OWN / "rnn.dn", {"hidden": 1152, "embed": 1152}, {"batch": 4})
    yield "crf_tagger", _example("crf_tagger")
    yield "layer_norm_lstm", _example("layer_norm_lstm")
    yield "tree-256-infer", _tree(256, mode="infer")
    yield "tree-256-tf32", _tree(256, precision="tf32")
    yield "tree-256-tf32x3", _tree(256, precision="tf32x3")
    yield "tree-512-tf32x3", _tree(512, precision="tf32x3")
    yield "tree-512-tf32", _tree(512, precision="tf32")
    for precision in ("tf32", "tf32x3", "bf16"):
        for name, recipe in (("language_model", language_model), ("tree_fc", tree_fc)):
            options = {**recipe.options, "precision": precision}
            yield f"{name}-{precision}", attrs.evolve(recipe, options=options)
    yield "tree-256-bf16", _tree(256, precision="bf16")
    yield "tree-512-batch-1", _tree(512, batch=1)
    yield "tree-1024-batch-1", _tree(1024, batch=1)
    yield "tree-512-bf16", _tree(512, precision="bf16")
    for name, options in VARIANTS.items():
        for size in ABLATED:
            yield ablated(size)[name], _tree(size, **options)


BUILDS = dict(_recipes())
"""Every build, the most needed first."""
