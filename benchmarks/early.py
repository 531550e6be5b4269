"""Launches with weight gradients of levels that have ended made early, and with all behind the recursion.

    python benchmarks/early.py BUILDS OUT.json [--commit COMMIT]

In: builds of `benchmarks.applications`, and what `dnc compile` makes of examples, by their names. Out: the
median of launches by batch size, in turns, on the same batches: as the encoder decides
(`dnc/runtime/encoder/early.py`), and behind the recursion, on all replicas.
Needs a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ways import compare
from dnc.runtime.encoder.early import EarlyChoice

LONG = "sentences of 100 words"
DATA = {"lstm": LONG, "gru_classifier": LONG, "lstm2": LONG, "bilstm_tagger": "tagged sentences"}
SAMPLES, BATCHES = 512, (1, 2, 4, 8, 12, 16, 24, 32, 64)


@contextmanager
def _behind() -> Iterator[None]:
    with (
        patch.object(EarlyChoice, "choose", lambda *given: None),
        patch("dnc.runtime.encoder.assign.MOST_SPARED", 0),
    ):
        yield


if __name__ == "__main__":
    compare(__doc__, DATA, SAMPLES, BATCHES, {"behind": _behind, "as decided": nullcontext})
