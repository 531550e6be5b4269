"""Every example computes what an independent PyTorch implementation of its paper computes.

Loss, declared outputs and every gradient, through the public API, at sizes that no tile divides: all on
the reference VM, some on the CPU kernel, whose compilation takes seconds. `python -m
tests.models.compare` compares all of them on the CPU kernel at the examples' own sizes, and records what
it finds in docs/models.json.
"""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")

import dnc.kernel_cache  # noqa: E402
from benchmarks.model_data import MAKERS, VARIANTS, program_of  # noqa: E402
from dnc.compiler import compile_model  # noqa: E402
from tests.cpu.test_cpu_kernel import SIZES as CPU_SIZES  # noqa: E402
from tests.models.compare import RECORD, REFERENCES, compare  # noqa: E402
from tests.models.sizes import SIZES, SMALL, settings  # noqa: E402
from tests.support.models import EXAMPLES  # noqa: E402

TOLERANCE = 1e-4
NAMES = sorted([*(path.stem for path in EXAMPLES.glob("*.dn")), *VARIANTS])
ON_CPU = ("attention", "char_rnn", "dag", "mvrnn", "rnn_stack", "similarity")


def test_every_example_has_a_reference_data_and_a_record():
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["models"]
    assert sorted(REFERENCES) == NAMES, "tests/models/compare.py: REFERENCES"
    assert sorted(MAKERS) == NAMES, "benchmarks/model_data.py: MAKERS"
    assert sorted(recorded) == NAMES, "run: python -m tests.models.compare NAME"
    for name, found in recorded.items():
        assert max(found["values"], found["gradients"]) < TOLERANCE, name


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_vm_agrees_with_torch(name, tmp_path, monkeypatch):
    monkeypatch.setattr(dnc.kernel_cache, "_emit", lambda plan: {})
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    check(name, tmp_path / "build", "vm", settings(name, SMALL))


@pytest.mark.parametrize("name", ON_CPU)
def test_the_cpu_kernel_agrees_with_torch(name, tmp_path):
    check(name, tmp_path / "build", "cpu", CPU_SIZES[name])  # whose kernels others compile as well


def check(name, build, device, dimensions):
    torch.set_num_threads(1)
    compile_model(EXAMPLES / f"{program_of(name)}.dn", build, ("cpu",), dimensions)
    found = compare(name, build, SIZES, device)
    assert found.values < TOLERANCE
    assert not {key: value for key, value in found.gradients.items() if not value < TOLERANCE}
