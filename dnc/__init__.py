"""dnc: a compiler for dynamic neural networks (trees, sequences, DAGs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dnc.version import VERSION

if TYPE_CHECKING:
    from dnc.api import Model, as_json, load
    from dnc.diagnostics import DiagnosticError

__version__ = VERSION
__all__ = ["DiagnosticError", "Model", "as_json", "load"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used."""
    if name == "DiagnosticError":
        from dnc.diagnostics import DiagnosticError

        return DiagnosticError
    if name in __all__:
        import dnc.api

        return getattr(dnc.api, name)
    raise AttributeError(f"module 'dnc' has no attribute '{name}'")
