"""Sparse matrices: what is kept, that it stays, how it is packed, and where a GPU's worker has it."""

from __future__ import annotations

import re

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import dnc
from dnc.compiler import PlanOptions, compile_model
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir import isa
from dnc.ir.machine import LANES
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.parser import parse_program
from dnc.ir.plan import REGISTER, SHARED, SPARSE, STREAMED
from dnc.ir.printer import print_program
from dnc.ir.program import DENSE, Initializer, Parameter
from dnc.ir.sparse import PAIRS, pack, packed_words, pairs, pruned
from dnc.ir.structure import Dimension
from dnc.ir.uses import lends
from dnc.ir.verifier import program_errors
from dnc.runtime.initialize import initialize
from dnc.weights import import_weights
from tests.support.models import EXAMPLES, without_kernels
from tests.support.plans import plan_of

EXAMPLE, SMALL = "sparse_lstm", {"hidden": 40, "embed": 6, "chars": 11}
TEXTS = [{"letters": [{"letter": (3 * at + i) % 11} for i in range(4 + at)]} for at in range(6)]


def parameter(rows: int, columns: int, density: float) -> Parameter:
    sizes = Dimension("rows", rows), Dimension("columns", columns)
    return Parameter("U", DENSE, sizes, Initializer("xavier"), density=density)


def unpacked(words: np.ndarray, rows: int, columns: int, kept: int) -> np.ndarray:
    """The matrix that words stand for: every element adds to its place."""
    room = pairs(kept)
    numbers = words[: rows * room].reshape(rows, room)
    places = words[rows * room :].view(np.uint16).reshape(rows, room)
    found = np.zeros((rows, columns), np.float32)
    np.add.at(found, (np.arange(rows)[:, None], places), numbers)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 300), st.floats(0.01, 1.0), st.integers(0, 2**32 - 1))
def test_what_is_kept_and_packed(rows: int, columns: int, density: float, seed: int) -> None:
    own = parameter(rows, columns, density)
    values = np.random.default_rng(seed).integers(-9, 10, (rows, columns)).astype(np.float32)
    found = pruned(own, values)
    for row, before in zip(found, values, strict=True):
        kept = np.flatnonzero(row)
        assert np.array_equal(row[kept], before[kept])
        if own.is_sparse:
            assert len(kept) == min(own.kept, np.count_nonzero(before))
            left = np.delete(np.abs(before), kept)
            assert not len(kept) or np.abs(row[kept]).min() >= left.max(initial=0.0)
    assert np.array_equal(pruned(own, found), found)
    if own.is_sparse:
        words = pack(found, own.kept)
        assert len(words) == packed_words(rows, own.kept) and pairs(own.kept) % PAIRS == 0
        assert np.array_equal(unpacked(words, rows, columns, own.kept), found)


@pytest.mark.parametrize(
    "columns, density, kept",
    [(100, 0.07, 7), (100, 0.55, 55), (50, 0.14, 7), (25, 0.56, 14), (10, 0.11, 2), (10, 1e-9, 1)],
)
def test_how_many_are_kept(columns: int, density: float, kept: int) -> None:
    assert parameter(2, columns, density).kept == kept


def test_of_equals_the_first_are_kept() -> None:
    own = parameter(2, 5, 0.4)
    found = pruned(own, np.array([[1, -1, 1, 1, 1], [0, 2, 1, -1, 0]], np.float32))
    assert found.tolist() == [[1, -1, 0, 0, 0], [0, 2, 1, 0, 0]]


