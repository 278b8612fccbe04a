"""`make docs` builds a site whose links lead somewhere, and which loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.repository import ROOT

MKDOCS = ROOT / ".docs" / "bin" / "mkdocs"
SOURCES = ("docs", "mkdocs.yml", "LICENSE", *(path.name for path in ROOT.glob("*.md")))

pytestmark = pytest.mark.skipif(
    not (ROOT / ".docs" / ".done").exists(), reason="no mkdocs: make .docs/.done"
)


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", site],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    return site


class Page(HTMLParser):
    """The links of a page, its anchors, and what a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "src" in given or (tag == "link" and "href" in given):
            self.loaded.append(given.get("src") or given["href"])


def test_each_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            if re.match(r"\w+:", file) or link == ".":
                continue
            target = (path.parent / unquote(file)).resolve() if file else path
            known = pages[target].anchors if target in pages else {""}
            if not target.is_file() or unquote(anchor) not in known | {""}:
                broken.append((path.name, link))
    assert broken == []


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    loaded = {one for path in site.rglob("*.html") for one in Page(path).loaded}
    assert loaded
    assert [one for one in loaded if re.match(r"(\w+:)?//", one)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def test_the_navigation_has_the_order_of_the_index(site: Path) -> None:
    index = (site / "index.html").read_text()
    menu = index[index.index("md-nav--primary") :]
    places = re.findall(r'<a href="([\w/.-]+)" class="md-nav__link', menu)
    text = (ROOT / "docs" / "README.md").read_text()
    wanted = re.findall(r"\]\(([\w/-]+)\.md", text)
    listed = [place for name in dict.fromkeys(wanted) if (place := f"{name}.html") in places]
    of_folders = [place for place in places if place.startswith("platforms/")]
    assert [
        place for place in dict.fromkeys(places) if place in listed and place not in of_folders
    ] == [place for place in listed if place not in of_folders]
    assert len(listed) > 25
    assert of_folders[0] == "platforms/index.html"
    assert len(set(of_folders)) == len([*(ROOT / "docs" / "platforms").glob("*.md")])


def test_files_outside_of_docs_are_a_part_of_the_site(site: Path) -> None:
    assert {"repository/index.html", "repository/CHANGELOG.html"} <= {
        *Page(site / "index.html").links
    }
    assert (site / "repository" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_a_broken_link_or_anchor_ends_the_build(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    root.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    page = root / "docs" / "glossary.md"
    page.write_text(page.read_text() + "\n[a](gone.md) [b](../GONE.md) [c](flags.md#gone)\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    for sentence in ("'gone.md'", "'repository/GONE.md'", "'flags.md#gone'"):
        assert sentence in done.stderr
