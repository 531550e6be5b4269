"""Importers: files in other formats become JSONL.

In: a format's name, a source, a destination. Out: the JSONL file and a `Report`. Guaranteed: the
destination is written whole or not at all. A format is one file, and one entry of `FORMATS`.
"""

from dnc.runtime.importers.registry import FORMATS, Report, import_file

__all__ = ["FORMATS", "Report", "import_file"]
