"""`Model.save`: a checkpoint of a model as it stands, also in the middle of training.

In: a model, a path. Out: the file. Guaranteed: the place in training that is written is that of the weights;
saving changes nothing of the model; no input and no file of a build or of a run is written over.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from dnc.diagnostics import check_path
from dnc.ir.optimizers import OPTIMIZERS
from dnc.runtime.checkpoint import Checkpoint, save_checkpoint
from dnc.runtime.run_folder import check_result
from dnc.runtime.session import Session

if TYPE_CHECKING:
    from dnc.api.model import Model


def save(self: Model, path: str | Path) -> None:
    """Writes a checkpoint: weights, optimizer state, vocabulary, place in training.

    DiagnosticError where it would lie in a build, or take the place of the attached data or of a run's file.
    """
    _, data = self.session, self.attached  # without a vocabulary there is nothing to save
    self.check_trains()
    check_path(path, "a safetensors file to write")
    check_result(path, None if data is None else data.place)
    self.keep_place()
    write(self, path)


def write(model: Model, path: str | Path) -> None:
    """The same for a run, to a path of its own; its place is known."""
    session, optimizer = model.session, model.hyper.optimizer
    assert model.vocabularies is not None
    weights = session.read_arrays()
    steps, state = _kept(session, optimizer, weights)
    save_checkpoint(
        path,
        Checkpoint(
            model.build.model,
            model.build.digest,
            weights,
            state,
            model.vocabularies,
            model.seed,
            model.position,
            model.hyper,
            steps,
            model.course,
        ),
    )
    model.origin = attrs.evolve(model.origin, saved=(os.path.abspath(path), model.position.step))


def _kept(
    session: Session, optimizer: str, weights: dict[str, NDArray[np.float32]]
) -> tuple[int, dict[str, dict[str, NDArray[np.float32]]]]:
    """Steps that an optimizer has made, and what it keeps: zeros if the last step was another one's."""
    if session.optimizer == optimizer:
        return session.optimizer_steps, session.read_state()
    trained = [p.name for p in session.plan.program.parameters if p.trained]
    zeros = {name: np.zeros_like(weights[name]) for name in trained}
    return 0, {state.name: zeros for state in OPTIMIZERS[optimizer].states}
