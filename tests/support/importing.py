"""Importing a text: what the report says and the samples, or the message of what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnc.diagnostics import DiagnosticError, Source
from dnc.frontend.build import load_program
from dnc.runtime.importers import import_file
from tests.support.models import EXAMPLES

UD = """\
# text = Anna doesn't see the old ship
1\tAnna\tAnna\tPROPN\tNNP\t_\t4\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tsees\tsee\tVERB\tVB\t_\t_\t_\t_\t_
5\tthe\tthe\tDET\tDT\t_\t7\tdet\t_\t_
6\told\told\tADJ\tJJ\t_\t7\tamod\t_\t_
7\tship\tship\tNOUN\tNN\t_\t4\tobj\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
TAGGED = "Vienna|I-LOC is|O a|b|O\n\n.|O  is|O\n"
CONLL = """\
-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
# # I-NP O

-DOCSTART- -X- -X- O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
"""
CSV = 'text,stars,label\n"Fine, ""really""\nfine",5,pos\n,1,neg\n\nbad,1,neg\nso so,3,\n'


def imported(tmp_path: Path, format: str, text: str, **options: Any) -> tuple[str, list[Any]]:
    """What the report says behind the names, and the samples."""
    source = tmp_path / "source.txt"
    source.write_bytes(text.encode())
    report = import_file(format, source, tmp_path / "out.jsonl", **options)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return str(report).removeprefix(f"{source} -> {tmp_path}/out.jsonl: "), [
        json.loads(line) for line in lines
    ]


def mistake(tmp_path: Path, format: str, text: str, **options: Any) -> str:
    """The message of an import that fails, without the folder; it writes nothing."""
    with pytest.raises(DiagnosticError) as caught:
        imported(tmp_path, format, text, **options)
    assert not (tmp_path / "out.jsonl").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


def program(text: str, **sizes: int):
    """A program of the given text, or of an example."""
    path = EXAMPLES / text
    source = Source(text, path.read_text()) if text.endswith(".dn") else Source("test.dn", text)
    return load_program(source, sizes)[0]
