"""The retrieval client: documents in order, outages and refusals as statuses, turns."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from env.http.post import CONNECTIONS
from env.retrieval.client import Retriever, SearchResult, SearchStatus
from env.retrieval.types import Document
from tests.support.retriever import search

Start = Callable[..., Any]


def test_the_client_gets_documents_in_order(url: str) -> None:
    rain, nothing, paris = search(url, "rain", "zebra", "Seine", topk=2)
    assert [document.id for document in rain.documents] == ["3", "4"]
    assert nothing == SearchResult(SearchStatus.OK)
    assert (paris.documents[0].title, paris.ok) == ("Paris", True)
    assert paris.documents[0].text.endswith("lies on the Seine.")
    assert paris.documents[0].score


@pytest.mark.parametrize(
    "fault",
    [
        (500, b"no memory"),
        (200, b"<html>"),
        (200, {"result": []}),
        (200, {"result": [[{"text": "a"}]]}),
        (200, {"result": None}),
        (200, {"result": [[]], "errors": 7}),
    ],
)
def test_an_outage_is_waited_out(scripted: Start, fault: tuple[int, Any]) -> None:
    found = (200, {"result": [[{"contents": "T\ntext"}]]})
    server = scripted(lambda number, _: fault if number < 2 else found)
    (result,) = search(server.url, "rain", path="")
    assert result.documents == (Document("T\ntext"),)
    assert len(server.bodies) == 3


def test_an_outage_to_the_deadline_is_a_status_and_never_an_empty_result(closed_port: int) -> None:
    results = search(f"http://127.0.0.1:{closed_port}", "rain", "", "Seine", deadline=0.5)
    assert [result.status for result in results] == ["unreachable", "refused", "unreachable"]
    assert all(not result.ok and not result.documents for result in results)
    assert "deadline 0.5 s" in results[0].error


def test_hundreds_of_searches_at_once_take_turns(scripted: Start) -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    def answer(_: int, body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1
        return 200, {"result": [[{"contents": query}] for query in body["queries"]]}

    url = scripted(answer).url

    async def ask() -> list[list[SearchResult]]:
        async with Retriever(url) as retriever:
            return await asyncio.gather(*(retriever.search([f"q{n}"]) for n in range(200)))

    results = asyncio.run(ask())
    assert [r[0].documents[0].contents for r in results] == [f"q{n}" for n in range(200)]
    assert 1 < most <= CONNECTIONS


def test_several_servers_share_the_searches_and_stand_in_for_one_another(
    scripted: Start, closed_port: int
) -> None:
    def answer(_: int, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"result": [[{"contents": query}] for query in body["queries"]]}

    one, other = scripted(answer), scripted(answer)
    urls = f"{one.url}, http://127.0.0.1:{closed_port}/retrieve,{other.url}"

    async def ask() -> list[SearchResult]:
        async with Retriever(urls, deadline=30.0) as retriever:
            return [(await retriever.search([f"q{n}"]))[0] for n in range(12)]

    results = asyncio.run(ask())
    assert [result.documents[0].contents for result in results] == [f"q{n}" for n in range(12)]
    assert len(one.bodies) + len(other.bodies) == 12
    assert min(len(one.bodies), len(other.bodies)) > 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topk": 0}, "topk is 0; wanted is a whole number from 1"),
        ({"topk": "3"}, "topk is '3'; wanted is a whole number"),
        ({"topk": 2.5}, "topk is 2.5; wanted is a whole number"),
        ({"deadline": 0}, "deadline is 0; wanted are seconds above 0"),
        ({"deadline": "60"}, "deadline is '60'; wanted are seconds"),
    ],
)
def test_what_environment_args_may_have_wrong_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retriever("http://127.0.0.1:8000/retrieve", **wrong)


def test_a_refused_request_is_not_sent_again(scripted: Start) -> None:
    server = scripted(lambda *_: (400, {"error": "topk is too high"}))
    (result,) = search(server.url, "rain", path="", deadline=30.0)
    assert result.status is SearchStatus.FAILED
    assert "topk is too high" in result.error
    assert len(server.bodies) == 1


def test_a_silent_server_ends_with_the_deadline(scripted: Start) -> None:
    def late(*_: object) -> tuple[int, Any]:
        time.sleep(20)
        return 200, {}

    server = scripted(late)
    began = time.monotonic()
    (result,) = search(server.url, "rain", path="", timeout=0.1, deadline=0.6)
    assert time.monotonic() - began < 15
    assert "no answer within" in result.error


def test_search_r1s_server_without_scores_or_ids_is_understood(scripted: Start) -> None:
    server = scripted(lambda *_: (200, {"result": [[{"contents": "T\ntext"}]]}))
    (result,) = search(server.url, "rain", path="")
    assert result.documents == (Document("T\ntext"),)
    assert server.bodies == [{"queries": ["rain"], "topk": 3, "return_scores": True}]


def test_a_wrong_path_or_topk_is_not_the_fault_of_the_query(url: str) -> None:
    """An episode may tell the policy that its query was refused, never this."""
    (wrong_path,) = search(f"{url}/v1", "rain")
    (too_many,) = search(url, "rain", topk=101)
    assert (wrong_path.status, too_many.status) == ("failed", "failed")
    assert "HTTP 404" in wrong_path.error
    assert "wanted is 1 to 100 (--max-topk)" in too_many.error


def test_each_episode_may_have_a_retriever_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates take tens of milliseconds to load: all clients share them."""
    loads: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def counted(*arguments: Any, **more: Any) -> None:
        loads.append(arguments)
        load(*arguments, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    for _ in range(20):
        Retriever("http://127.0.0.1:8000/retrieve")
    assert len(loads) <= 1


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/retrieve", "ftp://a", "", "http://a:1/b,", "http://a,b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"not a URL such as http://127\.0\.0\.1:8000/retrieve"):
        Retriever(url)


@pytest.mark.parametrize("status", [302, 400, 404])
def test_what_a_server_refuses_that_has_answered_is_an_outage(scripted: Start, status: int) -> None:
    found = (200, {"result": [[{"contents": "T\ntext"}]]})
    server = scripted(lambda number, _: (status, b"deployed again") if number == 1 else found)
    for _ in range(2):
        (result,) = search(server.url, "rain", path="", deadline=20.0)
        assert result.documents == (Document("T\ntext"),)
    assert len(server.bodies) == 3


def test_a_server_that_refuses_is_passed_over_while_another_answers(scripted: Start) -> None:
    found = (200, {"result": [[{"contents": "T\ntext"}]]})
    refuses, answers = scripted(lambda *_: (404, b"")), scripted(lambda *_: found)
    for query in ("rain", "snow", "hail", "fog"):
        (result,) = search(f"{refuses.url},{answers.url}", query, path="", deadline=20.0)
        assert result.ok, result.error
    assert refuses.bodies
