"""Files that are written whole or not at all, and what is no file of its own."""

import os
from pathlib import Path

import pytest

from dnc.runtime.atomic import write_atomically


def test_what_is_written_is_whole(tmp_path):
    def broken():
        yield b"half"
        raise RuntimeError("no more")

    (tmp_path / "file").write_text("old")
    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "file", broken())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("opened", ["w", "a"])
def test_what_is_open_already_is_written_to(tmp_path, opened):
    """As `> file` and `>> file` have it: the file that a shell opened is not replaced."""
    (tmp_path / "file").write_text("old ")
    with (tmp_path / "file").open(opened) as out:
        before = os.stat(tmp_path / "file").st_ino
        write_atomically(Path(f"/dev/fd/{out.fileno()}"), [b"new"])
    assert (tmp_path / "file").read_text() == ("new" if opened == "w" else "old new")
    assert os.stat(tmp_path / "file").st_ino == before


def test_an_interrupt_just_behind_the_renaming(tmp_path, monkeypatch):
    replace = os.replace

    def interrupted(*paths):
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_text() == "new"
