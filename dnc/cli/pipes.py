"""Texts through pipes, in UTF-8 whatever the terminal's encoding is: what could as well lie in a file."""

from __future__ import annotations

import sys

from dnc.diagnostics import undecoded

PIPE = "-"  # as it is typed: ./- is a file
STDIN = "/dev/stdin"  # standard input, for who reads files
STDOUT = "/dev/stdout"


def piped() -> str:
    """All of standard input."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise undecoded("<stdin>", error) from None


def put(text: str) -> None:
    """Writes to standard output. Names of files in the text get their bytes back."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # a program has put a stream of text in its place
        sys.stdout.write(text)
        return
    buffer.write(text.encode("utf-8", "surrogateescape"))
    buffer.flush()
