"""Random data for every program of `examples/`, as samples for `Model.attach`.

In: the name of an example, its program (which says how many words and classes there are), how large
samples are. Out: samples as decoded JSON. Guaranteed: the same arguments give the same samples. Words
are spread as in a text (the k-th most frequent one occurs with a probability like 1/k); labels are
random. Needs nothing but the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from dnc.ir.program import Program
from dnc.runtime.data import Vocabulary

Sample = dict[str, Any]
SEED = 5
OPEN = {"chars": 80}
SKIPPED = 4
"""Layers that a residual of a grid skips, at most."""
"""How many there are where the program leaves it open: of all other dimensions `VOCABULARY`."""
VOCABULARY = 10_000
ENTITIES = ("O", *(f"{mark}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for mark in "BI"))
"""The tags of a tagger that is measured by entities."""
RARE = 0.2
"""The share of words that are spelled, where a program reads rare words letter by letter."""
LETTERS = (3, 10)
ONE_LEFT = 0.3
"""The share of joins with one child in a DAG."""


@attrs.frozen
class Sizes:
    """How large samples are: the least and the most of what there is.

    words: of a sentence, of each of a pair, of a dependency tree. leaves: of a binary tree.
    pyramid: words under a pyramid. complete: how often the leaves of a complete tree are doubled;
    with random splits it has as many. steps: tokens of a sequence of fixed length. grid:
    steps under a stack of layers. vertices: of a DAG.
    """

    words: tuple[int, int] = (15, 30)
    leaves: tuple[int, int] = (12, 28)
    pyramid: tuple[int, int] = (15, 30)
    complete: tuple[int, int] = (6, 6)
    steps: tuple[int, int] = (64, 64)
    vertices: tuple[int, int] = (16, 32)
    grid: tuple[int, int] = (64, 64)


class Maker:
    """Makes parts of samples; every call draws new ones."""

    def __init__(self, program: Program, sizes: Sizes, seed: int) -> None:
        self.random, self.sizes = np.random.default_rng(seed), sizes
        fields = [field for struct in program.structs for arm in struct.arms for field in arm.fields]
        self.limits = {
            field.dimension.name: field.dimension.size or OPEN.get(field.dimension.name, VOCABULARY)
            for field in fields
            if field.dimension is not None
        }
        self.widths = {field.name: field.width for field in fields if field.width}

    def count(self, span: tuple[int, int]) -> int:
        """A number in a range, ends included."""
        return int(self.random.integers(span[0], span[1] + 1))

    def word(self, dimension: str = "vocab") -> int:
        """A token; small numbers are frequent."""
        return int(self.limits[dimension] ** self.random.random()) - 1

    def label(self, dimension: str = "classes") -> int:
        """A class."""
        return int(self.random.integers(self.limits[dimension]))

    def vector(self, field: str) -> list[float]:
        """Numbers as a field holds them."""
        return [float(number) for number in self.random.normal(size=self.widths[field])]

    def words(self, key: str = "form", dimension: str = "vocab", span: tuple[int, int] | None = None) -> Any:
        """A sequence of tokens."""
        return [{key: self.word(dimension)} for _ in range(self.count(span or self.sizes.words))]

    def spelled(self) -> Sample:
        """A word tagged as in an entity, known or as its letters."""
        tag = ENTITIES[self.label("tags")]
        if self.random.random() < RARE:
            return {"letters": self.words("letter", "chars", LETTERS), "tag": tag}
        return {"form": self.word(), "tag": tag}

    def binary(self, leaves: int, leaf: Callable[[], Sample], node: Callable[[], Sample] = dict) -> Sample:
        """A binary tree that is cut at random places; `leaf` and `node` say what vertices hold."""
        if leaves == 1:
            return leaf()
        left = self.count((1, leaves - 1))
        return {
            "left": self.binary(left, leaf, node),
            "right": self.binary(leaves - left, leaf, node),
        } | node()

    def complete(self, depth: int) -> Sample:
        """A complete binary tree over words."""
        return {side: self.complete(depth - 1) for side in ("left", "right")} if depth else self.leaf()

    def leaf(self) -> Sample:
        """A word in a tree."""
        return {"word": self.word()}

    def labelled(self) -> Sample:
        """What vertices of a labelled tree hold."""
        return {"label": self.label()}

    def dependencies(self, label: Callable[[], Sample], most: int | None = None) -> Sample:
        """A tree of words with heads at random, of at most `most` children each."""
        tree = [{"word": self.word(), **label(), "children": []} for _ in range(self.count(self.sizes.words))]
        for number, vertex in enumerate(tree[1:], 1):
            heads = [head for head in tree[:number] if most is None or len(head["children"]) < most]
            heads[int(self.random.integers(len(heads)))]["children"].append(vertex)
        return tree[0]

    def slotted(self, tree: Sample, slots: str) -> Sample:
        """The same tree with a field for each of few children, at random ones of them."""
        own = {name: value for name, value in tree.items() if name != "children"}
        places = sorted(self.random.permutation(len(slots))[: len(tree["children"])])
        pairs = zip(places, tree["children"], strict=True)
        return own | {slots[place]: self.slotted(child, slots) for place, child in pairs}

    def pyramid(self) -> Sample:
        """Words joined layer by layer until one vertex is left, in flat form."""
        count = self.count(self.sizes.pyramid)
        word: list[int | None] = [self.word() for _ in range(count)]
        left: list[int | None] = [None] * count
        right: list[int | None] = [None] * count
        layer = list(range(count))
        while len(layer) > 1:
            left, right = left + layer[:-1], right + layer[1:]  # type: ignore[operator]
            layer = list(range(len(left) - len(layer) + 1, len(left)))
        word += [None] * (len(left) - count)
        arm = ["Word"] * count + ["Pair"] * (len(left) - count)
        columns = {"arm": arm, "word": word, "left": left, "right": right}
        return {"Span": columns, "Sentence": {"top": layer, "label": [self.label()]}, "root": 0}

    def grid(self) -> Sample:
        """A stack of layers over a sequence with targets, in flat form: a step's layers follow its input."""
        layers, count = self.limits["layers"], self.count(self.sizes.grid)
        skip, height = min(SKIPPED, layers), layers + 1
        columns: dict[str, list[Any]] = {
            name: [] for name in ("arm", "char", "layer", "below", "before", "skip")
        }
        for number in range(count * height):
            step, level = divmod(number, height)
            hidden = level > 0
            columns["arm"].append("Hidden" if hidden else "Input")
            columns["char"].append(None if hidden else self.word("chars"))
            columns["layer"].append(level - 1 if hidden else None)
            columns["below"].append(number - 1 if hidden else None)
            columns["before"].append(number - height if hidden and step else None)
            columns["skip"].append(number - skip if hidden and level % skip == 0 else None)
        steps = {
            "top": list(range(layers, count * height, height)),
            "target": [self.label("chars") for _ in range(count)],
        }
        return {"Unit": columns, "Step": steps, "Text": {"steps": [list(range(count))]}, "root": 0}

    def dag(self) -> Sample:
        """Sources, then joins of what is there, in flat form; the last one reaches all others."""
        count = self.count(self.sizes.vertices)
        sources = 2 if count > 2 else 1
        columns: dict[str, list[Any]] = {
            "arm": ["Source"] * sources + ["Join"] * (count - sources),
            "x": [self.vector("x") for _ in range(count)],
            "target": self.random.normal(size=count).tolist(),
            "a": [None] * sources,
            "b": [None] * sources,
        }
        for number in range(sources, count):
            columns["a"].append(number - 1)
            alone = number == 1 or (number > sources and self.random.random() < ONE_LEFT)
            columns["b"].append(None if alone else int(self.random.integers(number - 1)))
        return {"Gate": columns, "root": count - 1}

    def pair_of_trees(self) -> Sample:
        """Two dependency trees, their score, and the score as a distribution (Tai et al. 2015, eq. 15)."""
        levels = self.widths["target"]
        score = float(self.random.uniform(1, levels))
        target = np.maximum(0, 1 - np.abs(np.arange(1, levels + 1) - score)).tolist()
        trees = {side: self.dependencies(dict) for side in ("left", "right")}
        return {**trees, "target": target, "score": score}


