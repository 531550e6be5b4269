"""Fields, options and damaged files of every format of `dnc import`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dnc.cli.importing import import_command
from dnc.diagnostics import DiagnosticError
from dnc.runtime.importers import FORMATS, import_file
from tests.support.importing import CONLL, CSV, TAGGED, UD, imported, mistake

# ---- fields and options ----------------------------------------------------------------------------


def test_fields_are_renamed_or_left_out(tmp_path: Path) -> None:
    fields = {"words": "tokens", "form": "w", "tag": ""}
    _, samples = imported(tmp_path, "tagged", "a|X b|Y", fields=fields)
    assert samples == [{"tokens": [{"w": "a"}, {"w": "b"}]}]
    fields = {"left": "right", "right": "left"}
    _, samples = imported(tmp_path, "ptb-trees", "(0 (1 a) (2 b))", fields=fields)
    assert samples[0]["right"] == {"word": "a", "label": 1}


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        (
            "tagged",
            {"fields": {"frm": "x"}},
            "--fields: the format 'tagged' has no field 'frm'; did you mean 'form'?",
        ),
        (
            "tagged",
            {"fields": {"lemma": "x"}},
            "--fields: the format 'tagged' has no field 'lemma'; its fields are 'form', 'tag', 'words'",
        ),
        (
            "tagged",
            {"fields": {"form": "a b"}},
            "--fields: found 'a b' for form, expected the name of a field",
        ),
        *(
            (
                "tagged",
                {"fields": {"form": name}},
                f"--fields: no field of a program can be called '{name}', as form would be",
            )
            for name in ("arm", "prev", "root")
        ),
        ("tagged", {"fields": {"form": "tag"}}, "--fields: form and tag are both called 'tag'"),
        (
            "tagged",
            {"length": 5},
            "--length does not go with the format 'tagged'; its options are: --separator, "
            "--unlabelled, --structure, --seed, --rare, --counted-in, --longest, --layers, --skip",
        ),
        (
            "ptb-trees",
            {"counted_in": "x"},
            "--counted-in does not go with the format 'ptb-trees'; its options are: none",
        ),
        ("text", {"structure": "pyramids"}, "--structure: found 'pyramids'; did you mean 'pyramid'?"),
        ("text", {"tokens": "bytes"}, "--tokens: found 'bytes', expected one of spaces, words, characters"),
        ("text", {"length": "5"}, "--length: found '5', expected a whole number"),
        ("text", {"length": 0}, "--length: found 0, expected 1 or more"),
        ("text", {"length": 1 << 40}, "--length: found 1099511627776, expected at most 2147483647"),
        ("sick", {"classes": 10**9}, "--classes: found 1000000000, expected at most 1000"),
        ("text", {"rare": 2, "structure": "random"}, "--rare goes with --structure sequence alone"),
        ("text", {"seed": 1, "structure": "balanced"}, "--seed goes with --structure random alone"),
        (
            "text",
            {"counted_in": "x"},
            "--counted-in says where words are counted for --rare, which is not given",
        ),
        ("csv", {"delimiter": ";;"}, "--delimiter: found ';;', expected one character, or tab"),
        (
            "csv",
            {"columns": ("1", "stars")},
            "--columns: found '1,stars', expected the text's and the label's, as review,stars "
            "(or, without a header, 2,1)",
        ),
        *(
            (
                "tagged",
                {"separator": separator},
                f"--separator: found '{shown}', expected characters without a blank or a tab\n"
                "  of a word and its tags a line: dnc import conll",
            )
            for separator, shown in ((" ", " "), ("\t", "\\t"), ("", ""))
        ),
        *(
            (
                "conll",
                {"columns": tuple(columns.split(","))},
                f"--columns: found '{columns}', expected the numbers of the word's and the tag's, as 1,4 "
                "(of words without tags 1)",
            )
            for columns in ("word,tag", "1,2,3", "0,1", "00,1", "-1", "1," + "9" * 12, "")
        ),
        ("conll", {"columns": ("2", "2")}, "--columns: 2 is named twice"),
    ],
)
def test_mistakes_in_options(tmp_path: Path, format: str, options: Any, message: str) -> None:
    assert mistake(tmp_path, format, "a|O", **options) == f"error: {message}"


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-tree", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == "error: unknown format 'ptb-tree'; did you mean 'ptb-trees'?"
    with pytest.raises(DiagnosticError) as caught:
        import_file("conllu", "a", "b")
    assert (
        str(caught.value) == "error: unknown format 'conllu'; did you mean 'conllu-trees' or 'conllu-words'?"
    )


def test_the_help_names_every_format() -> None:
    argument = import_command.__annotations__["format"]
    assert all(format in argument for format in FORMATS)


def test_no_source_and_no_place(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "b")
    assert str(caught.value) == f"{tmp_path}/a: error: there is no such file"
    (tmp_path / "a").write_text("(2 a)")
    with pytest.raises(DiagnosticError) as caught:
        import_file("ptb-trees", tmp_path / "a", tmp_path / "no" / "b")
    assert str(caught.value) == f"error: {tmp_path}/no/b: there is no directory {tmp_path}/no"


@pytest.mark.parametrize(
    "format", ["ptb-trees", "conllu-trees", "conllu-words", "tagged", "conll", "text", "csv"]
)
def test_damaged_files_give_messages(tmp_path: Path, format: str) -> None:
    """Random damage to a right file: it is read, or there is one message with the file's name."""
    whole = {"ptb-trees": "(3 (2 not) (4 bad))\n", "tagged": TAGGED, "text": "a b\nc d\n", "csv": CSV}
    whole["conll"] = CONLL
    text, choice, refused = whole.get(format, UD), random.Random(5), 0
    for _ in range(150):
        damaged = list(text)
        for _ in range(choice.randint(1, 4)):
            at = choice.randrange(len(damaged))
            damaged[at] = choice.choice(
                ["", "\n", "\t", "|", "(", ")", '"', ",", " ", "0", "9", "\x00", "\u00a0", "é"]
            )
        try:
            imported(tmp_path, format, "".join(damaged))
        except DiagnosticError as error:
            refused += 1
            assert str(error).startswith(f"{tmp_path}/source.txt:") and "\n" not in str(error)
    assert refused or format in ("text",)


