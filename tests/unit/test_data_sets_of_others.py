"""Data sets that another model has read: taken where they are the same to this one, else refused."""

import pytest

import dnc
from dnc.compiler import compile_model

PROGRAM = """model One(words = 9, d = 2)
struct W = W(form: token<words>, label: class<d>)
param E: table[words, d] = normal(0.05)
loss sum(w in root) cross_entropy(E[w.form], w.label)
output label = argmax(E[root.form])
"""
OTHERS = {
    "size": ("words = 9", "words = 10000"),
    "struct": ("W(form: token<words>, ", "W(form: token<words>, at: float, "),
    "root": ("param E", "struct L = L(all: [W])\nparam E"),
}


def opened(folder, old="", new=""):
    folder.mkdir()
    text = PROGRAM.replace(old, new)
    if new.startswith("struct"):
        text = text.replace("w in root", "w in all(W)").replace(
            "= argmax(E[root.form])", "= [w.label for w in all(W)]"
        )
    (folder / "m.dn").write_text(text)
    compile_model(folder / "m.dn", folder / "build", ("cpu",))
    return dnc.load(folder / "build", "vm")


@pytest.mark.parametrize("name", OTHERS)
def test_of_another_program(tmp_path, name):
    own, other = opened(tmp_path / "own"), opened(tmp_path / "other", *OTHERS[name])
    sample = {"form": 8, "label": 1} | ({"at": 0.5} if name == "struct" else {})
    data = other.read([{"all": [sample]}] if name == "root" else [sample])
    for call in (own.attach, own.read, own.predict, own.step, own.evaluate):
        with pytest.raises(dnc.DiagnosticError, match="was read for other structs, or other sizes"):
            call(data)
    own.step([{"form": 1, "label": 1}])
    assert own.position.step == 1


def test_of_another_build_of_the_same_program(tmp_path):
    own, other = opened(tmp_path / "own"), opened(tmp_path / "other")
    data = other.read([{"form": 8, "label": 1}])
    assert own.predict(data)["label"] == own.predict([{"form": 8, "label": 1}])["label"]
    own.step(data)
