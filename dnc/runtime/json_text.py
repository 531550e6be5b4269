"""JSON that others may have written: builds, traces, caches, runs.

In: a text. Out: its value. Guaranteed: whatever is wrong with the text is a `msgspec.DecodeError`, which is
a ValueError, so that who reads a file says in one place what it should have been.
"""

from __future__ import annotations

from typing import Any

import msgspec


def decode_json(content: bytes | str, type: Any = Any) -> Any:
    """The value of a text, of the form of `type`; msgspec.DecodeError (ValidationError of another form)."""
    try:
        return msgspec.json.decode(content, type=type)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
