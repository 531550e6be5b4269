"""CPU kernels of many programs at once, for runs of any length.

In: plans. Out: a CPU backend for each. What a kernel is made of is what `build_cpu` makes of its plan, by
the same code; but kernels share a module, so that functions which are the same in several (the products, the
norm) are compiled once, LLVM does not optimise, the text is neither printed nor read back, and of the
optimizers there is only the one that the comparison launches. One program of five hundred goes the way of
a build instead (`campaign.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import attrs
import tvm
from tvm.ir import GlobalVar, IRModule
from tvm.target.codegen import llvm_get_system_cpu
from tvm_ffi import structural_equal, structural_hash

from dnc import tirx_cpu
from dnc.codegen.bodies import cpu_update
from dnc.codegen.bodies.cpu_worker import Functions
from dnc.codegen.cpu_kernel import Kernel
from dnc.ir.optimizers import OPTIMIZERS
from dnc.ir.plan import Plan
from dnc.runtime import cpu_backend
from dnc.runtime.cpu_backend import CpuBackend

LIBRARY = "dnc_"  # functions of this prefix depend on a plan's tile, and on where blocks are listed, alone
LAUNCHED = "sgd"


@attrs.define
class Shared:
    """The functions of a module, each once."""

    made: dict[Any, Any] = attrs.Factory(dict)
    products: dict[tuple[str, int, int], Any] = attrs.Factory(dict)
    alike: dict[int, list[Any]] = attrs.Factory(dict)


class SharedFunctions(Functions):
    """The functions of one plan among those of others; names begin with `prefix`."""

    def __init__(self, plan: Plan, shared: Shared, prefix: str) -> None:
        super().__init__(plan)
        self._shared, self._prefix = shared, prefix

    def variable(self, name: str) -> Any:
        """A product's function is that of all plans that keep their places alike."""
        if name.startswith(LIBRARY):
            key = name, self.tile, self.blocks_at
            return self._shared.products.setdefault(key, GlobalVar(f"{name}_{self.tile}_{self.blocks_at}"))
        return self._variables.setdefault(name, GlobalVar(self._prefix + name))

    def define(
        self,
        name: str,
        arguments: tuple[tuple[str, str], ...],
        body: Callable[..., None],
        separate: bool = False,
    ) -> None:
        """A function that is not there yet; one that is the same as another becomes the other."""
        shared, variable = self._shared, self.variable(name)
        if variable in shared.made:
            return
        super().define(name, arguments, body, separate)
        function = self.made.pop(variable)
        if name.startswith(LIBRARY):
            shared.made[variable] = function
            return
        bucket = shared.alike.setdefault(structural_hash(function), [])
        for other in bucket:
            if structural_equal(shared.made[other], function):
                self._variables[name] = other
                return
        bucket.append(variable)
        shared.made[variable] = function


def compile_together(plans: Sequence[Plan]) -> list[CpuBackend]:
    """A backend for each plan, of one module."""
    shared, kernels = Shared(), []
    entries: dict[Any, Any] = {}
    for number, plan in enumerate(plans):
        kernel = Kernel(plan, functions=SharedFunctions(plan, shared, f"p{number}_"), symbol=f"dnc{number}")
        with patch.object(cpu_update, "each_optimizer", _one_optimizer):
            entries |= kernel.build().functions
        kernels.append(kernel)
    target = tvm.target.Target({"kind": "llvm", "mcpu": llvm_get_system_cpu(), "opt-level": 0})
    target = target.with_host(target)
    with patch.object(tirx_cpu, "host_target", lambda: target):
        compiled = tirx_cpu.compile_module(IRModule({**shared.made, **entries}))
    with patch.object(cpu_backend, "_loaded", lambda text: compiled):
        return [
            CpuBackend(plan, {"kernel.tirx": b"", "kernel.json": json.dumps(kernel.described()).encode()})
            for plan, kernel in zip(plans, kernels, strict=True)
        ]


def _one_optimizer(plan: Plan, opcode: Any, table: str, step: Callable[[Any], None]) -> None:
    step(OPTIMIZERS[LAUNCHED])
