"""Labels that losses and metrics read at the root alone: other vertices may lack them, the root may not."""

import pytest

import dnc
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.data import read_samples
from tests.support.command_line import SIZES, TREE

TEXT = TREE.read_text().replace("loss    sum(t in all(Tree))", "loss    sum(t in root)")
WHOLE = {"left": {"word": "not", "label": 1}, "right": {"word": "bad", "label": 0}, "label": 3}
NOTE = "  where some have none, the program says so: label: class<classes>?"
SPARSE = {"left": {"word": "not"}, "right": {"word": "bad", "label": None}, "label": 3}
FLAT = {
    "Tree": {
        "arm": ["Leaf", "Leaf", "Node"],
        "word": ["not", "bad", None],
        "left": [None, None, 0],
        "right": [None, None, 1],
        "label": [None, None, 3],
    },
    "root": 2,
}


def model_of(text):
    return load_program(Source("root.dn", text), SIZES)[0]


def test_other_vertices_may_lack_them():
    for sample in (SPARSE, FLAT):
        table = read_samples([sample], model_of(TEXT)).forest.tables["Tree"]
        assert table.data["label"].tolist() == [-1, -1, 3]


@pytest.mark.parametrize("name", ["strings", "numbers"])
def test_the_root_may_not(name):
    label = {"strings": "good", "numbers": 3}[name]
    flat = {**FLAT, "Tree": {**FLAT["Tree"], "label": [label, None, None]}}
    samples = [{"word": "a", "label": label}, {"word": "a"}, {**SPARSE, "label": None}, flat]
    with pytest.raises(DiagnosticError) as caught:
        read_samples(samples, model_of(TEXT))
    assert str(caught.value).splitlines() == [
        "samples:2: error: Leaf: field 'label' is missing",
        NOTE,
        "samples:3: error: Node: field 'label' is missing (and in line 4)",
        NOTE,
    ]
    assert read_samples(samples, model_of(TEXT), labels_required=False).samples == 4


@pytest.mark.parametrize(
    "text",
    [
        TREE.read_text(),
        TEXT + "metric all_of_them = mean(t in all(Tree)) argmax(logits(t)) == t.label\n",
        TEXT + "metric below = mean(t in all(Tree.Node)) argmax(logits(t)) == t.left.label\n",
    ],
)
def test_all_vertices_have_them_where_others_are_read(text):
    with pytest.raises(DiagnosticError, match="Leaf: field 'label' is missing"):
        read_samples([SPARSE], model_of(text))


def test_an_unknown_label_is_a_mistake_all_the_same():
    known = read_samples([{**SPARSE, "label": "good"}], model_of(TEXT)).vocabularies
    wrong = {"left": {"word": "a", "label": "god"}, "right": {"word": "a"}, "label": "good"}
    with pytest.raises(
        DiagnosticError, match="is \"god\", which is no label of 'classes'; did you mean 'good'"
    ):
        read_samples([wrong], model_of(TEXT), known)


def test_training_is_that_with_all_labels(workplace):
    (workplace / "root.dn").write_text(TEXT)
    compile_model("root.dn", "root", ("cpu",), SIZES)
    losses = []
    for data in ([WHOLE, WHOLE], [SPARSE, FLAT]):
        model = dnc.load("root", "vm")
        model.attach(data)
        assert model.step([0, 1]) is None
        losses.append((model.step([0, 1]), model.sync(), model.evaluate().metrics))
    assert losses[0] == losses[1]