@pytest.mark.parametrize(
    ("format", "text", "none", "expected"),
    [
        ("tagged", "a|X b|-\n", "-", [{"words": [{"form": "a", "tag": "X"}, {"form": "b"}]}]),
        ("conll", "a X\nb _\n", "_", [{"words": [{"form": "a", "tag": "X"}, {"form": "b"}]}]),
        (
            "csv",
            "text,label\na,X\nb,\n",
            "",
            [{"words": [{"form": "a"}], "label": "X"}, {"words": [{"form": "b"}]}],
        ),
        (
            "conllu-trees",
            "1\ta\t_\tX\t_\t_\t2\t_\t_\t_\n2\tb\t_\t_\t_\t_\t0\t_\t_\t_\n",
            "_",
            [{"word": "b", "children": [{"word": "a", "tag": "X", "children": []}]}],
        ),
    ],
)
def test_labels_that_say_there_is_none(
    tmp_path: Path, format: str, text: str, none: str, expected: list[Any]
) -> None:
    summary, samples = imported(tmp_path, format, text, unlabelled=none)
    assert samples == expected
    assert summary.endswith(f", 1 different labels; left out: 1 labels '{none}'")


def test_labels_that_say_there_is_none_in_columns_and_among_numbers(tmp_path: Path) -> None:
    _, samples = imported(tmp_path, "tagged", "a|X b|-\n", unlabelled="-", structure="grid", layers=1)
    assert samples[0]["Step"]["tag"] == ["X", None]
    _, samples = imported(tmp_path, "csv", "text,label\na,1\nb,?\n", unlabelled="?", numeric=True)
    assert samples == [{"words": [{"form": "a"}], "label": 1.0}, {"words": [{"form": "b"}]}]
    summary, _ = imported(tmp_path, "tagged", "a|None b|-\n")
    assert "2 different labels; left out: nothing" in summary