def _classified(make: Maker) -> Sample:
    return {"words": make.words(), "label": make.label()}


def _tagged(make: Maker) -> Sample:
    return {"words": [word | {"tag": make.label("tags")} for word in make.words()]}


def _entities(make: Maker) -> Sample:
    return {"words": [word | {"tag": ENTITIES[make.label("tags")]} for word in make.words()]}


def _text(make: Maker) -> Sample:
    return {"words": make.words(span=make.sizes.steps)}


def _translated(make: Maker) -> Sample:
    return {"source": make.words("form", "words"), "target": make.words("form", "targets")}


def _told_tree(make: Maker) -> Sample:
    tree = make.binary(make.count(make.sizes.leaves), lambda: {"word": make.word("words")})
    return {"tree": tree, "target": make.words("form", "targets")}


def _binary_tree(make: Maker) -> Sample:
    return make.binary(make.count(make.sizes.leaves), lambda: make.leaf() | make.labelled(), make.labelled)


def _complete_tree(make: Maker) -> Sample:
    return {"tree": make.complete(make.count(make.sizes.complete)), "label": make.label()}


def _random_tree(make: Maker) -> Sample:
    return {"tree": make.binary(2 ** make.count(make.sizes.complete), make.leaf), "label": make.label()}


def _dependency_tree(make: Maker) -> Sample:
    return make.dependencies(make.labelled)


