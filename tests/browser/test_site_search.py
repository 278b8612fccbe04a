"""The site of docs/, in a real browser: its search finds pages, with a server and without one."""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.repository import ROOT

MKDOCS = ROOT / ".docs" / "bin" / "mkdocs"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (ROOT / ".docs" / ".done").exists(), reason="no mkdocs: make docs"),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(build, cwd=ROOT, env=environment, check=True)
    return site


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=["server", "files"])
def address(request: pytest.FixtureRequest, site: Path, served: str) -> str:
    return served if request.param == "server" else site.as_uri()


@pytest.mark.parametrize(
    ("page", "words", "found"),
    [
        ("index.html", "NCCL", "preflight.html"),
        ("platforms/slurm.html", "overlong penalty", "algorithms.html"),
    ],
)
def test_the_search_leads_to_the_page(
    tab: Page, address: str, page: str, words: str, found: str
) -> None:
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{address}/{page}")
    tab.get_by_role("textbox", name="Search").click()
    tab.keyboard.type(words)
    result = tab.locator(f".md-search-result__link[href*='{found}']").first
    expect(result).to_be_visible()
    result.click()
    tab.wait_for_url(f"{address}/{found}*")
    assert [url for url in asked if not url.startswith(("about:", "data:", address))] == []
