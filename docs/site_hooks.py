"""What the site needs beyond Markdown: the files of the repository that pages link to.

In: the pages as they stand under docs/, whose links also work in a checkout. Out: a link out of docs/ leads
to a copy of that file in the site. Guaranteed: a link to a file that is not there fails the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDER = "repository"
COMMENT = re.compile(r"^<!-- .*?-->\n", re.MULTILINE | re.DOTALL)
"""What a page says to the tests."""
LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def outside(page: str, link: str) -> str | None:
    """The file of the repository that a link of a page leads to; None where it stays within docs/."""
    target = os.path.normpath(PurePosixPath("docs") / PurePosixPath(page).parent / link)
    return None if target.startswith("docs/") else target


def on_files(files: Files, config: Any) -> Files:
    """Adds the files that pages link to."""
    linked = set()
    for file in files.documentation_pages():
        for link, _ in LINK.findall(file.content_string):
            target = outside(file.src_uri, link)
            if target is not None and (ROOT / target).is_file():
                linked.add(target)
    for target in sorted(linked):
        # With another ending, a page that is linked as a file stays one.
        uri = f"{FOLDER}/{target}.txt"
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links out of docs/ to those copies, and leaves out what is for the tests."""
    up = "../" * page.file.src_uri.count("/")

    def turned(found: re.Match[str]) -> str:
        target = outside(page.file.src_uri, found[1])
        if target is None or not (ROOT / target).is_file():
            return found[0]
        return f"]({up}{FOLDER}/{target}.txt)"

    return LINK.sub(turned, COMMENT.sub("", markdown))
