"""CUDA text of a small Tree-LSTM: it compiles, nothing spills, weights have literal registers."""

import hashlib
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dnc.compiler import PlanOptions, build_plan, compile_model, digest, make_plan, transform
from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.ir import cutting, lean
from dnc.ir.machine import machine
from dnc.ir.plan import FP32, REGISTER
from dnc.passes.pass_manager import PassOptions
from dnc.runtime.build import read_build
from tests.gpu.builds import CASES

pytestmark = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("cuda.bindings") is None, reason="NVRTC is not installed"
)
TREE = Path(__file__).parents[2] / "examples" / "treelstm.dn"


@pytest.mark.parametrize(("arch", "cluster"), [("sm_90a", 16), ("sm_80", 0)])
def test_nothing_spills(arch: str, cluster: int) -> None:
    from dnc.codegen.cuda_files import emit_source
    from dnc.codegen.nvrtc import compile_cuda

    options = PlanOptions(cluster=cluster, residency=REGISTER)
    program, _ = load_program(Source(str(TREE), TREE.read_text()), {"hidden": 32, "embed": 32})
    plan = make_plan(transform(program, options), arch, options)
    assert plan.tiling is not None and plan.tiling.cluster == max(cluster, 1)
    assert {placement.residency for placement in plan.placements} == {REGISTER}
    files = emit_source(plan)
    text, shape = files["kernel.cu"].decode(), json.loads(files["kernel.json"])
    assert (shape["threads"], shape["cluster"]) == (plan.tiling.threads, plan.tiling.cluster)
    assert shape["workers"] == plan.tiling.workers
    assert 0 < shape["shared_bytes"] <= machine(arch).shared_bytes
    assert shape["symbol"] in text and set(shape["parameters"]) >= {"pool", "words", "counters", "grid"}
    assert "__restrict__" not in text
    indices = re.findall(r"resident_ptr\[([^\]]*)\]", text)
    assert indices and all(index.isdecimal() for index in indices)
    binary = compile_cuda(text, arch)
    assert binary.resident, binary.log


SMALLER = (("sm_80", "treelstm-bf16"),)
FORCED = ("without", "residency", "workers", "window", "registers")
"""Options by which a case gets a plan that the planner would not choose."""
MEASURED = 256  # units of a vertex: in CI of those that are measured, as larger kernels take a minute
ALL = os.environ.get("DNC_KERNELS") == "all"
COMPILED = "treelstm-256 kernel"  # in every run, also where a report was kept
LEAN = ("treelstm-256", "lstm-256")  # of those
NARROW = ("treelstm-512-split-tf32",)  # has one register to spare, and is compiled in CI, too


def is_free(name: str) -> bool:
    """Whether a case has a plan that the planner chooses."""
    *_, options = CASES[name]
    return all(getattr(options, each) == getattr(PlanOptions(), each) for each in FORCED)


def is_measured(name: str) -> bool:
    """Whether the speed of such a plan counts. A lean kernel that spills is not in a build, so of others,
    where it is a part of the whole as well, it is not looked at here."""
    _, settings, options = CASES[name]
    units = settings.get("hidden", 0)
    return is_free(name) and (
        (ALL and units >= MEASURED) or (units == MEASURED and options.precision == FP32)
    )


def of_ci() -> list[str]:
    """The cases whose kernels CI looks at, which takes minutes: those of what is measured most, and the first
    one of every other example; and the narrowest. `DNC_KERNELS=all` compiles all, as the machine with a GPU
    does."""
    measured = {CASES[name][0] for name in CASES if is_measured(name)}
    firsts = {example: name for name, (example, *_) in reversed(CASES.items()) if example not in measured}
    chosen = {*firsts.values(), *NARROW}
    return [name for name in CASES if ALL or name in chosen or is_measured(name)]


