"""Makes the site from the pages as a host of repositories shows them.

The navigation is that of docs/README.md. A file outside of docs/ that a page links becomes a part
of the site, below `repository/`. mkdocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS, OUTSIDE = "docs/", "repository/"
OWN = ("iframe-worker.js", "wide.css")
"""Files beside this one: the search of pages that are opened from files, and the tables' style."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")
NAMED = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")
LINE = re.compile(r"(?<=\.py)#L\d+(?=\))")
"""A line of a source file, which hosts of repositories show as a page with lines."""
FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
INFO = re.compile(r"\A(```\w+) .*")
"""Behind a block's language stand words for the tests."""
MARK = re.compile(r"^(<!--.*-->)\n(?=\|)", re.MULTILINE)
"""A mark of a table that a program writes; Markdown wants an empty line before the table."""


def on_config(config: Any) -> Any:
    config.nav = nav()
    return config


def on_files(files: Any, *, config: Any) -> Any:
    for name in OWN:
        files.append(File.generated(config, name, abs_src_path=str(Path(__file__).with_name(name))))
    for path in sorted(outside()):
        files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text with links and blocks as mkdocs understands them."""
    here = str(page.file.src_uri)
    source = here.removeprefix(OUTSIDE) if here.startswith(OUTSIDE) else f"{DOCS}{here}"

    def moved(link: re.Match[str]) -> str:
        target = in_site(joined(source, link[1]))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    parts = FENCED.split(markdown)
    parts[::2] = [MARK.sub(r"\1\n\n", LINK.sub(moved, LINE.sub("", part))) for part in parts[::2]]
    parts[1::2] = [INFO.sub(r"\1", part) for part in parts[1::2]]
    return "".join(parts)


def joined(page: str, link: str) -> str:
    """Return the path of a link's target in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def in_site(path: str) -> str:
    return path.removeprefix(DOCS) if path.startswith(DOCS) else f"{OUTSIDE}{path}"


def outside() -> set[str]:
    """Return the files outside of docs/ that pages link, and those that these link."""
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / DOCS).rglob("*.md")]
    found: set[str] = set()
    while pages:
        page = pages.pop()
        for target in links(page):
            if not target.startswith(DOCS) and target not in found and (ROOT / target).is_file():
                found.add(target)
                if target.endswith(".md"):
                    pages.append(target)
    return found


def links(page: str) -> Iterator[str]:
    text = FENCED.sub("", (ROOT / page).read_text())
    return (joined(page, link) for link in LINK.findall(text))


def heading(page: str) -> str:
    first = (ROOT / page).read_text().partition("\n")[0]
    return first.removeprefix("# ").replace("`", "")


def nav() -> list[Any]:
    """Return the navigation: the sections of docs/README.md with the pages that they list."""
    page = f"{DOCS}README.md"
    text = (ROOT / page).read_text()
    before, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    seen = {"README.md"}
    rows: list[Any] = [{"Documentation": "README.md"}, *entries(page, before, seen)]
    for section in sections:
        title, _, body = section.partition("\n")
        rows.append({title: list(entries(page, body, seen))})
    return rows


def entries(page: str, text: str, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the pages that a text links; an index.md comes with those of its folder."""
    for name, link in NAMED.findall(text):
        target = joined(page, link)
        place = in_site(target)
        if place in seen or not target.endswith(".md"):
            continue
        seen.add(place)
        title = heading(target) if name.endswith(".md") else " ".join(name.split())
        title = title[:1].upper() + title[1:] if " " in title else title
        if posixpath.basename(target) != "index.md":
            yield {title: place}
            continue
        folder = posixpath.dirname(target)
        body = (ROOT / target).read_text()
        near = "".join(
            f"[{one}]({other})" for one, other in NAMED.findall(body)
            if posixpath.dirname(joined(target, other)) == folder
        )  # fmt: skip
        yield {title: [{title: place}, *entries(target, near, seen)]}
