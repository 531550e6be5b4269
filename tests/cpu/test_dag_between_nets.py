"""A DAG-RNN between two NumPy nets (Cavs's pull and push): values and gradients on the CPU kernel.

Vertices are shared. The net before it makes the vectors that are pulled, the one behind it reads the state
of every vertex; the same three nets in NumPy, float64, say what is right, and central differences of them
the gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model

PROGRAM = """\
model DagRnn(width = 5, hidden = 7)

struct Gate = Source(x: pulled<width>) | Join(a: Gate, b: Gate?, x: pulled<width>)

param A: [hidden, width], B: [hidden, 2 * hidden], b: [hidden]

fn encode(g: Gate) -> [hidden] = match g:
    Source(x)     -> tanh(A @ x + b)
    Join(a, b, x) -> tanh(A @ x + B @ concat(encode(a), encode(b)))

push states = [encode(g) for g in all(Gate)]
"""
# Of every vertex its children; each graph has vertices that several others refer to.
GRAPHS: list[list[tuple[int, ...]]] = [
    [(), (0,), (0, 1), (1, 2), (3, 2)],
    [()],
    [(), (), (0, 1), (2,), (2, 3), (3, 0), (4, 5)],
]
RATE, INPUTS = 0.5, 4
PLACES = {"A": (2, 3), "B": (4, 9), "b": (1,)}

Arrays = dict[str, Any]


def sample(graph: list[tuple[int, ...]]) -> dict[str, Any]:
    """The graph in flat form; its last vertex is the root."""
    columns: dict[str, list[Any]] = {
        "arm": ["Join" if below else "Source" for below in graph],
        "a": [below[0] if below else None for below in graph],
        "b": [below[1] if len(below) > 1 else None for below in graph],
    }
    return {"Gate": columns, "root": len(graph) - 1}


def states(values: Arrays, graph: list[tuple[int, ...]], x: Any) -> Any:
    """The state of every vertex."""
    nothing = np.zeros(len(values["b"]))
    found: list[Any] = []
    for below, own in zip(graph, x, strict=True):
        if not below:
            found.append(np.tanh(values["A"] @ own + values["b"]))
        else:
            pair = [*(found[child] for child in below), nothing][:2]
            found.append(np.tanh(values["A"] @ own + values["B"] @ np.concatenate(pair)))
    return np.array(found)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("dag")
    (folder / "dag.dn").write_text(PROGRAM)
    compile_model(folder / "dag.dn", folder / "build", ("cpu",), {})
    found = dnc.load(folder / "build", "cpu")
    found.attach([sample(graph) for graph in GRAPHS])
    found.configure("sgd", RATE)
    return found


@pytest.mark.parametrize("batch", [[0, 1, 2], [2, 0]])
def test_values_and_gradients(model: Any, batch: list[int]) -> None:
    random = np.random.default_rng(len(batch))
    values: Arrays = {name: value.astype(np.float64) for name, value in model.parameters().items()}
    values["before"], values["behind"] = random.normal(size=(5, INPUTS)), random.normal(size=(3, 7))
    graphs = [GRAPHS[number] for number in batch]
    inputs = [random.normal(size=(len(graph), INPUTS)) for graph in graphs]
    wanted = [random.normal(size=(len(graph), 3)) for graph in graphs]

    def pulled() -> list[Any]:
        return [x @ values["before"].T for x in inputs]

    def loss() -> float:
        found = [states(values, graph, x) for graph, x in zip(graphs, pulled(), strict=True)]
        return sum(
            float(((h @ values["behind"].T - y) ** 2).sum()) for h, y in zip(found, wanted, strict=True)
        )

    def slope(name: str, at: tuple[int, ...]) -> float:
        sides = []
        for step in (1e-5, -1e-5):
            values[name][at] += step
            sides.append(loss())
            values[name][at] -= step
        return (sides[0] - sides[1]) / 2e-5

    pushed = model.forward(batch, {"Gate.x": pulled()})["states"]
    for graph, x, found in zip(graphs, pulled(), pushed, strict=True):
        np.testing.assert_allclose(np.array(found), states(values, graph, x), rtol=1e-5, atol=1e-6)
    given = [2 * (h @ values["behind"].T - y) @ values["behind"] for h, y in zip(pushed, wanted, strict=True)]
    _, back = model.backward({"states": given})

    by_before = sum(g.T @ x for g, x in zip(back["Gate.x"], inputs, strict=True))
    for at in ((0, 0), (4, 3), (2, 1)):
        assert by_before[at] == pytest.approx(slope("before", at), rel=1e-3, abs=1e-3)
    after = model.parameters()
    for name, at in PLACES.items():
        moved = (values[name][at] - after[name][at]) / RATE
        assert moved == pytest.approx(slope(name, at), rel=1e-3, abs=1e-3), name
