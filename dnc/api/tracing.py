"""Traced runs: from a model's plan and backend to a timeline, and back from a file to its summary.

In: what `dnc.load` opened. Out: a `Timeline` for its session, with the traced kernel loaded. The traced
kernel is emitted when it is asked for and kept in the user's cache, so builds hold the plain one only.
"""

from __future__ import annotations

from pathlib import Path

from dnc.compiler import digest
from dnc.diagnostics import fail
from dnc.ir.plan import Plan
from dnc.kernel_cache import traced_kernels
from dnc.runtime.backend import Backend, VMBackend
from dnc.runtime.data_parallel import DataParallelBackend
from dnc.runtime.trace.chrome import write_trace as write_trace
from dnc.runtime.trace.summary import Summary as Summary
from dnc.runtime.trace.summary import WorkerTime as WorkerTime
from dnc.runtime.trace.summary import read_summary as read_summary
from dnc.runtime.trace.summary import summary_of as summary_of
from dnc.runtime.trace.timeline import Timeline

LAUNCHES = 4  # that are traced, unless more are asked for
MOST_LAUNCHES = 1000


def start_timeline(plan: Plan, backend: Backend, launches: int = LAUNCHES) -> Timeline:
    """A timeline of the next launches of a backend; DiagnosticError if it cannot keep times."""
    if not 1 <= launches <= MOST_LAUNCHES:
        raise fail(f"{launches} batches to trace, expected 1 to {MOST_LAUNCHES}")
    files = {} if isinstance(backend, VMBackend | DataParallelBackend) else _kernels(plan)
    return Timeline(plan, backend.name, launches, backend.trace_with(files))


def _kernels(plan: Plan) -> dict[str, bytes]:
    try:
        return traced_kernels(plan, digest(plan))
    except ImportError as error:
        raise fail(
            f"the traced kernel has to be made first, and {error.name} is not installed here",
            "pip install apache-tvm, and for a GPU dnc's extra 'cuda'",
        ) from None


def check_trace_path(path: str | Path, *inputs: object) -> None:
    """DiagnosticError if no trace can be written there."""
    from dnc.runtime.run_folder import check_result

    check_result(path, *inputs)
