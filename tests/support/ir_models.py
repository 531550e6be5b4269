"""Small programs built by hand, random forests for them and random parameters."""

from __future__ import annotations

import numpy as np

from dnc.ir.builder import Builder
from dnc.ir.cell import Value
from dnc.ir.forest import Forest, VertexTable, neighbours
from dnc.ir.program import (
    DENSE,
    ROOT,
    TABLE,
    Component,
    DeclaredOutput,
    FieldInput,
    Function,
    Initializer,
    LossOutput,
    MetricOutput,
    Parameter,
    ParameterInput,
    Program,
    Space,
    Stage,
    StateInput,
    StateOutput,
    TableInput,
)
from dnc.ir.structure import CHILD, CLASS, LIST, OPTIONAL, TOKEN, VECTOR, Arm, Dimension, Field, Struct
from dnc.ir.types import INDEX, SCALAR, ListType, TensorType

HIDDEN, EMBED, CLASSES, VOCAB = 3, 4, 5, 7


def vector(n):
    return TensorType((n,))


def parameter(name, *sizes, kind=DENSE, frozen=False):
    dims = tuple(Dimension(str(size), size) for size in sizes)
    return Parameter(name, kind, dims, Initializer("uniform", 0.1), frozen)


class Cells:
    """A builder that binds inputs as it makes them."""

    def __init__(self):
        self.build = Builder()
        self.sources = []

    def read(self, source, type, name):
        self.sources.append(source)
        return self.build.input(type, name)

    def __getattr__(self, opcode):
        return lambda *operands, **attributes: self.build.op(opcode, *operands, **attributes)

    def parameter(self, name, *sizes):
        return self.read(ParameterInput(name), TensorType(sizes), name)

    def split(self, value, count):
        width = value.type.shape[0] // count
        return [self.slice(value, begin=i * width, end=(i + 1) * width) for i in range(count)]

    def stage(self, name, space, function, results):
        outputs, values = zip(*results, strict=True)
        return Stage(name, space, function, tuple(self.sources), self.build.finish(values), tuple(outputs))


def lstm(cell: Cells, z: Value, carried: list[Value]):
    """Gates of `z` = i, o, u, one forget gate per carried c."""
    i, o, u, *forget = cell.split(z, 3 + len(carried))
    c = cell.mul(cell.sigmoid(i), cell.tanh(u))
    for gate, previous in zip(forget, carried, strict=True):
        c = cell.add(c, cell.mul(cell.sigmoid(gate), previous))
    h = cell.mul(cell.sigmoid(o), cell.tanh(c))
    return [(StateOutput("h"), h), (StateOutput("c"), c)]


STATE = (Component("h", vector(HIDDEN)), Component("c", vector(HIDDEN)))
LABEL = Field("label", CLASS, Dimension("classes", CLASSES))
WORD = Field("word", TOKEN, Dimension("vocab", VOCAB))


def head(space, function, path=()):
    """Loss, metric and outputs on the h of `function`."""
    cell = Cells()
    h = cell.read(StateInput(function, "h", path), vector(HIDDEN), "h")
    label = cell.read(FieldInput("label"), INDEX, "label")
    logits = cell.add(cell.matmul(cell.parameter("V", CLASSES, HIDDEN), h), cell.parameter("b_v", CLASSES))
    loss = cell.scale(cell.cross_entropy(logits, label), factor=0.5)
    hit = cell.equal(cell.argmax(logits), label)
    results = [
        (LossOutput(), loss),
        (MetricOutput("accuracy"), hit),
        (DeclaredOutput("p"), cell.softmax(logits)),
    ]
    return cell.stage(f"head.{space}", space, None, results)


HEAD = (parameter("V", CLASSES, HIDDEN), parameter("b_v", CLASSES))


