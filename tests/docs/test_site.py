"""`make docs`: the site builds without a warning, and its links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")

ROOT = Path(__file__).parents[2]


def build(root, site):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-f",
        str(root / "mkdocs.yml"),
        "-d",
        str(site),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix("")
        shown = site / ("index.html" if place.name == "index" else f"{place}/index.html")
        assert shown.is_file(), page
    assert (site / "repository" / "examples" / "treelstm.dn.txt").read_bytes() == (
        ROOT / "examples" / "treelstm.dn"
    ).read_bytes()


def test_links_within_the_site_lead_somewhere(site):
    count = 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(site)}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert f'id="{parts.fragment}"' in target.read_text(encoding="utf-8"), link
            count += 1
    assert count > 500


@pytest.mark.parametrize("link", ["nowhere.md", "language.md#nowhere", "../examples/nowhere.dn"])
def test_a_link_to_nowhere_fails_the_build(tmp_path, link):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("examples", "tests", "benchmarks", "editors"):
        (copy / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "mkdocs.yml", copy)
    with (copy / "docs" / "index.md").open("a") as page:
        page.write(f"\n[broken]({link})\n")
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0 and "nowhere" in done.stdout + done.stderr
