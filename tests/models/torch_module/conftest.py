"""Fixtures for modules: no kernels are made, they run on the reference VM."""

from __future__ import annotations

import pytest

PUSHES = """model Both(width = 3, hidden = 4, classes = 5)
struct Tree = Leaf(x: pulled<width>, label: class<classes>)
            | Node(left: Tree, right: Tree, label: class<classes>)
param W: [hidden, width]
param U: [hidden, 2 * hidden], b: [hidden] = constant(0.1)
frozen param V: [classes, hidden]
fn encode(t: Tree) -> [hidden] = match t:
    Leaf(x, ...) -> tanh(W @ x + b)
    Node(left, right, ...) -> tanh(U @ concat(encode(left), encode(right)) + b)
fn logits(t: Tree) = V @ encode(t)
loss sum(t in all(Tree)) cross_entropy(logits(t), t.label)
output label = argmax(logits(root))
push states = [encode(t) for t in all(Tree)]
push top = encode(root)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    import torch

    import dnc.kernel_cache

    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(3)


@pytest.fixture
def both(tmp_path):
    """A program that pulls, pushes, and has a loss of its own; trees."""
    import dnc.torch
    from dnc.compiler import compile_model

    (tmp_path / "both.dn").write_text(PUSHES)
    compile_model(tmp_path / "both.dn", tmp_path / "build", ("cpu",))
    leaf = {"label": 1}
    small = {"left": leaf, "right": {"label": 4}, "label": 0}
    data = [leaf, small, {"left": small, "right": leaf, "label": 3}]
    return dnc.torch.Module(tmp_path / "build", data, device="vm"), data


@pytest.fixture
def module_of(tmp_path):
    """A function from the text of a program to a module of it, on the reference VM."""

    import dnc.torch
    from dnc.compiler import compile_model

    def make(text):
        (tmp_path / "m.dn").write_text(text)
        compile_model(tmp_path / "m.dn", tmp_path / "build", ("cpu",))
        return dnc.torch.Module(tmp_path / "build", device="vm")

    return make
