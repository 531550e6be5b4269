"""Launches of a bidirectional tagger with both directions on replicas of their own, and on the same ones.

    python benchmarks/parts.py BUILDS OUT.json [--commit COMMIT]

In: builds of `benchmarks.applications` (`bilstm_tagger`). Out: the median of launches by batch size, in
turns, on the same batches: as the encoder decides (`dnc/runtime/encoder/parts.py`), and together, as it did
before.
Needs a GPU.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ways import compare
from dnc.runtime.encoder.parts import PartBurdens

DATA = {"bilstm_tagger": "tagged sentences"}
SAMPLES, BATCHES = 2048, (1, 8, 32, 128, 256)


def _together() -> AbstractContextManager[object]:
    return patch.object(PartBurdens, "wins", lambda burdens, together, apart: np.zeros(len(apart), bool))


if __name__ == "__main__":
    compare(__doc__, DATA, SAMPLES, BATCHES, {"together": _together, "as decided": nullcontext})
