"""One mistake per data file, with the exact message."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dnc.diagnostics import DiagnosticError
from dnc.ir.program import Program
from dnc.ir.structure import Dimension
from dnc.runtime.data import read
from dnc.runtime.data.lines import ONE_A_LINE
from tests.support.data_programs import (
    SENTENCE,
    SPEECH,
    TREE,
    TWINS,
    WORD,
    children,
    label,
    program,
    struct,
    token,
    write,
)

FIVE = program(struct("Word", Word=[token("form", Dimension("vocab", 5))]))
TWO = program(struct("Word", Word=[label("tag", Dimension("tags", 2))]))
ENDS = program(
    WORD,
    struct("Sentence", Sentence=[children("words", "Word"), label()]),
    reads={"Sentence": [("words", "last")], "Word": [("prev",)]},
)
LEAF = '{"word": "a", "label": 2}'
UNLABELLED = "  where some have none, the program says so: label: class<classes>?"
ARMS = "Leaf expects 'word', 'label'; Node expects 'left', 'right', 'label'"


def check(path: Path, model: Program, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read(path, model)
    assert str(caught.value) == f"{path}:{message}"


def frame(x: str, energy: str = "1") -> str:
    return f'{{"frames": [{{"x": {x}, "energy": {energy}}}], "label": 1}}'


def tree(**changes: str) -> str:
    """A right tree in flat form, with some columns replaced ("" leaves one out)."""
    columns = {
        "arm": '["Leaf", "Leaf", "Node"]',
        "word": '["a", "b", null]',
        "label": "[2, 2, 3]",
        "left": "[null, null, 0]",
        "right": "[null, null, 1]",
    }
    root = changes.pop("root", "2")
    columns |= changes
    table = ", ".join(f'"{name}": {column}' for name, column in columns.items() if column)
    return f'{{"Tree": {{{table}}}' + (f', "root": {root}}}' if root else "}")


LINES = {
    "empty": (TREE, "", " error: the file is empty, expected one sample a line"),
    "blank": (TREE, "\n \r\n", " error: the file is empty, expected one sample a line"),
    "not_utf8": (
        TREE,
        LEAF.encode() + b'\n{"word": "\xff"}',
        "2: error: not UTF-8: byte 0xff (invalid start byte)",
    ),
    "broken": (TREE, f'{LEAF}\n{{"word": "a", "label" 2}}', "2:23: error: broken JSON: expected ':'"),
    "brackets": (
        TREE,
        "(3 (2 not) (4 bad))",
        "1:1: error: broken JSON: found '('; dnc import ptb-trees makes JSONL of trees in brackets",
    ),
    "of commas": (
        TREE,
        "word,label\nnot,2",
        "1:1: error: broken JSON: invalid character; "
        "dnc import makes JSONL of CSV, CoNLL-U, plain text and more",
    ),
    "of ten columns": (
        TREE,
        "1\tnot\tnot",
        "1:3: error: broken JSON: trailing characters; "
        "dnc import makes JSONL of CSV, CoNLL-U, plain text and more",
    ),
    "cut": (TREE, '{"word": "a", ', "1:14: error: broken JSON: the line ends too early; a sample is a line"),
    "cut behind a backslash": (
        TREE,
        r'{"word": "\\ud800',
        "1:18: error: broken JSON: the line ends too early; a sample is a line",
    ),
    "half of a character": (
        TREE,
        r'{"word": "\ud800"}',
        r"1:11: error: broken JSON: \ud800 is half of a character, and the other half is missing",
    ),
    "column_counts_characters": (
        TREE,
        '{"word": "ä", "label": 01}',
        "1:25: error: broken JSON: invalid number",
    ),
    "two_a_line": (
        TREE,
        f"{LEAF}  {LEAF}",
        "1:28: error: broken JSON: found a second object; a sample is a line",
    ),
    "more_behind": (TREE, f"{LEAF}, {LEAF}", "1:26: error: broken JSON: trailing characters"),
    "array": (TREE, f"[{LEAF}]", f"1: error: a sample must be an object, found an array; {ONE_A_LINE}"),
    "array_over_lines": (
        TREE,
        f"\n[\n{LEAF},\n{LEAF}\n]",
        f"2: error: the JSON of a sample goes on in the next line; {ONE_A_LINE}",
    ),
    "objects_over_lines": (
        TREE,
        '{"word": "a",\n "label": 2}\n' * 20,
        f"1: error: the JSON of a sample goes on in the next line; {ONE_A_LINE}",
    ),
    "number": (TREE, "3", "1: error: a sample must be an object, found a number"),
    "deep": (
        TREE,
        '{"left":' * 100_000 + LEAF + "}" * 100_000,
        "1: error: nested too deeply (some 1,000 brackets within each other can be read, and a child in a "
        "list has two); write it in the flat form",
    ),
    "missing_field": (TREE, '{"word": "a"}', f"1: error: Leaf: field 'label' is missing\n{UNLABELLED}"),
    "missing_child": (TREE, f'{{"left": {LEAF}, "label": 1}}', "1: error: Node: field 'right' is missing"),
    "null_child": (
        TREE,
        f'{{"left": {LEAF}, "right": null, "label": 1}}',
        "1: error: Node: field 'right' is null",
    ),
    "misspelt_field": (
        TREE,
        '{"word": "a", "lable": 2}',
        "1: error: Tree has no field 'lable'; did you mean 'label'?",
    ),
    "unknown_field": (
        TREE,
        '{"word": "a", "label": 2, "extra": 1}',
        "1: error: Leaf has no field 'extra'; its fields are 'label', 'word'",
    ),
    "misspelt_in_list": (
        SENTENCE,
        '{"words": [{"form": "a", "tag": 0}, {"form": "a", "tags": 0}], "label": 1}',
        "1: error: words[1]: Word has no field 'tags'; did you mean 'tag'?",
    ),
    "empty_tree": (TREE, "{}", f"1: error: no arm of Tree matches: found no fields; {ARMS}"),
    "empty_subtree": (
        TREE,
        f'{{"left": {LEAF}, "right": {{"left": {{}}, "right": {LEAF}, "label": 1}}, "label": 1}}',
        f"1: error: right.left: no arm of Tree matches: found no fields; {ARMS}",
    ),
    "empty_list": (
        ENDS,
        '{"words": [], "label": 1}',
        "1: error: list 'words' is empty, but the program reads its first or last element",
    ),
    "half_of_two_arms": (
        TREE,
        f'{{"word": "a", "left": {LEAF}, "label": 1}}',
        f"1: error: no arm of Tree matches: found the fields 'label', 'left', 'word'; {ARMS}",
    ),
    "another_program": (
        TREE,
        frame("[1, 2, 3]"),
        f"1: error: no arm of Tree matches: found the fields 'frames', 'label'; {ARMS}; "
        "is this the data of another program?",
    ),
    "child_is_text": (
        TREE,
        f'{{"left": "a", "right": {LEAF}, "label": 1}}',
        "1: error: field 'left' must be an object (Tree), found a string",
    ),
    "list_of_text": (
        SENTENCE,
        '{"words": ["a"], "label": 1}',
        "1: error: words[0] must be an object (Word), found a string",
    ),
    "list_is_object": (
        SENTENCE,
        '{"words": {"form": "a"}, "label": 1}',
        "1: error: field 'words' must be a list, found an object",
    ),
    "arm_unclear": (
        TWINS,
        '{"a": {"value": 1}, "b": {"value": 2}}',
        '1: error: several arms of Expr have these fields; add "arm": "Sum" or "Product"',
    ),
    "arm_misspelt": (
        TREE,
        '{"arm": "Leav", "word": "a", "label": 1}',
        "1: error: Tree has no arm 'Leav', only 'Leaf', 'Node'; did you mean 'Leaf'?",
    ),
    "arm_is_number": (
        TREE,
        '{"arm": 3, "word": "a", "label": 1}',
        "1: error: Tree has no arm 3, only 'Leaf', 'Node'",
    ),
    "arm_does_not_fit": (
        TREE,
        '{"arm": "Node", "word": "a", "label": 1}',
        "1: error: Node has no field 'word'; its fields are 'label', 'left', 'right'",
    ),
    "word_is_array": (
        TREE,
        '{"word": ["a"], "label": 1}',
        "1: error: field 'word' must be a word or a whole number, found an array",
    ),
    "word_is_fraction": (
        TREE,
        '{"word": 1.5, "label": 1}',
        "1: error: field 'word' must be a word or a whole number, found a fractional number",
    ),
    "words_and_numbers": (
        TREE,
        LEAF + '\n{"word": 3, "label": 1}',
        "2: error: field 'word' holds a string elsewhere in this file, found a number",
    ),
    "word_negative": (
        TREE,
        '{"word": -3, "label": 1}',
        "1: error: field 'word' is -3, but token<vocab> starts at 0",
    ),
    "word_too_large": (FIVE, '{"form": 5}', "1: error: field 'form' is 5, but token<vocab> has 0..4"),
    "label_is_truth_value": (
        TREE,
        '{"word": "a", "label": true}',
        "1: error: field 'label' must be a whole number or a label, found a truth value",
    ),
    "key_twice": (
        TREE,
        f'{LEAF}\n{{"left": {{"word": "a", "label": 1, "word": "b"}}, "right": {LEAF}, "label": 1}}',
        "2: error: the key 'word' occurs twice in an object",
    ),
    "key_twice_beside_quotes": (
        TREE,
        r'{"word": "a", "label": 1, "word": "\u0022\u0022\u0022\u0022"}',
        "1: error: the key 'word' occurs twice in an object",
    ),
    "root_beside_fields": (
        TREE,
        '{"word": "a", "label": 1, "root": 0}',
        "1: error: Leaf has no field 'root'; its fields are 'label', 'word'",
    ),
    "very_long_key": (
        TREE,
        f'{{"{"x" * 100000}": "a", "label": 1}}',
        f"1: error: no arm of Tree matches: found the fields 'label', '{'x' * 37}...'; {ARMS}; "
        "is this the data of another program?",
    ),
    "arm_is_object": (
        TREE,
        '{"arm": {"word": "a"}, "word": "a", "label": 1}',
        "1: error: Tree has no arm an object, only 'Leaf', 'Node'",
    ),
    "flat_label_out_of_range": (
        TREE,
        LEAF + "\n" + tree(label="[1, 7, 1]"),
        "2: error: Tree[1].label is 7, but class<classes> has 0..4",
    ),
    "label_out_of_range": (
        TREE,
        LEAF + '\n{"word": "a", "label": 5}',
        "2: error: field 'label' is 5, but class<classes> has 0..4",
    ),
    "label_endless": (
        TREE,
        f'{{"word": "a", "label": {"9" * 60}}}',
        "1: error: field 'label' is a number of more than 40 digits, but class<classes> has 0..4",
    ),
    "deep_label": (
        TREE,
        f'{{"label": 1, "left": {LEAF}, '
        f'"right": {{"label": 1, "left": {{"word": "a", "label": 9}}, "right": {LEAF}}}}}',
        "1: error: right.left.label is 9, but class<classes> has 0..4",
    ),
    "too_many_labels": (
        TWO,
        '{"tag": "a"}\n{"tag": "b"}\n{"tag": "c"}',
        "3: error: field 'tag' has 3 different labels, but 'tags' is 2; the rarest is \"c\"",
    ),
    "too_many_labels_of_which_one_is_rare": (
        TWO,
        '{"tag": "b"}\n{"tag": "c"}\n{"tag": "a"}\n{"tag": "b"}\n{"tag": "d"}\n{"tag": "a"}\n{"tag": "c"}',
        "5: error: field 'tag' has 4 different labels, but 'tags' is 2; the rarest is \"d\"",
    ),
    "nan": (SPEECH, frame("[1, 2, NaN]"), "1:26: error: NaN is not allowed, numbers are finite"),
    "infinity": (
        SPEECH,
        frame("[1, -Infinity, 2]"),
        "1:23: error: -Infinity is not allowed, numbers are finite",
    ),
    "too_large": (
        SPEECH,
        frame("[1, 2, 1e39]"),
        "1: error: frames[0].x is 1e+39, too large for 32-bit floats",
    ),
    "far_too_large": (SPEECH, frame("[1, 2, 1e999]"), "1: error: broken JSON: number out of range"),
    "endless_number": (
        SPEECH,
        frame("[1, 2, 3]", "1" * 400),
        "1: error: frames[0].energy is a number of more than 40 digits, too large for 32-bit floats",
    ),
    "short_vector": (SPEECH, frame("[1, 2]"), "1: error: frames[0].x must be a list of 3 numbers, found 2"),
    "text_in_vector": (
        SPEECH,
        frame('[1, 2, "3"]'),
        "1: error: frames[0].x must be a list of 3 numbers, found a string in it",
    ),
    "vector_is_number": (
        SPEECH,
        frame("1"),
        "1: error: frames[0].x must be a list of 3 numbers, found a number",
    ),
    "float_is_array": (
        SPEECH,
        frame("[1, 2, 3]", "[1]"),
        "1: error: frames[0].energy must be a number, found an array",
    ),
    "flat_root_out_of_range": (TREE, tree(root="3"), "1: error: 'root' is 3, but Tree has 0..2"),
    "flat_no_root": (TREE, tree(root=""), "1: error: 'root' is missing"),
    "flat_root_is_text": (
        TREE,
        tree(root='"2"'),
        "1: error: 'root' must be the index of a vertex, found a string",
    ),
    "flat_out_of_range": (
        TREE,
        tree(right="[null, null, 7]"),
        "1: error: Tree[2].right is 7, but Tree has 0..2",
    ),
    "flat_index_is_text": (
        TREE,
        tree(right='[null, null, "1"]'),
        "1: error: Tree[2].right must be the index of a vertex, found a string",
    ),
    "flat_missing": (TREE, tree(right="[null, null, null]"), "1: error: Tree[2].right is missing"),
    "flat_self": (TREE, tree(right="[null, null, 2]"), "1: error: cycle: Tree[2] refers to itself"),
    "flat_cycle": (
        TREE,
        tree(
            arm='["Node", "Leaf", "Node"]',
            word='[null, "b", null]',
            left="[1, null, 1]",
            right="[2, null, 0]",
        ),
        "1: error: cycle: Tree[0] refers to Tree[2], which is above it",
    ),
    "flat_unreachable": (
        TREE,
        tree(right="[null, null, 0]"),
        "1: error: Tree[1] cannot be reached from the root; leave it out",
    ),
    "flat_lengths": (
        TREE,
        tree(right="[null, null]"),
        "1: error: Tree: columns differ in length: 'arm' has 3 entries, 'right' has 2",
    ),
    "flat_wrong_arm": (
        TREE,
        tree(word='["a", "b", "c"]'),
        "1: error: Tree[2] is a Node, which has no field 'word'",
    ),
    "flat_no_word": (TREE, tree(word='["a", null, null]'), "1: error: Tree[1].word is missing"),
    "flat_no_column": (TREE, tree(word=""), "1: error: Tree: column 'word' is missing"),
    "flat_column_is_text": (
        TREE,
        tree(word='"a"'),
        "1: error: Tree: column 'word' must be an array, found a string",
    ),
    "flat_unknown_column": (
        TREE,
        tree(wort='["a", "b", null]'),
        "1: error: Tree has no field 'wort'; did you mean 'word'?",
    ),
    "flat_no_arm": (
        TREE,
        tree(arm=""),
        "1: error: Tree: column 'arm' is missing (its entries are 'Leaf', 'Node')",
    ),
    "flat_unknown_arm": (
        TREE,
        tree(arm='["Leaf", "Lea", "Node"]'),
        "1: error: Tree has no arm 'Lea', only 'Leaf', 'Node'; did you mean 'Leaf'?",
    ),
    "flat_arm_is_number": (
        TREE,
        tree(arm="[0, 0, 1]"),
        "1: error: Tree: column 'arm' must hold names, found a number",
    ),
    "flat_table_is_array": (
        TREE,
        '{"Tree": [], "root": 0}',
        "1: error: 'Tree' must be an object of columns, found an array",
    ),
    "flat_empty": (TREE, '{"Tree": {}, "root": 0}', "1: error: 'root' is 0, but Tree has no vertices"),
    "flat_misspelt_struct": (
        TREE,
        tree().replace('"Tree"', '"Treee"'),
        "1: error: the program has no struct 'Treee'; did you mean 'Tree'?",
    ),
    "flat_another_program": (
        TREE,
        tree().replace('"Tree"', '"Sentence"'),
        "1: error: the program has no struct 'Sentence'; its structs are 'Tree'",
    ),
    "flat_twice_in_a_list": (
        ENDS,
        '{"Word": {"form": ["a"], "tag": [0]}, "Sentence": {"words": [[0, 0]], "label": [1]}, "root": 0}',
        "1: error: Word[0] stands in lists more than once, but the program reads its prev or next",
    ),
    "flat_empty_list": (
        ENDS,
        '{"Sentence": {"words": [[]], "label": [1]}, "root": 0}',
        "1: error: Sentence[0].words is empty, but the program reads its first or last element",
    ),
    "flat_list_is_number": (
        SENTENCE,
        '{"Word": {"form": ["a"], "tag": [0]}, "Sentence": {"words": [0], "label": [1]}, "root": 0}',
        "1: error: Sentence[0].words must be a list, found a number",
    ),
    "flat_list_out_of_range": (
        SENTENCE,
        '{"Word": {"form": ["a"], "tag": [0]}, "Sentence": {"words": [[0, 4]], "label": [1]}, "root": 0}',
        "1: error: Sentence[0].words[1] is 4, but Word has 0..0",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_message(tmp_path: Path, case: str) -> None:
    model, text, message = LINES[case]
    check(write(tmp_path / "data.jsonl", text), model, message)


def test_no_file(tmp_path: Path) -> None:
    check(tmp_path / "none.jsonl", TREE, " error: there is no such file")


@pytest.mark.parametrize(
    "content, message",
    [
        (gzip.compress(LEAF.encode(), mtime=0), " error: is compressed with gzip; unpack it first"),
        (b"PK\x03\x04\x14\x00", " error: is a zip archive; unpack it first"),
        (LEAF.encode("utf-16"), " error: is UTF-16, expected UTF-8"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    check(path, TREE, message)


def test_directory(tmp_path: Path) -> None:
    check(tmp_path, TREE, " error: is a directory, expected a file")


def test_several_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", LEAF, '{"word": "a"}', "3", *["{"] * 20)
    with pytest.raises(DiagnosticError) as caught:
        read(path, TREE)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"{path}:2: error: Leaf: field 'label' is missing"
    assert lines[1] == UNLABELLED
    assert lines[2] == f"{path}:3: error: a sample must be an object, found a number"
    assert lines[3] == (
        f"{path}:4:2: error: broken JSON: the line ends too early; a sample is a line "
        "(and in lines 5..11, perhaps more)"
    )
    assert len(lines) == 4


def test_the_same_in_several_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", *[LEAF, "3", LEAF, "3", "3", "{", "3"])
    with pytest.raises(DiagnosticError) as caught:
        read(path, TREE)
    assert str(caught.value).split("\n") == [
        f"{path}:2: error: a sample must be an object, found a number (and in lines 4..5, 7)",
        f"{path}:6:2: error: broken JSON: the line ends too early; a sample is a line",
    ]
