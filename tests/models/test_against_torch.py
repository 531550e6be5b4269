"""Every example computes what an independent PyTorch implementation of its paper computes.

Loss, declared outputs and every gradient, through the public API on the CPU kernel, with sizes that no
tile divides. `python -m tests.models.compare` does the same at the examples' own sizes and records it.
"""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

from benchmarks.model_data import MAKERS, Sizes  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from tests.models.compare import REFERENCES, compare, settings  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402

SMALL = {
    "vocab": 11, "targets": 13, "chars": 9, "classes": 5, "tags": 4,
    "embed": 6, "hidden": 5, "half": 3, "char": 4, "mlp": 7, "width": 3,
}  # fmt: skip
SIZES = Sizes(words=(1, 6), leaves=(1, 7), pyramid=(1, 5), complete=(0, 3), steps=(1, 7), vertices=(1, 7))
TOLERANCE = 1e-4
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.dn"))


def test_every_example_has_a_reference_and_data():
    assert sorted(REFERENCES) == NAMES, "tests/models/compare.py: REFERENCES"
    assert sorted(MAKERS) == NAMES, "benchmarks/model_data.py: MAKERS"


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_torch(name, tmp_path):
    torch.set_num_threads(1)
    compile_model(EXAMPLES / f"{name}.dn", tmp_path / "build", ("cpu",), settings(name, SMALL))
    found = compare(name, tmp_path / "build", SIZES)
    assert found.values < TOLERANCE
    assert not {key: value for key, value in found.gradients.items() if not value < TOLERANCE}