KERNELS = [
    *(("sm_90a", name, False) for name in of_ci()),
    *((arch, name, False) for arch, name in SMALLER),
    *(("sm_90a", name, True) for name in CASES if is_measured(name) and (ALL or name in LEAN)),
]


def check_looks(text: str) -> None:
    """Whoever reads what a look ahead found has waited for the warp that looked."""
    for read in re.finditer(r"int next(_\d+)? = __shfl_sync", text):
        _, behind = text[: read.start()].rsplit("dnc_copy_commit();", 1)
        assert "cta_sync();" in behind, read[0]


def test_parts_of_runs_are_even() -> None:
    from dnc.codegen.slots import MOST_RUNS, part_size, parts_of

    assert (part_size(33), parts_of(33)) == (11, 3)
    for runs in range(1, 300):
        parts, size = parts_of(runs), part_size(runs)
        assert (parts - 1) * size < runs <= parts * size and size <= MOST_RUNS


@pytest.mark.parametrize("arch, name, is_lean", KERNELS)
def test_kernels_of_the_gpu_tests_do_not_spill(arch: str, name: str, is_lean: bool) -> None:
    """Of plans that only tests force it is enough that they compile."""
    from dnc.codegen.cuda_files import emit_source
    from tests.support.kernel_reports import compiled, kept_report, report_of

    example, settings, options = CASES[name]
    path = TREE.parent / f"{example}.dn"
    program, _ = load_program(Source(str(path), path.read_text()), settings)
    plan = make_plan(transform(program, options), arch, options)
    if is_lean and not lean.has_lean(plan):
        pytest.skip("has no lean kernel")
    files, kernel = emit_source(plan, is_lean=is_lean), lean.NAME if is_lean else "kernel"
    text = files[f"{kernel}.cu"].decode()
    assert "__restrict__" not in text
    check_looks(text)
    key = f"{name} {kernel}"
    report = compiled(key, text, arch) if key == COMPILED else report_of(key, text, arch)
    assert kept_report(key, text, arch) in (report, None)
    assert report.resident or not is_free(name), report


def test_a_report_is_of_one_text_and_one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from dnc.codegen.nvrtc import CudaBinary
    from tests.support import kernel_reports
    from tests.support.kernel_reports import Report, report_of

    compiled: list[str] = []

    def compile_cuda(text: str, arch: str) -> CudaBinary:
        compiled.append(text)
        return CudaBinary(64, 8, 8, 0, b"", "")

    monkeypatch.setattr(kernel_reports, "compile_cuda", compile_cuda)
    monkeypatch.setattr(kernel_reports, "ALL", False)
    monkeypatch.setattr(kernel_reports, "UPDATED", False)
    digest, rest = hashlib.sha256(b"a").hexdigest(), {"stack": 0, "spill_stores": 0, "spill_loads": 0}
    report = Report(text=digest, compiler=kernel_reports.compiler(), registers=255, **rest)
    monkeypatch.setattr(kernel_reports, "_kept", lambda: {"sm_90a one": report})
    assert report_of("one", "a", "sm_90a") is report and report.resident and not compiled
    for name, text, arch in [("one", "b", "sm_90a"), ("one", "a", "sm_80"), ("two", "a", "sm_90a")]:
        assert not report_of(name, text, arch).resident
    monkeypatch.setattr(kernel_reports, "FLAGS", ("--fmad=false",))
    assert not report_of("one", "a", "sm_90a").resident
    monkeypatch.undo()
    kinds = ("kernel", lean.NAME)
    kernels = {f"{arch} {name} {kind}" for arch in ("sm_90a", "sm_80") for name in CASES for kind in kinds}
    kept = set(kernel_reports._kept())
    assert len(compiled) == 4 and kept - {f"{arch} treelstm traced" for arch in ("sm_90a", "sm_80")} < kernels