def tree_lstm():
    struct = Struct(
        "Tree",
        (
            Arm("Leaf", (WORD, LABEL)),
            Arm("Node", (Field("left", CHILD, target="Tree"), Field("right", CHILD, target="Tree"), LABEL)),
        ),
    )
    leaf = Cells()
    x = leaf.read(TableInput("E", "word"), vector(EMBED), "x")
    z = leaf.add(leaf.matmul(leaf.parameter("W", 3 * HIDDEN, EMBED), x), leaf.parameter("b_w", 3 * HIDDEN))
    node = Cells()
    read = {
        (side, part): node.read(StateInput("encode", part, (side,)), vector(HIDDEN), f"{side}.{part}")
        for side in ("left", "right")
        for part in ("h", "c")
    }
    pair = node.concat(read["left", "h"], read["right", "h"])
    y = node.add(
        node.matmul(node.parameter("U", 5 * HIDDEN, 2 * HIDDEN), pair), node.parameter("b_u", 5 * HIDDEN)
    )
    stages = (
        leaf.stage("encode.Leaf", "Tree.Leaf", "encode", lstm(leaf, z, [])),
        node.stage(
            "encode.Node", "Tree.Node", "encode", lstm(node, y, [read["left", "c"], read["right", "c"]])
        ),
        head("Tree.all", "encode"),
    )
    return Program(
        name="TreeLSTM",
        dimensions=(Dimension("vocab", None), Dimension("classes", CLASSES)),
        structs=(struct,),
        root="Tree",
        parameters=(
            parameter("E", VOCAB, EMBED, kind=TABLE),
            parameter("W", 3 * HIDDEN, EMBED),
            parameter("b_w", 3 * HIDDEN),
            parameter("U", 5 * HIDDEN, 2 * HIDDEN),
            parameter("b_u", 5 * HIDDEN),
            *HEAD,
        ),
        functions=(Function("encode", "Tree", STATE),),
        spaces=(
            Space("Tree.Leaf", "Tree", ("Leaf",)),
            Space("Tree.Node", "Tree", ("Node",)),
            Space("Tree.all", "Tree", ("Leaf", "Node")),
        ),
        stages=stages,
    )


def sequence_structs():
    word = Struct(
        "Word", (Arm("Word", (WORD, LABEL, Field("weight", VECTOR), Field("extra", VECTOR, width=2))),)
    )
    sentence = Struct("Sentence", (Arm("Sentence", (Field("words", LIST, target="Word"), LABEL)),))
    return word, sentence


def bilstm():
    """Two directions, a loss per word on both, a loss per sentence on the last forward state."""
    stages = []
    for function, step in (("forward", "prev"), ("backward", "next")):
        cell = Cells()
        x = cell.read(TableInput("E", "word"), vector(EMBED), "x")
        extra = cell.read(FieldInput("extra"), vector(2), "extra")
        weight = cell.read(FieldInput("weight"), SCALAR, "weight")
        h = cell.read(StateInput(function, "h", (step,)), vector(HIDDEN), "h_before")
        c = cell.read(StateInput(function, "c", (step,)), vector(HIDDEN), "c_before")
        product = cell.matmul(cell.parameter(f"W_{function}", 4 * HIDDEN, EMBED + 2), cell.concat(x, extra))
        z = cell.add(
            cell.mul(product, weight), cell.matmul(cell.parameter(f"U_{function}", 4 * HIDDEN, HIDDEN), h)
        )
        z = cell.add(z, cell.parameter("b", 4 * HIDDEN))
        stages.append(cell.stage(function, "Word", function, lstm(cell, z, [c])))
    cell = Cells()
    both = cell.concat(
        cell.read(StateInput("forward", "h", ()), vector(HIDDEN), "f"),
        cell.read(StateInput("backward", "h", ()), vector(HIDDEN), "g"),
    )
    logits = cell.matmul(cell.parameter("T", CLASSES, 2 * HIDDEN), both)
    label = cell.read(FieldInput("label"), INDEX, "label")
    stages.append(cell.stage("tags", "Word", None, [(LossOutput(), cell.cross_entropy(logits, label))]))
    stages.append(head("Sentence", "forward", ("words", "last")))
    return Program(
        name="BiLSTM",
        dimensions=(),
        structs=sequence_structs(),
        root="Sentence",
        parameters=(
            parameter("E", VOCAB, EMBED, kind=TABLE),
            *(parameter(f"W_{name}", 4 * HIDDEN, EMBED + 2) for name in ("forward", "backward")),
            *(parameter(f"U_{name}", 4 * HIDDEN, HIDDEN) for name in ("forward", "backward")),
            parameter("b", 4 * HIDDEN),
            parameter("T", CLASSES, 2 * HIDDEN),
            *HEAD,
        ),
        functions=(Function("forward", "Word", STATE), Function("backward", "Word", STATE)),
        spaces=(Space("Word", "Word", ("Word",)), Space("Sentence", "Sentence", ("Sentence",), ROOT)),
        stages=tuple(stages),
    )


