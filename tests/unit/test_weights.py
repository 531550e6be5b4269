"""Maps of weights: every node both ways, files of every kind of float, what is wrong in a map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnc.diagnostics import DiagnosticError
from dnc.runtime.weights import gather, read_foreign, read_map, spread, write_foreign
from dnc.runtime.weights.transfer import check_gates

W = "map.toml: parameters.W"
SHAPES = {"E": (5, 3), "W": (6, 3), "b": (6,)}


def floats(*shape: int, first: float = 1.0) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(first)


def mapped(folder: Path, text: str):
    (folder / "map.toml").write_text(text)
    return read_map(folder / "map.toml")


def one(folder: Path, entry: str, shape: tuple[int, ...], **tensors: np.ndarray) -> np.ndarray:
    """What an entry makes of tensors; and back again."""
    weights = mapped(folder, f"[parameters]\np = {entry}\n")
    made = gather(weights, tensors, {}, {"p": shape}, "m").values["p"]
    again = gather(weights, spread(weights, {"p": made}), {}, {"p": shape}, "m").values["p"]
    np.testing.assert_array_equal(again, made)
    return made


def test_every_node(tmp_path: Path) -> None:
    a, b = floats(4, 3), floats(4, 3, first=100)
    assert np.array_equal(one(tmp_path, '"a"', (4, 3), a=a), a)
    assert np.array_equal(one(tmp_path, '{ from = "a", transpose = true }', (3, 4), a=a), a.T)
    assert np.array_equal(one(tmp_path, '{ sum = ["a", "b"] }', (4, 3), a=a, b=b), a + b)
    assert np.array_equal(one(tmp_path, '{ from = "a", squeeze = 1 }', (4, 3), a=a[:, None]), a)
    turned = one(tmp_path, '{ from = "a", gates = "i f -> f i" }', (4, 3), a=a)
    assert np.array_equal(turned, np.concatenate([a[2:], a[:2]]))
    twice = one(tmp_path, '{ from = "a", gates = "i f -> f i f" }', (6, 3), a=a)
    assert np.array_equal(twice, np.concatenate([a[2:], a[:2], a[2:]]))
    wide = one(tmp_path, '{ concat = ["a", "c"], axis = 1, sizes = [3, 1] }', (4, 4), a=a, c=b[:, :1])
    assert np.array_equal(wide, np.concatenate([a, b[:, :1]], 1))
    layers = '{ concat = [{ from = "a", expand = 0 }, { from = "b", expand = 0 }] }'
    assert np.array_equal(one(tmp_path, layers, (2, 4, 3), a=a, b=b), np.stack([a, b]))
    blocks = '{ concat = ["a", { concat = [{ constant = 2 }, "b"] }], sizes = [1, 2] }'
    made = one(tmp_path, blocks, (12, 3), a=a, b=b)
    assert np.array_equal(made, np.concatenate([a, np.full((4, 3), 2), b]))
    shifted = '{ sum = ["a", { concat = [{ constant = 0 }, { constant = 1 }] }] }'
    assert np.array_equal(one(tmp_path, shifted, (4, 3), a=a)[2:], a[2:] + 1)


NAMES = st.lists(st.sampled_from("ifguo"), min_size=1, max_size=5, unique=True)


@given(stored=NAMES, data=st.data(), axes=st.booleans())
def test_random_maps_both_ways(tmp_path_factory, stored, data, axes) -> None:
    folder = tmp_path_factory.mktemp("map")
    wanted = data.draw(st.permutations(stored))
    inner = f'{{ from = "a", gates = "{" ".join(stored)} -> {" ".join(wanted)}" }}'
    text = f'{{ concat = [{inner}, "b"], axis = {int(axes)}, transpose = true }}'
    rows = 2 * len(stored)
    a, b = floats(rows, 2), floats(rows, 2, first=50)
    shape = (4, rows) if axes else (2, 2 * rows)
    weights = mapped(folder, f"[parameters]\np = {text}\n")
    made = gather(weights, {"a": a, "b": b}, {}, {"p": shape}, "m").values["p"]
    order = [stored.index(name) for name in wanted]
    parts = a.reshape(len(stored), 2, 2)[order].reshape(rows, 2)
    assert np.array_equal(made, np.concatenate([parts, b], int(axes)).T)
    back = spread(weights, {"p": made})
    assert np.array_equal(back["a"], a) and np.array_equal(back["b"], b)


def test_two_parameters_of_one_tensor(tmp_path: Path) -> None:
    text = (
        '[parameters]\nW = { from = "a", gates = "r z n -> r z" }\nC = { from = "a", gates = "r z n -> n" }\n'
    )
    weights, a = mapped(tmp_path, text), floats(3, 2)
    found = gather(weights, {"a": a}, {}, {"W": (2, 2), "C": (1, 2)}, "m").values
    assert np.array_equal(found["C"], a[2:])
    assert np.array_equal(spread(weights, found)["a"], a)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            'W = "w"\nx = "y"',
            "map.toml: parameters.x: there is no such parameter; the parameters are 'E', 'W', 'b'",
        ),
        ('W = "q"', "m: there is no 'q', which map.toml: parameters.W names"),
        ('W = "v"', "m: 'v' is [3, 6], expected [6, 3]"),
        ('W = { from = "w", gates = "a b c d -> a b c" }', "m: 'w' is [6, 3], expected [8, 3] for W [6, 3]"),
        (
            'W = { from = "w", gates = "a b -> a c" }',
            f"{W}.gates: 'c' is wanted, but what is stored is 'a', 'b'",
        ),
        ('W = { from = "w", gates = "a a -> a" }', f"{W}.gates: 'a' is stored twice"),
        (
            'W = { from = "w", gates = "a b -> a a" }',
            f"{W}.gates: 'a' is wanted twice, and 'b' not at all",
        ),
        ("W = { sum = [] }", f"{W}.sum is empty, expected an array of names or tables"),
        (
            'W = { from = "w", gates = "ifgo" }',
            f"{W}.gates is 'ifgo', expected the stored order and the wanted one, as 'i f g o -> i o g f'",
        ),
        (
            'W = { from = "w", gates = "a b c d e -> a b c d" }',
            f"{W}: [6, 3] has no 4 equal parts along axis 0",
        ),
        (
            'W = { concat = ["w", "w"], sizes = [3, 1] }',
            f"{W}: the 6 of axis 0 of [6, 3] cannot be cut as 3 : 1",
        ),
        (
            'W = { concat = ["v", "w"] }',
            "m: 'v' is [3, 6], expected [3, 3] for W [6, 3]\n"
            "error: m: 'w' is [6, 3], expected [3, 3] for W [6, 3]\n"
            f"  parts of a 'concat' are equal unless it says otherwise: {W}.sizes",
        ),
        (
            'W = { concat = ["w"], sizes = [3, 1] }',
            f"{W}.sizes is 2 numbers, expected one for each of 1 parts",
        ),
        ('W = { concat = ["w"], axis = 2 }', f"{W}: there is no axis 2 in [6, 3]"),
        ("W = { concat = [] }", f"{W}.concat is empty, expected an array of names or tables"),
        ('W = { sum = "w" }', f"{W}.sum is a string, expected an array of names or tables"),
        (
            'W = { from = ["w"] }',
            f"{W}.from is an array, expected one tensor; several are a 'sum' or a 'concat'",
        ),
        (
            'W = { from = "w", sum = ["w"] }',
            f"{W}: found 'from', 'sum' of 'from', 'sum', 'concat', 'constant', expected one of them",
        ),
        (
            "W = { transpose = true }",
            f"{W}: found none of 'from', 'sum', 'concat', 'constant', expected one of them",
        ),
        ('W = { form = "w" }', f"{W}: there is no key 'form'; did you mean 'from'?"),
        ('W = { from = "w", axis = 1 }', f"{W}: 'axis' goes with 'concat', found 'from'"),
        ('W = { from = "w", transpose = 1 }', f"{W}.transpose is a number, expected true or false"),
        ('W = { from = "w", squeeze = -1 }', f"{W}.squeeze is -1, expected a whole number from 0 on"),
        ('W = { from = "w", expand = 0 }', f"{W}: axis 0 of [6, 3] is not 1"),
        ('W = { constant = "0" }', f"{W}.constant is a string, expected a number"),
        ('W = { keep = true, from = "w" }', f"{W}: keep stands alone, as {{ keep = true }}"),
        ("W = 3", f"{W} is a number, expected the name of a tensor or a table"),
        ('W = "n"', "m: 'n' holds I64, expected floats, for W"),
        ('W = "w"\nb = "w"', "map.toml: parameters.b: 'w' would be [6], but [6, 3] for W; b is [6]"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch, entries: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.toml").write_text(f"ignore = ['*']\n[parameters]\n{entries}\n")
    tensors = {"E": floats(5, 3), "w": floats(6, 3), "b": floats(6), "v": floats(3, 6)}
    with pytest.raises(DiagnosticError) as caught:
        gather(read_map("map.toml"), tensors, {"n": "I64"}, SHAPES, "m")
    assert str(caught.value) == f"error: {message}"


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    tensors = {"E": floats(4, 3), "B": floats(6), "w": floats(6, 3), "steps": floats(1)}
    with pytest.raises(DiagnosticError) as caught:
        gather(mapped(tmp_path, "ignore = ['step?']"), tensors, {"n": "I64"}, SHAPES, "m")
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "error: m: 'E' is [4, 3], expected [5, 3]\n"
        "error: m: nothing for W [6, 3]: no tensor has this name, and map.toml says nothing of it\n"
        "error: m: nothing for b [6]: no tensor has this name, and map.toml says nothing of it\n"
        "error: m: not used: B [6], w [6, 3], n\n"
        "  what is not needed is named in the map, as ignore = ['decoder.*']"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[weights]", "map.toml: there is no key 'weights'; a map has 'parameters' and 'ignore'"),
        ("parameters = 3", "map.toml: parameters is a number, expected a table"),
        ("ignore = 'x'", "map.toml: ignore is a string, expected an array of names, as ['decoder.*']"),
        ("x", "map.toml: not TOML: "),
        ("x = " + "1" * 5000, "map.toml: not TOML: "),
        (
            "[parameters]\nW = { constant = 1" + "0" * 400 + " }",
            "map.toml: parameters.W.constant is a number of more than 40 digits, expected a number that a",
        ),
        (
            "[parameters]\nW = { constant = 1e300 }",
            "map.toml: parameters.W.constant is 1e+300, expected a number that a 32-bit float holds",
        ),
        ("[parameters]\nW = { constant = nan }", "map.toml: parameters.W.constant is NaN, expected a number"),
        ("ignore = ['x', 1]", "map.toml: ignore holds a number, expected an array of names"),
        (
            '[parameters]\nW = { from = "x", squeeze = true }',
            "map.toml: parameters.W.squeeze is true, expected a whole number from 0 on",
        ),
        ("[parameters]\na = " + 800 * "{from=" + '"x"' + 800 * "}", "map.toml: nested too deeply"),
    ],
)
def test_broken_maps(tmp_path: Path, monkeypatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(DiagnosticError) as caught:
        read_map("map.toml")
    assert str(caught.value).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("entries", "values", "message"),
    [
        (
            'W = "a"\nC = "a"',
            {"W": floats(2), "C": floats(2, first=2)},
            "map.toml: parameters.C: 'a' is 1 and 2 at [0]: W and C share it and differ now",
        ),
        (
            'W = { from = "a", gates = "r z n -> r n" }',
            {"W": floats(4, 2)},
            "map.toml: 'a': 4 of its 12 numbers [6, 2] are in no parameter; it is read for W",
        ),
        (
            'W = { from = "a", gates = "a b c d -> b a c d" }',
            {"W": floats(6, 2)},
            "map.toml: parameters.W: W [6, 2]: [6, 2] has no 4 equal parts along axis 0",
        ),
        (
            'W = { from = "a", expand = 1 }',
            {"W": floats(2, 2)},
            "map.toml: parameters.W: W [2, 2]: axis 1 of [2, 2] is not 1",
        ),
        (
            "W = { constant = 0 }",
            {"W": floats(2)},
            "map.toml: parameters.W: W [2]: holds 2 where the map has the constant 0",
        ),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, monkeypatch, entries, values, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.toml").write_text(f"[parameters]\n{entries}\n")
    with pytest.raises(DiagnosticError) as caught:
        spread(read_map("map.toml"), values)
    assert str(caught.value) == f"error: {message}"


@pytest.mark.parametrize(
    "entry",
    [
        '{ from = "w", gates = "a b -> b a" }',
        '{ sum = [{ from = "w", gates = "a b -> b a" }, "v"] }',
        '{ concat = [{ from = "w", gates = "a b -> b a" }, "v"], axis = 1 }',
        '{ from = { sum = [{ from = "w", gates = "a b -> b a" }] }, squeeze = 1 }',
    ],
)
def test_gates_are_not_cut_wherever_they_stand(tmp_path: Path, entry: str) -> None:
    weights = mapped(tmp_path, f"[parameters]\nW = {entry}\n")
    check_gates(weights, {"W": "4 * hidden"})
    check_gates(weights, {"W": "hidden"})
    with pytest.raises(DiagnosticError, match=r"W.gates: 2 parts are wanted, but W has 3 \* hidden rows"):
        check_gates(weights, {"W": "3 * hidden"})


def test_gates_of_a_part_are_those_of_its_rows(tmp_path: Path) -> None:
    part = '{ concat = [{ from = "w", gates = "a b -> b a" }, "v"], sizes = [2, 1] }'
    check_gates(mapped(tmp_path, f"[parameters]\nW = {part}\n"), {"W": "3 * hidden"})


def test_files_that_other_libraries_do_not_read(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match="no tensor can be called '__metadata__'"):
        write_foreign(tmp_path / "x", {"__metadata__": floats(2)})
    header = b'{"a":{"dtype":"F32","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}}'
    (tmp_path / "huge").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DiagnosticError, match="huge: not a safetensors file"):
        read_foreign(tmp_path / "huge")


def test_files_of_every_kind_of_float(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]])
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    arrays = {"F16": values.astype("<f2"), "F32": values.astype("<f4"), "F64": values.astype("<f8")}
    arrays |= {"BF16": upper, "I64": np.zeros(3, "<i8")}
    header, data = {}, b""
    for kind, array in arrays.items():
        place = [len(data), len(data) + array.nbytes]
        header[kind.lower()] = {"dtype": kind, "shape": array.shape, "data_offsets": place}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    found, others = read_foreign(tmp_path / "m.safetensors")
    assert others == {"i64": "I64"} and len(found) == 4
    for array in found.values():
        assert array.dtype == np.float32 and np.array_equal(array, values)