MAKERS: dict[str, Callable[[Maker], Sample]] = {
    "additive_attention": _translated,
    "attention": _translated,
    "bilstm_tagger": _tagged,
    "char_rnn": lambda make: {"letters": make.words("letter", "chars", make.sizes.steps)},
    "char_tagger": lambda make: {"words": [make.spelled() for _ in range(make.count(make.sizes.words))]},
    "childsum": _dependency_tree,
    "crf_tagger": _entities,
    "dag": Maker.dag,
    "encoder_decoder": _translated,
    "gru_classifier": _classified,
    "language_model": _text,
    "language_model_variable": lambda make: {"words": make.words()},
    "layer_norm_lstm": _classified,
    "lstm2": _classified,
    "lstm_classifier": _classified,
    "mvrnn": _binary_tree,
    "nary_treelstm": lambda make: make.slotted(make.dependencies(make.labelled, 3), "abc"),
    "ner_tagger": _entities,
    "rnn_stack": Maker.grid,
    "rvnn": _binary_tree,
    "similarity": Maker.pair_of_trees,
    "sparse_lstm": lambda make: {"letters": make.words("letter", "chars", make.sizes.steps)},
    "td_lstm": Maker.pyramid,
    "td_rnn": Maker.pyramid,
    "tied_language_model": _text,
    "token_vectors": lambda make: make.binary(make.count(make.sizes.leaves), dict),
    "top_down": _dependency_tree,
    "torch_gru": _classified,
    "tree_fc": _complete_tree,
    "tree_fc_random": _random_tree,
    "tree_to_sequence": _told_tree,
    "treelstm": _binary_tree,
}
"""How a sample of each example is made."""

VARIANTS = {"language_model_variable": "language_model", "tree_fc_random": "tree_fc"}
"""Examples on other data than their own: by name the example."""


def program_of(name: str) -> str:
    """The example, without `.dn`, whose data are called `name`."""
    return VARIANTS.get(name, name)


def samples(
    name: str, program: Program, count: int, sizes: Sizes = Sizes(), seed: int = SEED
) -> list[Sample]:
    """`count` samples for the example `name`."""
    make = Maker(program, sizes, seed)
    return [MAKERS[name](make) for _ in range(count)]


def numbered(program: Program, vocabularies: Mapping[str, Vocabulary] | None, data: Any) -> Any:
    """Samples, or parts of them, with the numbers of words and labels in place of them."""
    fields = [field for struct in program.structs for arm in struct.arms for field in arm.fields]
    known = vocabularies or {}
    named = {f.name: known[f.dimension.name] for f in fields if f.dimension and f.dimension.name in known}

    def plain(value: Any, key: str | None = None) -> Any:
        if isinstance(value, dict):
            return {name: plain(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [plain(each, key) for each in value]
        return named[key].number(value) if isinstance(value, str) and key in named else value

    return plain(data)
