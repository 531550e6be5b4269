"""Messages: one line for a mistake, whatever stands in the files that it is about."""

from __future__ import annotations

from dnc.diagnostics import Diagnostic, Source, Span, fail


def test_what_comes_from_files_steers_no_terminal():
    found = str(fail("not used: \x1b[31mü\n", "a note\twith a tab"))
    assert found == "error: not used: \\x1b[31mü\\n\n  a note\\twith a tab"
    source = Source("m.dn", "model \x1b[31mM()\n")
    shown = str(Diagnostic("found '\x1b'", Span(source, 1, 7)))
    assert shown == "m.dn:1:7: error: found '\\x1b'\n  model \ufffd[31mM()\n        ^"
