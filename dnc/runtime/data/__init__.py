"""Data: from JSONL files to forests, and vocabularies.

In: one sample a line, nested or flat, as a program's structs describe it. Out: a `Dataset`. See
`reader` for the readers' promise and `describe` for what a program's data look like.
"""

from dnc.runtime.data.describe import describe, missing_everywhere, summarize
from dnc.runtime.data.examples import examples
from dnc.runtime.data.layout import Layout
from dnc.runtime.data.reader import Dataset, read, read_samples
from dnc.runtime.data.usage import layout_of
from dnc.runtime.data.vocabulary import (
    Beside,
    Vocabulary,
    dimension_names,
    has_vocabulary,
    load_vocabularies,
    save_vocabularies,
    table_rows,
    vocabularies_from_json,
    vocabularies_to_json,
    vocabulary_dimensions,
)

__all__ = [
    "Beside",
    "Dataset",
    "Layout",
    "Vocabulary",
    "describe",
    "dimension_names",
    "examples",
    "has_vocabulary",
    "layout_of",
    "load_vocabularies",
    "missing_everywhere",
    "read",
    "read_samples",
    "save_vocabularies",
    "summarize",
    "table_rows",
    "vocabularies_from_json",
    "vocabularies_to_json",
    "vocabulary_dimensions",
]
