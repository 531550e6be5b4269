"""What batches give: a training step's loss and norm, an evaluation; and what their launches add up to.

In: words of launches that are over. Out: numbers for people. Guaranteed: a step whose gradient or loss
was not finite is an error that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import Diagnostic, DiagnosticError
from dnc.ir import isa

Floats = NDArray[np.float32]
BEFORE_ANY_UPDATE = (
    "no update was before it, so that no learning rate helps: with the first weights something is too large, "
    "or a logarithm, a root or a quotient has no value"
)


class NotFinite(DiagnosticError):
    """The gradient or the loss of a batch was not finite; its update was not made.

    before: results of steps before it that nobody has been told of. behind: those of steps that were under
    way behind it, and made their updates.
    """

    def __init__(
        self,
        step: int,
        loss: float,
        norm: float,
        before: Sequence[StepResult] = (),
        behind: Sequence[StepResult] = (),
    ) -> None:
        why = (
            BEFORE_ANY_UPDATE if step == 1 else "a smaller learning rate (--lr) or clipping (--clip) may help"
        )
        notes = (f"its update was not made; {why}",)
        what = f"step {step}: the loss is {loss:g} and the norm of the gradient {norm:g}"
        super().__init__(Diagnostic(what, notes=notes))
        self.before, self.behind = before, behind


@attrs.frozen
class StepResult:
    """A training batch: the mean loss over its samples, and the norm of its gradient.

    parts: launches it took on a device, 1 unless its activations did not fit.
    """

    step: int
    samples: int
    loss: float
    norm: float
    parts: int


@attrs.frozen
class Evaluation:
    """What was measured over a whole set: the mean loss over its samples, every metric by name."""

    samples: int
    loss: float
    metrics: dict[str, float]


@attrs.define(eq=False)
class BatchSums:
    """What the launches of a batch add up to, filled in as they finish: of each part one on every device."""

    step: int
    samples: int
    parts: int
    devices: int = 1
    finished: int = 0
    sums: dict[str, tuple[float, int]] = attrs.field(factory=dict)
    norm: float = 0.0
    updated: bool = False

    def add(self, results: Mapping[str, tuple[int, int]], words: Floats) -> None:
        """Takes in the results of one launch; norm and update are those of the last.

        results: as in `Schedule`.
        """
        for name, (word, rows) in results.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + float(words[word]), count + rows)
        self.norm = float(words[isa.RESULT_NORM])
        self.updated = bool(words[isa.RESULT_UPDATED] == 1)
        self.finished += 1

    @property
    def is_over(self) -> bool:
        """Whether all launches are."""
        return self.finished == self.parts * self.devices

    def loss(self) -> float:
        """The mean loss over the samples."""
        return sum(total for name, (total, _) in self.sums.items() if name.startswith("loss:")) / self.samples