def test_reads_of_a_warp_meet_few_elements_of_a_bank() -> None:
    """As few as there can be where a bank has its elements in every read."""
    rows, columns, density = 16, 1024, 0.1
    own = parameter(rows, columns, density)
    values = pruned(own, np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32))
    words, room = pack(values, own.kept), pairs(own.kept)
    numbers = words[: rows * room].reshape(rows, room // PAIRS, LANES, 2)
    places = words[rows * room :].view(np.uint16).reshape(rows, room // PAIRS, LANES, 2)
    reads = room // LANES
    for row in range(rows):
        of_bank = np.bincount(np.flatnonzero(values[row]) % LANES, minlength=LANES)
        for part in range(room // PAIRS):
            for half in range(2):
                there = numbers[row, part, :, half] != 0
                met = np.bincount(places[row, part, there, half] % LANES, minlength=LANES)
                assert (met <= -(-of_bank // reads)).all()


def test_the_text_of_a_program_has_it() -> None:
    program = load_program(Source("m.dn", (EXAMPLES / f"{EXAMPLE}.dn").read_text()), SMALL)[0]
    assert "density 0.1" in print_program(program)
    assert parse_program(print_program(program)) == program
    assert program.parameter("U").kept == 4 and not program.parameter("W").is_sparse
    first = initialize(program, {}, 3)["U"]
    assert (np.count_nonzero(first, axis=1) == 4).all()


@pytest.mark.parametrize(
    "name, density", [("U", 7.0), ("U", -1.0), ("U", 0.0), ("U", float("nan")), ("b", 0.5), ("E", 0.5)]
)
def test_the_verifier_looks_at_densities(name: str, density: float) -> None:
    program = load_program(Source("m.dn", (EXAMPLES / f"{EXAMPLE}.dn").read_text()), SMALL)[0]
    changed = tuple(attrs.evolve(p, density=density) if p.name == name else p for p in program.parameters)
    errors = program_errors(attrs.evolve(program, parameters=changed))
    assert [error.message for error in errors] == [
        f"parameter '{name}': found density {density!r}, expected a matrix and a number above 0, at most 1"
    ]


def test_density_is_a_name_elsewhere() -> None:
    text = (EXAMPLES / f"{EXAMPLE}.dn").read_text()
    for name in ("letter", "embed", "lstm", "read", "x", "V", "h", "c", "S", "logits"):
        renamed = re.sub(rf"\b{name}\b", "density", text)
        found, warnings = load_program(Source("m.dn", renamed), {"hidden": 40})
        assert not warnings and found.parameter("U").density == 0.1
    text += "fn f(c: Char) = mean(read(c).h)\nmetric m = mean(c in all(Char)) f(c)\n"
    found, _ = load_program(Source("m.dn", re.sub(r"\bf\b(?=\()", "density", text)), {"hidden": 40})
    assert any(function.name == "density" for function in found.functions)


def test_a_density_of_one_is_none() -> None:
    text = (EXAMPLES / f"{EXAMPLE}.dn").read_text()
    whole, _ = load_program(Source("m.dn", text.replace("density 0.1", "density 1")), SMALL)
    assert whole == load_program(Source("m.dn", text.replace(" density 0.1", "")), SMALL)[0]


def planned(folder, options: PlanOptions = PlanOptions()):
    """A build for a GPU."""
    with without_kernels(folder / "cache"):
        compile_model(EXAMPLES / f"{EXAMPLE}.dn", folder / "build", ("cuda:sm_90a",), SMALL, options)
    return folder / "build"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("sparse"))


def trained(model, steps: int = 2) -> np.ndarray:
    for _ in range(steps):
        model.step([0, 1, 2, 3])
    model.sync()
    return model.parameters()["U"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_keeps_the_zeros(build, tmp_path, optimizer: str) -> None:
    """Those of the beginning, behind other values those of these; also behind a checkpoint, to the bit."""
    model = dnc.load(build, "vm", seed=2)
    model.attach(TEXTS)
    model.configure(optimizer, learning_rate=0.02)
    before = model.parameters()["U"]
    after = trained(model)
    assert np.array_equal(before == 0, after == 0) and not np.array_equal(before, after)
    other = np.random.default_rng(5).normal(size=before.shape).astype(np.float32) * 0.1
    model.set_parameters({"U": other})
    kept = model.parameters()["U"] != 0
    assert np.array_equal(trained(model) != 0, kept)
    model.save(tmp_path / "half.safetensors")
    again = dnc.load(build, "vm", checkpoint=tmp_path / "half.safetensors")
    again.attach(TEXTS)
    assert np.array_equal(trained(again), trained(model)) and (trained(model) != 0).sum() == kept.sum()


def test_what_is_given_is_pruned(build, tmp_path) -> None:
    """By arrays, by a file, by an import, which says so."""
    random = np.random.default_rng(5).normal(size=(160, 40)).astype(np.float32)
    model = dnc.load(build, "vm")
    model.attach(TEXTS)
    model.set_parameters({"U": random})
    found = model.parameters()
    kept = found["U"] != 0
    assert (kept.sum(axis=1) == 4).all() and np.array_equal(found["U"][kept], random[kept])
    save_file({"U": random}, tmp_path / "u.safetensors")
    other = dnc.load(build, "vm")
    other.attach(TEXTS)
    other.load_weights(tmp_path / "u.safetensors")
    assert np.array_equal(other.parameters()["U"], found["U"])
    save_file({**found, "U": random}, tmp_path / "all.safetensors")
    made = import_weights(build, tmp_path / "all.safetensors", run_dir=tmp_path / "run")
    assert made.sparse == ("of each row of U the 4 largest of 40 elements are kept",)
    save_file(found, tmp_path / "all.safetensors")
    again = import_weights(build, tmp_path / "all.safetensors", run_dir=tmp_path / "again")
    third = dnc.load(build, "vm")
    third.restore(again.checkpoint)
    assert np.array_equal(third.parameters()["U"], found["U"])


# ---- where it is ----------------------------------------------------------------------------------


def residency(**options) -> str:
    plan = plan_of(EXAMPLE, options.pop("sizes", {}), **options)
    return next(p.residency for p in plan.placements if p.parameter == "U")


def test_it_is_packed_where_all_of_it_does_not_fit() -> None:
    assert residency(mode="infer") == SPARSE
    assert residency(mode="infer", batch=1) == SPARSE
    assert residency(mode="infer", sizes={"hidden": 256}) == REGISTER
    assert residency(mode="infer", sizes={"hidden": 256}, residency="sparse") == SPARSE
    # Many vertices of a level are multiplied sooner by all of it, which then comes from the cache.
    assert residency(mode="infer", batch=512) == STREAMED
    # Gradients multiply by it the other way.
    assert residency(sizes={"hidden": 256}, residency="sparse") == SHARED


def test_its_place_is_not_lent_where_others_read_it() -> None:
    """Shared memory that is lent holds a slice during levels only."""
    options = {"cluster": 0, "workers": 4, "registers": 0, "mode": "infer"}
    plan = plan_of(EXAMPLE, {"hidden": 160, "embed": 8, "chars": 3700}, **options)
    assert {p.parameter: p.residency for p in plan.placements} == {"U": SPARSE, "V": STREAMED}
    assert lends(plan)
    sizes = {"hidden": 64, "chars": 3700}
    used = plan_of("../tests/support/sparse_outside", sizes, residency="sparse", **options)
    assert {p.parameter: p.residency for p in used.placements} == {"U": SPARSE, "A": SHARED, "V": STREAMED}
    assert not lends(used)


def test_only_what_is_packed_is_there_twice() -> None:
    plan = plan_of(EXAMPLE, mode="infer")
    assert isa.packed_parameters(plan) == ("U",) and "packed U" in isa.base_names(plan)
    assert isa.packed_parameters(plan_of(EXAMPLE)) == ()
    assert isa.update_fields(plan_of("treelstm")) == isa.UPDATE_FIELDS


def test_pytorch_is_not_given_what_is_packed(tmp_path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    import dnc.torch

    build = planned(tmp_path, PlanOptions(mode="infer", residency="sparse"))
    with pytest.raises(DiagnosticError, match="keeps U packed, for inference"):
        dnc.torch.Module(build, device="vm")


def test_pytorch_keeps_the_zeros(build) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    import dnc.torch

    net = dnc.torch.Module(build, TEXTS, device="vm")
    before = net.U.detach().clone()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        net([0, 1, 2])["loss"].backward()
        optimizer.step()
    assert torch.equal(before == 0, net.U == 0) and not torch.equal(before, net.U)
    assert net.W.grad.count_nonzero() > net.U.grad.count_nonzero() > 0


@pytest.mark.parametrize("assign", [False, True])
def test_pytorch_prunes_what_it_loads(build, assign: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    import dnc.torch

    net = dnc.torch.Module(build, TEXTS, device="vm")
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    state["U"] = torch.from_numpy(np.random.default_rng(5).normal(size=net.U.shape).astype(np.float32))
    net.load_state_dict(state, assign=assign)
    assert (net.U != 0).sum(dim=1).tolist() == [4] * 160
    net([0, 1])["loss"].backward()
    assert not net.U.grad[net.U == 0].any() and net.U.grad.any()
