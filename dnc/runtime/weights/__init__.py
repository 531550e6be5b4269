"""Weights of models that were trained elsewhere.

In: a safetensors file with any names, and a map that says what a parameter is made of. Out: values of
parameters; and back. Guaranteed: what a file lacks, holds too much of, or holds in another shape is
named, all of it at once; `spread` is the inverse of `gather`, except that of a sum the first term
takes all.
"""

from dnc.runtime.weights.files import read_foreign, write_foreign
from dnc.runtime.weights.parse import WeightMap, read_map
from dnc.runtime.weights.transfer import Gathered, gather, spread
from dnc.runtime.weights.words import read_vocabularies

__all__ = [
    "Gathered",
    "WeightMap",
    "gather",
    "read_foreign",
    "read_map",
    "read_vocabularies",
    "spread",
    "write_foreign",
]