def dag(frozen=False):
    """Children in a list, shared: sum, mean and maximum of their states, and a top-down function."""
    struct = Struct(
        "Thing",
        (
            Arm(
                "Thing",
                (WORD, LABEL, Field("parts", LIST, target="Thing"), Field("other", OPTIONAL, target="Thing")),
            ),
        ),
    )
    cell = Cells()
    x = cell.read(TableInput("E", "word"), vector(EMBED), "x")
    children = cell.read(StateInput("up", "h", ("parts",), True), ListType(vector(HIDDEN)), "children")
    other = cell.read(StateInput("up", "h", ("other",)), vector(HIDDEN), "other")
    parts = cell.concat(cell.list_sum(children), cell.list_mean(children), cell.list_max(children), other)
    z = cell.add(
        cell.matmul(cell.parameter("U", HIDDEN, 4 * HIDDEN), parts),
        cell.relu(cell.matmul(cell.parameter("W", HIDDEN, EMBED), x)),
    )
    h = cell.tanh(cell.add(z, cell.parameter("b", HIDDEN)))
    up = cell.stage("up", "Thing", "up", [(StateOutput("h"), h)])
    cell = Cells()
    above = cell.read(StateInput("down", "h", ("parent",)), vector(HIDDEN), "above")
    own = cell.read(StateInput("up", "h", ()), vector(HIDDEN), "own")
    gate = cell.sigmoid(cell.matmul(cell.parameter("D", HIDDEN, HIDDEN), own))
    h = cell.add(cell.mul(gate, above), cell.matmul(cell.parameter("D", HIDDEN, HIDDEN), own))
    down = cell.stage("down", "Thing", "down", [(StateOutput("h"), h)])
    return Program(
        name="Dag",
        dimensions=(),
        structs=(struct,),
        root="Thing",
        parameters=(
            parameter("E", VOCAB, EMBED, kind=TABLE, frozen=frozen),
            parameter("U", HIDDEN, 4 * HIDDEN),
            parameter("W", HIDDEN, EMBED, frozen=frozen),
            parameter("b", HIDDEN),
            parameter("D", HIDDEN, HIDDEN),
            *HEAD,
        ),
        functions=(
            Function("up", "Thing", (Component("h", vector(HIDDEN)),)),
            Function("down", "Thing", (Component("h", vector(HIDDEN)),)),
        ),
        spaces=(Space("Thing", "Thing", ("Thing",)),),
        stages=(up, down, head("Thing", "down")),
    )


# ---- forests and parameters --------------------------------------------------------------------


def _table(arm, samples_of, data, children, lists):
    count = len(arm)
    samples = int(samples_of.max()) + 1
    begin = np.searchsorted(samples_of, np.arange(samples + 1)).astype(np.int32)
    none = np.full(count, -1, np.int32)
    return VertexTable(np.asarray(arm, np.int8), begin, data, children, lists, none, none, none)


