"""What editors need: formatting, diagnostics as data, and a language server.

Guaranteed: nothing here runs a model, and the language server alone needs the extra `lsp`.
"""

from __future__ import annotations

from dnc.editing.formatting import Formatted, format_paths, format_text
from dnc.editing.report import CheckResult, check_result

__all__ = ["CheckResult", "Formatted", "check_result", "format_paths", "format_text"]
