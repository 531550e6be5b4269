"""What segments push into the shared memory of other workers (`dnc/passes/plan_mailboxes.py`)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dnc.codegen.bodies import cuda_segments
from dnc.codegen.bodies.cuda_push import MOST_ROWS, Mailbox
from dnc.codegen.cuda_files import emit_source
from dnc.codegen.cuda_kernel import Kernel
from dnc.explain.facts import gather
from dnc.ir.plan import Plan
from dnc.passes.plan_mailboxes import PlanMailboxes
from tests.support.plans import plan_of


def pushes(plan: Plan) -> list[tuple[str, str, bool]]:
    """Segment, buffer, and whether it is a state."""
    return [(each.segment, each.buffer, each.value is not None) for each in plan.pushes]


def test_a_sequence_pushes_its_state_and_the_sums_of_its_gradient() -> None:
    assert pushes(plan_of("lstm_classifier", {"hidden": 64, "embed": 40})) == [
        ("forward/0", "forward:state", True),
        ("forward.grad/0", "forward.grad>forward.h@prev#0", False),
    ]


def test_inference_pushes_states_only() -> None:
    found = pushes(plan_of("torch_gru", {"hidden": 64, "embed": 40}, mode="infer"))
    assert found == [("forward/0", "forward:state", True)]


@pytest.mark.parametrize(
    "example, settings, options",
    [
        ("lstm_classifier", {"hidden": 64}, {"without": ("mailboxes",)}),
        ("lstm_classifier", {"hidden": 64}, {"cluster": 0}),  # no cluster, no other's shared memory
        ("lstm_classifier", {"hidden": 4}, {"cluster": 8}),  # workers without units send nothing
        ("bilstm_tagger", {"hidden": 64}, {}),  # two segments in a level
        ("treelstm", {"hidden": 64}, {}),  # two ways into a level
        ("childsum", {"hidden": 64}, {}),
    ],
)
def test_nothing_is_pushed(example: str, settings: dict[str, int], options: dict[str, Any]) -> None:
    assert not plan_of(example, settings, **options).pushes


def test_a_tree_could_push_all_that_it_reads() -> None:
    plan = plan_of("treelstm", {"hidden": 64, "embed": 40})
    assert pushes(PlanMailboxes(sequences=False)(plan)) == [
        ("encode.Node/0", "encode.Node:state", True),
        ("encode.Node.grad/0", "encode.Node.grad>encode.h@left#0", False),
        ("encode.Node.grad/0", "encode.Node.grad>encode.h@right#1", False),
    ]


def test_what_cannot_be_pushed_whole_is_not_pushed() -> None:
    """A segment that reads elements of a state which no store wrote as they are."""
    plan = plan_of("lstm_classifier", {"hidden": 64, "embed": 40})
    (segment,) = (each for each in plan.segments if each.name == "forward/0")
    (h, *others) = segment.stores
    moved = attrs.evolve(segment, stores=(attrs.evolve(h, offset=h.offset + 4), *others))
    segments = tuple(moved if each is segment else each for each in plan.segments)
    found = pushes(PlanMailboxes()(attrs.evolve(plan, segments=segments)))
    assert [segment for segment, *_ in found] == ["forward.grad/0"]


def test_mailboxes_lie_beside_what_narrow_levels_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, tuple[Mailbox | None, Any]] = {}
    real = cuda_segments.level_mailbox

    def spy(worker: Any, segment: Any) -> Mailbox | None:
        box = real(worker, segment)
        found[segment.name] = box, cuda_segments.choose_staging(worker, segment)
        return box

    monkeypatch.setattr(cuda_segments, "level_mailbox", spy)
    plan = plan_of("lstm_classifier", {"hidden": 256, "embed": 256})
    Kernel(plan).build()
    assert set(found) == {"forward/0", "forward.grad/0"}
    for box, staging in found.values():
        assert box is not None and 2 <= box.most <= MOST_ROWS and box.kept >= box.most
        if box.at < staging.words:  # rows of operands that a narrow level has not
            assert box.at >= -(-box.most // 4) * 4 * staging.operand_words
            assert box.at + box.rows * box.row_words <= staging.scratch


def test_weights_that_fill_shared_memory_leave_room_for_all_instructions() -> None:
    """Here matrices took all but 51,080 bytes, and a tile of a weight gradient stages 51,200."""
    settings = {"vocab": 300, "embed": 100, "hidden": 256}
    plan = plan_of("language_model", settings, cluster=8, residency="shared", precision="tf32x3")
    assert "dnc_kernel" in emit_source(plan)["kernel.cu"].decode()


def test_explain_says_what_is_pushed() -> None:
    plan = plan_of("lstm_classifier", {"hidden": 64, "embed": 40})
    assert gather(plan).pushes == ("h of forward/0", "partial sums of forward.grad/0")


def test_the_smallest_layout_is_tried_before_staging_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One vertex at a time with one buffer, where two buffers do not fit."""
    real, seen = cuda_segments.level_mailbox, list[tuple[Any, Any]]()

    def spy(worker: Any, segment: Any) -> Mailbox | None:
        seen.append((worker, segment))
        return real(worker, segment)

    monkeypatch.setattr(cuda_segments, "level_mailbox", spy)
    Kernel(plan_of("lstm_classifier", {"hidden": 64, "embed": 40}, cluster=8, residency="streamed")).build()
    ((worker, segment),) = (each for each in seen if each[1].name == "forward.grad/0")
    two, one = (cuda_segments.narrow_staging(worker, segment, 1, 8, buffers) for buffers in (2, 1))
    assert one.words < two.words
    tight = attrs.evolve(worker, staging_words=one.words)
    assert cuda_segments.choose_staging(tight, segment) == one


def test_only_a_kernel_that_pushes_has_signals() -> None:
    settings = {"hidden": 64, "embed": 40}
    with_pushes = emit_source(plan_of("torch_gru", settings))["kernel.cu"].decode()
    plan = plan_of("torch_gru", settings, without=("mailboxes", "reductions"))
    without = emit_source(plan)["kernel.cu"].decode()
    assert "dnc_push_to_all" in with_pushes and "dnc_signal_wait" in with_pushes
    assert "dnc_push" not in without and "dnc_signal_wait" not in without