def test_a_kernel_that_spills_gets_fewer_registers_for_weights(tmp_path, monkeypatch) -> None:
    """The compiler's word decides; what was decided is kept in the build."""
    tried = []

    def emit(plan):
        used = sum(p.residency == REGISTER for p in plan.placements)
        tried.append(used)
        return {"kernel.json": json.dumps({"spill_stores": 8 if used else 0, "stack": 0}).encode()}

    monkeypatch.setattr("dnc.kernel_cache._emit", emit)
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    told: list[str] = []
    show, sizes = PassOptions(tell=told.append), {"hidden": 256, "embed": 256}
    report = compile_model(TREE, tmp_path / "build", ("cuda:sm_90a",), sizes, show=show)
    assert told[0] == "cuda:sm_90a: compiling" and len(told) == len(tried) > 1
    assert set(told[1:]) == {"cuda:sm_90a: trying fewer registers"}
    assert tried[0] and not tried[-1] and all(tried[:-1])
    build = read_build(tmp_path / "build")
    assert build.targets["cuda:sm_90a"].options["registers"] < machine("sm_90a").registers
    assert digest(build_plan(build, "cuda:sm_90a")) == digest(report.targets[0].plan)


def test_weight_gradients_share_a_body_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for rows that cannot be copied, of which each gradient has a body of its own."""
    from dnc.codegen.bodies import cuda_dense
    from dnc.codegen.cuda_files import emit_source

    made: list[tuple[tuple[str, ...], cutting.GradientTile]] = []

    def matrix_tile(work: cuda_dense.TileWork, shape: cutting.GradientTile) -> None:
        made.append((tuple(each.parameter for each in work.kind.gradients.values()), shape))

    monkeypatch.setattr(cuda_dense, "matrix_tile", matrix_tile)
    path = TREE.parent / "bilstm_tagger.dn"
    program, _ = load_program(Source(str(path), path.read_text()), {"hidden": 256, "embed": 50})
    plan = make_plan(transform(program), "sm_90a")
    emit_source(plan)
    matrices = {each.parameter: each for each in plan.dense_gradients if each.pieces}
    alike = tuple(name for name in matrices if not name.startswith("W"))
    assert len(alike) == 3 and {name for names, _ in made for name in names} == set(matrices)
    for names in [alike, ("Wf",), ("Wb",)]:
        shapes = {shape for name in names for shape in cutting.gradient_tiles(matrices[name])}
        assert sorted(shape.columns for found, shape in made if found == names) == sorted(
            shape.columns for shape in shapes
        )
    assert len(made) == len(set(made))


@pytest.mark.parametrize("arch, size", [("sm_90a", 256), ("sm_80", 64)])
def test_the_traced_kernel_does_not_spill_and_the_plain_one_knows_no_clock(arch: str, size: int) -> None:
    from dnc.codegen.cuda_files import emit_source
    from tests.support.kernel_reports import report_of

    program, _ = load_program(Source(str(TREE), TREE.read_text()), {"hidden": size, "embed": size})
    plan = make_plan(transform(program), arch)
    plain, traced = (emit_source(plan, traced) for traced in (False, True))
    hooks = ("dnc_trace", "clock64", "stamps")
    assert not any(hook in plain["kernel.cu"].decode() for hook in hooks)
    text = traced["kernel.cu"].decode()
    assert all(hook in text for hook in hooks) and "__restrict__" not in text
    before, after = (json.loads(files["kernel.json"]) for files in (plain, traced))
    assert set(after["parameters"]) - set(before["parameters"]) == {"runs", "stamps"}
    assert {key: before[key] for key in before if key != "parameters"} == {
        key: after[key] for key in after if key != "parameters"
    }
    report = report_of("treelstm traced", text, arch)
    assert report.resident, report


def test_a_gpu_without_its_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing by name, and no build."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(DiagnosticError, match=r"needs NVRTC \(.* pip install -e '\.\[cuda\]'\)"):
        compile_model(TREE, tmp_path / "build", ("cuda",), {"embed": 4, "hidden": 4})
    assert not (tmp_path / "build").exists()
