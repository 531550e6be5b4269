"""The compiler knows no model: nothing under `dnc/` names an example or a family of nets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Names of examples that are words of the language or of English.
WORDS = {"attention", "dag", "similarity", "top_down", "token_vectors"}
MODELS = sorted({path.stem for path in (ROOT / "examples").glob("*.dn")} - WORDS)
SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "dnc").rglob("*.py")}
FAMILIES = ("LSTM", "GRU", "RvNN", "MV-RNN", "TD-RNN", "Tree-FC", "tagger", "language model")


@pytest.mark.parametrize("name", [*MODELS, *FAMILIES])
def test_nothing_in_the_compiler_names_a_model(name: str) -> None:
    word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
    assert not [path for path, text in SOURCES.items() if word.search(text)]
