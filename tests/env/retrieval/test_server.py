"""The retrieval server: Search-R1's bodies, batches, refusals; killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from env.http.batching import Limits
from env.retrieval.client import Retriever, SearchResult
from env.retrieval.files import Manifest
from env.retrieval.index import Index
from env.retrieval.protocol import MAX_QUERY
from env.retrieval.server import Topk, create_app, main
from env.retrieval.types import Document, Query
from tests.support.corpora import PASSAGES
from tests.support.repository import ROOT
from tests.support.retriever import search
from tests.support.waiting import eventually

Serve = Callable[[Starlette], str]


class Recorder:
    """An index that remembers its batches, and answers once `gate` is open."""

    manifest = Manifest(kind="bm25", settings={}, passages=1)

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[Query]) -> list[list[Document]]:
        self.batches.append(len(queries))
        self.gate.wait(60)
        if queries[0].text == "fail":
            raise RuntimeError("the disk is gone")
        return [[Document(query.text)] for query in queries]


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/retrieve", json=body)


def test_the_bodies_are_search_r1s(url: str) -> None:
    """As `_batch_search` of Search-R1's generation.py asks, and reads."""
    payload = {"queries": ["capital of China", "foxes"], "topk": 1, "return_scores": True}
    results = post(url, **payload).json()["result"]
    assert [[hit["document"]["contents"] for hit in hits] for hits in results] == [
        [PASSAGES[0][1]],
        [PASSAGES[2][1]],
    ]
    assert results[0][0]["score"] > 0
    bare = post(url, queries=["rain"], topk=2).json()
    assert bare == {"result": [[{"id": n, "contents": PASSAGES[3][1]} for n in ("3", "4")]]}
    assert len(post(url, queries=["capital rain"]).json()["result"][0]) == 3, "topk is 3"
    assert post(url, queries=[]).json() == {"result": []}


