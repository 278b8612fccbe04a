"""The client against servers with real faults: it waits, it never invents a reward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from env.http.client import RemoteReward, RewardRejected, RewardUnreachable
from env.types import RewardRequest

Start = Callable[..., Any]


def right(_: int, body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"rewards": [float(label) for label in body["labels"]]}


def at_first(fault: tuple[int, Any], times: int = 2) -> Callable[..., tuple[int, Any]]:
    """`fault` that many times, then the right rewards."""
    return lambda number, body: fault if number < times else right(number, body)


def check(reward: RemoteReward, requests: list[RewardRequest]) -> None:
    assert [score.reward for score in reward(requests)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_rewards_come_in_order_over_chunks_and_servers(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    def slow_at_first(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.1 if number == 0 else 0)
        return right(number, body)

    servers = [scripted(slow_at_first), scripted(right)]
    check(RemoteReward([server.url for server in servers], chunk_size=1), requests)
    assert [len(server.bodies) for server in servers] == [3, 2]
    assert servers[0].bodies[0].keys() == {"query", "prompts", "labels"}


@pytest.mark.parametrize("fault", [(500, b"down"), (404, b"no such page")])
def test_no_message_has_the_password_or_the_query_of_a_url(
    scripted: Start, requests: list[RewardRequest], fault: tuple[int, Any]
) -> None:
    server, told = scripted(lambda *_: fault), list[str]()
    url = server.url.replace("://", "://user:hunter2@") + "?token=abc123"
    reward = RemoteReward([url], deadline=0.5, tell=lambda said, *, waits: told.append(said))
    with pytest.raises(
        (RewardUnreachable, RewardRejected), match=f"{server.port}/get_rew"
    ) as caught:
        reward(requests)
    for text in (str(caught.value), *told):
        assert "hunter2" not in text
        assert "abc123" not in text
    assert "********@127.0.0.1" in str(caught.value)
    assert len(told) == (fault[0] == 500)


def test_no_requests_need_no_server() -> None:
    assert RemoteReward(["http://127.0.0.1:1/x"])([]) == []


@pytest.mark.parametrize(
    "fault",
    [
        (500, b"out of memory"),
        (503, b""),
        (429, b""),
        (200, b"<html>starting</html>"),
        (200, {"rewards": [1.0, 2.0]}),
        (200, {"rewards": [0.0, 1.0, float("nan"), 3.0, 4.0]}),
        (200, {"rewards": ["0", "1", "2", "3", "4"]}),
        (200, b"\xff\xfe"),
        (200, b"[" * 100_000),
    ],
    ids=["500", "503", "429", "garbage", "short", "nan", "text", "binary", "lists in lists"],
)
def test_a_fault_that_passes_is_waited_out(
    scripted: Start, requests: list[RewardRequest], fault: tuple[int, Any]
) -> None:
    server = scripted(at_first(fault))
    check(RemoteReward([server.url], deadline=20), requests)
    assert len(server.bodies) == 3


def test_a_server_that_asks_for_a_pause_gets_it(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    server = scripted(at_first((429, b""), times=1), Retry_After="1")
    begun = time.monotonic()
    check(RemoteReward([server.url], deadline=20), requests)
    assert time.monotonic() - begun >= 1.0


def test_a_server_that_hangs_is_asked_again(scripted: Start, requests: list[RewardRequest]) -> None:
    release = threading.Event()

    def hang_once(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        if number == 0:
            release.wait(20)
        return right(number, body)

    server = scripted(hang_once)
    begun = time.monotonic()
    check(RemoteReward([server.url], timeout=0.3, deadline=20), requests)
    release.set()
    assert time.monotonic() - begun < 5


def test_a_server_that_is_slower_than_a_try_is_given_more_time(
    scripted: Start, requests: list[RewardRequest], caplog: pytest.LogCaptureFixture
) -> None:
    def slow(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.8)
        return right(number, body)

    server = scripted(slow)
    check(RemoteReward([server.url], timeout=0.3, deadline=20), requests)
    assert "no answer within" in caplog.text  # the first try, of 0.3 s


def test_a_server_that_comes_up_late_is_waited_for(
    scripted: Start, free_port: int, requests: list[RewardRequest]
) -> None:
    later = threading.Timer(0.8, scripted, (right, free_port))
    later.start()
    check(RemoteReward([f"http://127.0.0.1:{free_port}/get_reward"], deadline=20), requests)
    later.join()


def test_a_dead_server_among_several_is_passed_over(
    scripted: Start, closed_port: int, requests: list[RewardRequest]
) -> None:
    refuses, alive = f"http://127.0.0.1:{closed_port}/", scripted(right)
    fails = scripted(lambda *_: (500, b""))
    reward = RemoteReward([refuses, fails.url, alive.url], chunk_size=1, deadline=20)
    check(reward, requests)
    asked = len(fails.bodies)
    assert asked > 0
    check(reward, requests)
    assert len(fails.bodies) == asked, "it failed a moment ago and was asked again"


def test_a_try_that_the_deadline_cuts_short_does_not_hide_what_is_wrong(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    release = threading.Event()

    def script(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        if number:
            release.wait(20)
        return 200, b"?"

    with pytest.raises(RewardUnreachable, match=r"last: .*: an unusable answer"):
        RemoteReward([scripted(script).url], timeout=20.0, deadline=1.0, chunk_size=9)(requests)
    release.set()


@pytest.mark.parametrize("fault", ["refused", "500", "hangs", "garbage"])
def test_beyond_the_deadline_the_error_says_where_what_and_how_long(
    scripted: Start, closed_port: int, requests: list[RewardRequest], fault: str
) -> None:
    release = threading.Event()

    def script(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        if fault == "hangs":
            release.wait(20)
        return (500, b"out of\nmemory") if fault == "500" else (200, b"?")

    url = scripted(script).url if fault != "refused" else f"http://127.0.0.1:{closed_port}/x"
    begun = time.monotonic()
    with pytest.raises(RewardUnreachable) as caught:
        RemoteReward([url], timeout=0.5, deadline=1.0, chunk_size=2)(requests)
    release.set()
    assert time.monotonic() - begun < 5.0
    message = str(caught.value)
    expected = {
        "refused": "ConnectError",
        "500": "HTTP 500 Internal Server Error: out of memory",
        "hangs": "no answer within",
        "garbage": "an unusable answer",
    }
    assert f"last: {url}: {expected[fault]}" in message
    assert "deadline 1 s" in message
    assert "\n" not in message


@pytest.mark.parametrize("status", [400, 404, 413, 301])
def test_a_refusal_is_final_and_in_the_servers_words(
    scripted: Start, requests: list[RewardRequest], status: int
) -> None:
    server = scripted(lambda *_: (status, {"error": "'labels' is missing"}))
    with pytest.raises(RewardRejected, match=rf"HTTP {status} .*'labels' is missing"):
        RemoteReward([server.url])(requests)
    assert len(server.bodies) == 1


def test_null_is_a_failure_with_its_reason_and_not_a_zero(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    answer = {"rewards": [1.0, None, 0.0, None, 1.0], "errors": [None, "judge down", *3 * [None]]}
    server = scripted(lambda *_: (200, answer))
    scores = RemoteReward([server.url])(requests)
    assert [score.ok for score in scores] == [True, False, True, False, True]
    assert scores[1].error == "judge down"
    assert scores[1].reward != 0.0


def test_a_wait_is_one_sentence_and_its_end_another(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    server = scripted(at_first((503, b"loading"), times=8))
    told: list[str] = []
    check(
        RemoteReward(
            [server.url], chunk_size=1, deadline=20, tell=lambda said, *, waits: told.append(said)
        ),
        requests,
    )
    waiting, over = told
    assert waiting.startswith("Waiting for a reward, ")
    assert waiting.endswith(f"20 s at most: {server.url}: HTTP 503 Service Unavailable: loading")
    assert over.startswith("Rewards come again, after ")


def test_the_proxy_of_the_environment_is_not_asked(
    scripted: Start, requests: list[RewardRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    check(RemoteReward([scripted(right).url], deadline=10), requests)