def _data(random, count):
    return {
        "word": random.integers(-1, VOCAB, count).astype(np.int32),
        "label": random.integers(-1, CLASSES, count).astype(np.int32),
        "weight": random.normal(size=(count, 1)).astype(np.float32),
        "extra": random.normal(size=(count, 2)).astype(np.float32),
    }


def _linked(program, tables, roots):
    structs = {struct.name: struct for struct in program.structs}
    found = neighbours(
        structs,
        {name: table.children for name, table in tables.items()},
        {name: table.lists for name, table in tables.items()},
        {name: len(table) for name, table in tables.items()},
    )
    linked = {}
    for name, table in tables.items():
        previous, after, parent = found[name]
        linked[name] = VertexTable(
            table.arm, table.begin, table.data, table.children, table.lists, previous, after, parent
        )
    return Forest(structs, program.root, linked, np.asarray(roots, np.int32))


def tree_forest(program, random, samples=3, leaves=4):
    arm, left, right, owner, roots = [], [], [], [], []
    for sample in range(samples):
        open_rows = []
        for _ in range(int(random.integers(1, leaves + 1))):
            open_rows.append(len(arm))
            arm.append(0), left.append(-1), right.append(-1), owner.append(sample)
        while len(open_rows) > 1:
            at = int(random.integers(0, len(open_rows) - 1))
            a, b = open_rows[at : at + 2]
            open_rows[at : at + 2] = [len(arm)]
            arm.append(1), left.append(a), right.append(b), owner.append(sample)
        roots.append(open_rows[0])
    children = {"left": np.asarray(left, np.int32), "right": np.asarray(right, np.int32)}
    return _linked(
        program, {"Tree": _table(arm, np.asarray(owner), _data(random, len(arm)), children, {})}, roots
    )


def sequence_forest(program, random, lengths=(3, 1, 4)):
    owner = np.repeat(np.arange(len(lengths)), lengths)
    words = _table(np.zeros(len(owner)), owner, _data(random, len(owner)), {}, {})
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = {"words": (begin, np.arange(len(owner), dtype=np.int32))}
    samples = np.arange(len(lengths))
    sentences = _table(np.zeros(len(lengths)), samples, _data(random, len(lengths)), {}, lists)
    return _linked(program, {"Word": words, "Sentence": sentences}, samples)


def dag_forest(program, random, samples=2, size=5):
    """Every vertex may use any earlier ones of its sample, once or more; children come first."""
    owner, begin, entries, other, roots = [], [0], [], [], []
    for sample in range(samples):
        first = len(owner)
        for row in range(first, first + size):
            owner.append(sample)
            earlier = np.arange(first, row)
            count = int(random.integers(0, 3)) if len(earlier) else 0
            entries.extend(random.choice(earlier, count) if count else [])
            begin.append(len(entries))
            other.append(int(random.choice(earlier)) if len(earlier) and random.random() < 0.5 else -1)
        roots.append(len(owner) - 1)
    lists = {"parts": (np.asarray(begin, np.int32), np.asarray(entries, np.int32))}
    data = _data(random, len(owner))
    table = _table(
        np.zeros(len(owner)), np.asarray(owner), data, {"other": np.asarray(other, np.int32)}, lists
    )
    return _linked(program, {"Thing": table}, roots)


def random_parameters(program, random):
    return {
        p.name: random.normal(scale=0.5, size=tuple(dim.size or VOCAB for dim in p.dimensions))
        for p in program.parameters
    }


MODELS = {
    "tree": (tree_lstm, tree_forest),
    "bilstm": (bilstm, sequence_forest),
    "dag": (dag, dag_forest),
}


def instance(name, seed=0):
    """(program, forest, parameters)."""
    make, grow = MODELS[name]
    random = np.random.default_rng(seed)
    program = make()
    return program, grow(program, random), random_parameters(program, random)