def test_a_query_that_cannot_be_searched_for_spoils_no_other(url: str) -> None:
    long = "x" * (MAX_QUERY + 1)
    answer = post(url, queries=["", "rain", long], topk=1).json()
    assert [len(found) for found in answer["result"]] == [0, 1, 0]
    assert answer["errors"] == [
        "the query is empty",
        None,
        f"the query has {MAX_QUERY + 1} characters, at most {MAX_QUERY} are searched",
    ]
    empty, rain, too_long = search(url, " \n", "rain", long)
    assert [r.status for r in (empty, rain, too_long)] == ["refused", "ok", "refused"]
    assert empty.error == "the query is empty"
    half = b'{"queries": ["rain", "\\ud83d"], "topk": 1}'
    answer = httpx.post(f"{url}/retrieve", content=half).json()
    assert [len(found) for found in answer["result"]] == [1, 0]
    assert answer["errors"] == [None, "the query has \\ud83d, an incomplete Unicode character"]
    refused, found = search(url, "rain \udfff", "rain")
    assert [refused.status, found.status] == ["refused", "ok"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"queries": ["a"], "topk": 0}, "'topk' is 0; wanted is 1 to 100 (--max-topk)"),
        ({"queries": ["a"], "topk": 10_000}, "'topk' is 10000; wanted is 1 to 100"),
        ({"queries": ["a"], "topk": True}, "'topk' is True"),
        ({"queries": ["a"], "topk": "3"}, "'topk' is '3'"),
        ({"queries": "a"}, "'queries' is 'a', where a list of texts is wanted"),
        ({"queries": ["a", None]}, "'queries'[1] is None, where a text is wanted"),
        ({}, "'queries' is None"),
    ],
)
def test_a_request_of_another_form_is_refused(url: str, body: dict[str, Any], message: str) -> None:
    answer = post(url, **body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_bodies_that_are_no_json_or_too_long_are_refused(url: str) -> None:
    assert httpx.post(f"{url}/retrieve", content=b"\xff{").status_code == 400
    assert httpx.post(f"{url}/retrieve", content=b"[" * 100_000).status_code == 400
    too_long = post(url, queries=["x" * 10 * 2**20])
    assert too_long.status_code == 413
    assert "send fewer queries" in too_long.json()["error"]
    assert httpx.get(f"{url}/retrieve").status_code == 405, "what the node's probe takes for ready"


def test_health_says_what_is_served(url: str, bm25_index: Path) -> None:
    search(url, "rain", "foxes")
    health = httpx.get(f"{url}/health").json()
    assert health == {
        "status": "ready",
        "kind": "bm25",
        "passages": 5,
        "corpus": Index(bm25_index).manifest.corpus,
        "waiting": 0,
        "searched": 2,
    }


def test_queries_that_come_together_are_searched_together(serve: Serve) -> None:
    index = Recorder()
    url = serve(create_app(index, Topk(), Limits(max_batch=8, max_wait=60)))

    async def ask() -> list[list[SearchResult]]:
        async with Retriever(f"{url}/retrieve") as retriever:
            return await asyncio.gather(*(retriever.search([f"q{n}"]) for n in range(32)))

    results = asyncio.run(ask())
    assert [r[0].documents[0].contents for r in results] == [f"q{n}" for n in range(32)]
    assert index.batches == [8] * 4


def test_a_full_queue_turns_requests_away(serve: Serve) -> None:
    index = Recorder()
    url = serve(create_app(index, Topk(), Limits(max_batch=1, max_wait=0.0, max_queue=2)))
    assert post(url, queries=["a"] * 3).status_code == 413
    index.gate.clear()
    waiting = threading.Thread(target=post, args=(url,), kwargs={"queries": ["a", "b"]})
    waiting.start()
    eventually(lambda: index.batches == [1], seconds=30)
    assert httpx.get(f"{url}/health").json()["waiting"] == 1
    refused = post(url, queries=["a", "b"])
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    index.gate.set()
    waiting.join()


def test_a_search_that_fails_is_an_error_of_its_requests_alone(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    url = serve(create_app(Recorder(), Topk(), Limits(max_batch=1, max_wait=0.0)))
    failed = post(url, queries=["fail"])
    assert failed.status_code == 500
    assert failed.json()["error"] == "the search failed: RuntimeError: the disk is gone"
    assert post(url, queries=["next"]).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@contextlib.contextmanager
def process(index: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "entrypoint", "serve-retriever"]
    command += ["--index", str(index), "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        yield server
    finally:
        server.kill()
        server.wait()
        assert server.stderr
        server.stderr.close()


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return
        time.sleep(0.05)
    raise AssertionError("the server does not come up")


def test_a_server_that_is_killed_and_started_again_loses_no_search(
    bm25_index: Path, free_port: int
) -> None:
    results: list[SearchResult] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            results.extend(search(f"http://127.0.0.1:{free_port}", "rain", "Seine"))

    with process(bm25_index, free_port) as first:
        wait_ready(free_port)
        asking = threading.Thread(target=ask)
        asking.start()
        while len(results) < 20:
            time.sleep(0.01)
        first.kill()
        first.wait()
    before = len(results)
    with process(bm25_index, free_port) as second:
        wait_ready(free_port)
        while len(results) < before + 20:
            time.sleep(0.01)
        stop.set()
        asking.join()
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
    assert all(result.ok and result.documents for result in results)


def test_a_server_that_cannot_serve_says_why(
    tmp_path: Path, bm25_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, code, message in [
        (
            ["--index", str(tmp_path / "absent")],
            os.EX_USAGE,
            "absent: no such directory; `rollcall",
        ),
        (["--index", str(bm25_index), "--topk", "200"], os.EX_USAGE, "above --max-topk 100"),
    ]:
        assert main(flags) == code
        assert message in capsys.readouterr().err
    manifest = bm25_index / "index.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    assert main(["--index", str(bm25_index)]) == os.EX_USAGE
    assert "half-built; run the same `rollcall prepare index` again" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "few"])
def test_a_wait_that_is_no_number_is_refused(
    tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=str(os.EX_USAGE)):
        main(["--index", str(tmp_path / "absent"), "--max-wait-ms", wrong])
    assert f"'{wrong}' is not a number from 0" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(
    bm25_index: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = url.rsplit(":", 1)[1]
    assert main(["--index", str(bm25_index), "--port", taken]) == os.EX_UNAVAILABLE
    assert f"cannot listen on 127.0.0.1 port {taken}: another program" in capsys.readouterr().err
