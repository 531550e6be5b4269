"""A session's pool as tensors, and parameters in it.

In: a session. Out: the pool as a flat tensor, and of every parameter the tensor that is its memory.
Guaranteed: on the GPU the pool is allocated by PyTorch, so a view of it never outlives it; on the CPU it is
shared by DLPack. When the pool grows the parameters move with it. Where the host has the pool, gradients are
handed out where a launch made them, and no other launch writes there while a tensor sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import ref

import attrs
import numpy as np
import torch
from torch import Tensor

from dnc.diagnostics import fail
from dnc.ir.isa import PARAMETERS, norm_groups
from dnc.ir.plan import padded
from dnc.ir.program import STACK, TABLE, Parameter
from dnc.ir.weight_format import WeightFormat, row_strides
from dnc.runtime.cuda_driver import CudaError, LentBuffer
from dnc.runtime.session import Session

# Arenas of gradients that PyTorch may keep: those of `.grad`, and those of the next batch beside them.
KEPT = 2


def current_stream(gpu: int) -> int:
    """PyTorch's current stream on a GPU."""
    return int(torch._C._cuda_getCurrentRawStream(gpu))  # a tenth of the time of torch.cuda.current_stream


def idle(gpu: int) -> int:
    """Bytes that PyTorch holds on a GPU and does not use."""
    return torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)


def allocate(gpu: int, size: int) -> LentBuffer:
    """Memory for a pool on a GPU, from PyTorch."""
    try:
        with torch.inference_mode(False):  # the pool may grow while somebody measures
            array = torch.empty(size // 4, dtype=torch.float32, device=f"cuda:{gpu}")
    except torch.OutOfMemoryError as error:
        raise CudaError(str(error).split("\n")[0]) from None
    return LentBuffer(array.data_ptr(), size, array)


@attrs.frozen(eq=False)
class Place:
    """How a parameter lies: its shape, and floats from an element to the next, by dimension."""

    parameter: Parameter
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, floats: Tensor, first: int) -> Tensor:
        """What lies from a float on, seen as the parameter."""
        return floats.as_strided(self.shape, self.strides, first)


class Memory:
    """The pool of a session as tensors, and the parameters of a module in it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._array: object = None
        self.floats = self.words = torch.empty(0)
        self._own: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._holders: dict[str, ref[Tensor]] = {}
        plan, rows = session.plan, session.memory.table_rows
        self._written = sum(norm_groups(plan)[-1][:2])
        self.places = {p.name: _place(plan.weight_format, p, rows) for p in plan.program.parameters}
        # Of arenas of gradients behind the first what is alive while a tensor sees one: what it was made of.
        self._seen: list[Callable[[], object]] = []
        if plan.trains and isinstance(session.backend.pool_array(), np.ndarray):
            session.wait()
            session.memory.add_gradients(KEPT)
        self.refresh({})

    def refresh(self, parameters: Mapping[str, Tensor]) -> None:
        """Looks at the pool again; parameters move with it if it has grown."""
        array = self.session.backend.pool_array()
        if array is self._array:
            return
        self._array = array
        self._seen = [lambda: None for _ in self.session.memory.pool.gradients[1:]]
        with torch.inference_mode(False):  # what is seen of the pool outlives the call in which it grew
            self.floats = array if isinstance(array, Tensor) else torch.from_dlpack(array)
            self.words = self.floats.view(torch.int32)
            for name, place in self.places.items():
                own = place.view(self.floats, self.first(name))
                self._own[name] = own.data_ptr(), own.stride()
                if isinstance(parameters.get(name), torch.nn.Parameter):
                    parameters[name].data = own
                    self._holders[name] = ref(parameters[name])

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.floats.device

    def first(self, name: str) -> int:
        """The first float of a parameter."""
        return self.session.memory.pool.bases[name] * 4

    def free_arena(self) -> int:
        """The arena where the next launch makes gradients: one that may be kept, if nobody sees it."""
        for arena, seen in enumerate(self._seen, 1):
            if seen() is None:
                if self._written < self.session.memory.pool.dense:  # what no launch writes is zero
                    self.gradients(arena)[self._written :] = 0.0
                return arena
        return 0

    def _arena(self, arena: int) -> tuple[int, int]:
        """The first float of an arena of gradients, and how many are of dense parameters."""
        pool = self.session.memory.pool
        return pool.gradients[arena] * 4, pool.dense

    def gradients(self, arena: int) -> Tensor:
        """The dense gradients of an arena, until the next launch."""
        return self.floats.narrow(0, *self._arena(arena))

    def kept_gradients(self, arena: int) -> Tensor | None:
        """The same for as long as somebody sees them; None where launches write that know nothing of it."""
        if not arena:
            return None
        first, count = self._arena(arena)
        array = self.session.backend.pool_array()[first : first + count]
        self._seen[arena - 1] = ref(array)
        return torch.from_numpy(array)

    def shift(self, name: str) -> int:
        """Where a parameter's gradient begins in their arena."""
        bases = self.session.memory.pool.bases
        return (bases[name] - bases[PARAMETERS]) * 4

    def bring_in(self, values: Mapping[str, Tensor]) -> None:
        """Writes values to their places where they do not lie there already."""
        for name, value in values.items():
            place = self.places[name]
            if value is None:
                raise fail(f"parameter {name} is None, expected {list(place.shape)} of {torch.float32}")
            if name in self._holders and self._is_there(name, place, value):  # as in every batch but few
                continue
            if value.shape != place.shape or value.dtype != torch.float32 or value.device != self.device:
                raise fail(
                    f"parameter {name} is {list(value.shape)} of {value.dtype} on {value.device}, expected "
                    f"{list(place.shape)} of {torch.float32} on {self.device}"
                )
            if self._is_there(name, place, value):
                self._holders[name] = ref(value)
                continue
            self._leave(name)
            own = place.view(self.floats, self.first(name))
            own.copy_(value.detach())
            if isinstance(value, torch.nn.Parameter):  # another tensor was put in its place
                value.data = own
                self._holders[name] = ref(value)

    def _is_there(self, name: str, place: Place, value: Tensor) -> bool:
        """Whether a tensor is the memory of a parameter."""
        return (
            value.data_ptr() == self._own[name][0]
            and value.shape == place.shape
            and value.stride() == self._own[name][1]
            and value.dtype is torch.float32
        )

    def _leave(self, name: str) -> None:
        """Gives the parameter that lies at a place memory of its own, because another comes there."""
        holder = self._holders.pop(name, lambda: None)()
        if holder is not None and holder.data_ptr() == self._own[name][0]:
            with torch.inference_mode(False):
                holder.data = holder.data.clone()


def _place(form: WeightFormat, parameter: Parameter, rows: Mapping[str, int]) -> Place:
    sizes = tuple(int(dimension.size or 0) for dimension in parameter.dimensions)
    if parameter.kind == TABLE:
        shape = (rows[parameter.name], *sizes[1:])
        return Place(parameter, shape, (padded(parameter.row_size), *row_strides(shape[1:], shape[-1])))
    own = parameter.type.shape
    strides = form.strides(own)
    return Place(parameter, sizes, (form.floats(own), *strides) if parameter.kind == STACK else strides)
