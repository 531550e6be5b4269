"""Memory of the GPU that is in use, as its driver counts it.

In: nothing but the GPU. Out: bytes at a moment, and the most of them while a block ran. Other programs'
memory counts too: a measurement wants the GPU for itself. Needs `cuda-bindings`.
"""

from __future__ import annotations

import threading
from types import TracebackType

import attrs

from dnc.runtime.cuda_driver import Device, open_device

SECONDS_BETWEEN = 0.01


def bytes_in_use() -> int:
    """All memory of the GPU without what is free. A context has to be current."""
    from cuda.bindings import driver

    status, free, total = driver.cuMemGetInfo()
    if int(status):
        raise RuntimeError(f"the driver does not say how much memory is free: {status.name}")
    return int(total) - int(free)


@attrs.define
class Watch:
    """A block of `with` during which the memory in use is looked at every hundredth of a second.

    peak: the most that was seen, in bytes.
    """

    device: Device = attrs.field(factory=open_device)
    peak: int = 0
    _over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def now(self) -> int:
        """Bytes in use; they count for the peak too."""
        found = bytes_in_use()
        self.peak = max(self.peak, found)
        return found

    def __enter__(self) -> Watch:
        self._over.clear()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self) -> None:
        self.device.enter()
        while not self._over.wait(SECONDS_BETWEEN):
            self.now()
