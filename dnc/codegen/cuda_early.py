"""Posts on CUDA: what replicas tell those who make their weight gradients early (`dnc/ir/early.py`).

In: a kernel at a `post` or an `early`. Out: the instruction's body. A post is half a barrier: every worker
releases what it wrote, and goes on; who waits acquires what all of them wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm.tirx.script.builder import ir as T

from dnc.codegen import sync
from dnc.codegen.emit import Expr, both, let, put, when
from dnc.ir import isa

if TYPE_CHECKING:
    from dnc.codegen.cuda_kernel import Kernel


def post(kernel: Kernel) -> None:
    """Says that levels are behind this worker."""
    (number,) = kernel.values(isa.POST_FIELDS)
    sync.signal(_counter(kernel, number))


def wait(kernel: Kernel) -> None:
    """Waits for posts; gradients that follow are shared out to the workers behind some."""
    first, number, posts = kernel.values(isa.EARLY_FIELDS)
    with when(kernel.worker.thread == 0):
        put(kernel.worker.sharing, 0, first)
    waiter = kernel.waiter(kernel.at[0], isa.POSTED)
    failed = let("failed", sync.wait(_counter(kernel, number), T.cast(posts, "uint32"), waiter))
    with when(both(failed != 0, kernel.worker.thread == 0)):
        put(kernel.aborted, 0, kernel.at[0] + 1)


def _counter(kernel: Kernel, number: Expr) -> Expr:
    """The address of a post's counter."""
    place = isa.SYNC_GRID * isa.SYNC_STRIDE + isa.SYNC_POSTS + number
    return T.address_of(kernel.counters[place + kernel.zero[0]])
