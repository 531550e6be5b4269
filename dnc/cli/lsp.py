"""dnc lsp: the language server, for editors."""

from __future__ import annotations

from dnc.diagnostics import fail


def lsp() -> None:
    """Serve an editor (Language Server Protocol)."""
    try:
        from dnc.editing.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise fail("the language server needs pygls (in dnc's folder: pip install -e '.[lsp]')") from None
    serve()
