"""The folders of the cache: what was used longest ago goes, and nothing else."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from dnc import cache_folder, kernel_cache
from dnc.cache_folder import mark_used, trim
from dnc.compiler import compile_model
from tests.support.models import EXAMPLES


def entry(folder: Path, name: str, size: int, age: int, files: int = 0) -> Path:
    """A file, or a folder of files, of so many bytes, last used `age` seconds ago."""
    made = folder / name
    if files:
        made.mkdir()
    for number in range(files or 1):
        (made / str(number) if files else made).write_bytes(bytes(size // (files or 1)))
    now = folder.stat().st_mtime
    os.utime(made, (now - age, now - age))
    return made


def test_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    old, middle, new = (entry(tmp_path, name, 100, age) for name, age in (("a", 300), ("b", 200), ("c", 100)))
    trim(tmp_path, 300)
    assert old.exists() and middle.exists() and new.exists()
    mark_used(old)
    trim(tmp_path, 299)
    assert old.exists() and new.exists() and not middle.exists()


def test_folders_have_the_size_of_their_files(tmp_path: Path) -> None:
    old, new = entry(tmp_path, "a", 300, 300, files=3), entry(tmp_path, "b", 100, 100, files=2)
    trim(tmp_path, 399)
    assert new.exists() and not old.exists()


def test_what_goes_meanwhile_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry(tmp_path, "a", 100, 100)
    kept = entry(tmp_path, "b", 100, 50)
    sizes = cache_folder._bytes

    def late(entry: Path) -> int:
        if entry.name == "a":
            entry.unlink()
        return sizes(entry)

    monkeypatch.setattr(cache_folder, "_bytes", late)
    trim(tmp_path, 150)
    assert kept.exists()


def test_kernels_stay_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was read last is kept for the one that was not."""
    monkeypatch.setenv("DNC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_emit", lambda plan: {"kernel": bytes(1000)})
    kernels = tmp_path / "cache" / "kernels"

    def compiled(hidden: int) -> bool:
        settings = {"embed": 4, "hidden": hidden}
        report = compile_model(EXAMPLES / "treelstm.dn", tmp_path / "build", ("cpu",), settings)
        for age, path in enumerate(sorted(kernels.iterdir(), key=lambda path: path.stat().st_mtime)[::-1]):
            os.utime(path, (1e9 - age, 1e9 - age))
        return report.targets[0].cached

    assert not compiled(4) and not compiled(5) and compiled(4)
    monkeypatch.setattr(kernel_cache, "trim", partial(trim, limit=2500))
    assert not compiled(6)
    assert compiled(4) and compiled(6) and not compiled(5)
