"""Servers that refuse and redirect: a wrong address ends the run, a deployment is waited out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env.http.client import RemoteReward, RewardRejected, RewardUnreachable
from env.http.known_servers import KNOWN
from env.types import RewardRequest

Start = Callable[..., Any]
LOGIN = "https://login.example.com/?next=secret"


def right(_: int, body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"rewards": [float(label) for label in body["labels"]]}


def deployed_again(status: int, first: int = 1, times: int = 2) -> Callable[..., tuple[int, Any]]:
    """The right rewards, but for some answers of what is before the server."""
    return lambda number, body: (
        (status, b"<html>") if first <= number < first + times else right(number, body)
    )


def scores(reward: RemoteReward, requests: list[RewardRequest]) -> list[float | None]:
    return [score.reward for score in reward(requests)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 410, 421])
def test_what_a_server_refuses_that_has_scored_is_waited_out(
    scripted: Start, requests: list[RewardRequest], status: int
) -> None:
    server, told = scripted(deployed_again(status), Location=LOGIN), list[str]()
    reward = RemoteReward(
        [server.url], deadline=20, chunk_size=9, tell=lambda said, *, waits: told.append(said)
    )
    for _ in range(2):
        assert scores(reward, requests) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(server.bodies) == 4
    assert f"HTTP {status}" in told[0]
    assert "secret" not in told[0]


def test_it_is_known_to_the_next_attempt_from_the_runs_file(
    scripted: Start, requests: list[RewardRequest], tmp_path: Path
) -> None:
    file = tmp_path / ".servers.json"
    server = scripted(deployed_again(404))
    url = server.url.replace("://", "://user:hunter2@") + "?key=abc123"
    KNOWN.keep_in(file)
    assert scores(RemoteReward([url], chunk_size=9), requests)[4] == 4.0
    assert "hunter2" not in file.read_text()
    assert "abc123" not in file.read_text()
    KNOWN.clear()
    KNOWN.keep_in(file)
    assert scores(RemoteReward([url], deadline=20, chunk_size=9), requests)[4] == 4.0
    KNOWN.keep_in(tmp_path / "other.json")
    refused = scripted(deployed_again(404, first=0))
    with pytest.raises(RewardRejected, match="HTTP 404"):
        RemoteReward([refused.url], chunk_size=9)(requests)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a"', b"[" * 100_000, b"\xff"])
def test_a_damaged_file_counts_as_absent(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / ".servers.json"
    file.write_bytes(content)
    KNOWN.keep_in(file)
    assert not KNOWN.has("http://head:5000")
    KNOWN.add("http://head:5000")
    assert list(json.loads(file.read_bytes()).values()) == ["http://head:5000"]


def test_a_file_that_takes_no_write_costs_a_warning_alone(tmp_path: Path) -> None:
    KNOWN.keep_in(tmp_path / "gone" / ".servers.json")
    KNOWN.add("http://head:5000")
    assert KNOWN.has("http://head:5000")


def test_an_outage_of_a_server_that_has_scored_ends_with_the_deadline(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    server = scripted(deployed_again(401, times=99))
    reward = RemoteReward([server.url], deadline=0.7, chunk_size=9)
    reward(requests)
    with pytest.raises(RewardUnreachable, match="HTTP 401"):
        reward(requests)


@pytest.mark.parametrize("fault", [302, 401, 404, 500])
def test_a_server_that_refuses_is_passed_over_while_another_answers(
    scripted: Start, requests: list[RewardRequest], fault: int
) -> None:
    refuses, alive = scripted(lambda *_: (fault, b"")), scripted(right)
    reward = RemoteReward([refuses.url, alive.url], deadline=20, chunk_size=1)
    for _ in range(2):
        assert scores(reward, requests) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(refuses.bodies) <= 3, "of the first batch alone: a failing one rests"


def test_servers_that_all_refuse_and_never_scored_are_a_wrong_flag(
    scripted: Start, requests: list[RewardRequest]
) -> None:
    servers = [scripted(lambda *_: (404, b"none")) for _ in range(2)]
    with pytest.raises(RewardRejected, match="HTTP 404"):
        RemoteReward([server.url for server in servers], deadline=20)(requests)


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirection_to_the_same_host_takes_the_request_along(
    scripted: Start, requests: list[RewardRequest], status: int
) -> None:
    behind = scripted(right)
    before = scripted(lambda *_: (status, b""), Location=behind.url)
    reward = RemoteReward([before.url.replace("://", "://user:key@")], chunk_size=9)
    assert scores(reward, requests) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert behind.bodies == before.bodies
    relative = scripted(
        lambda number, body: (status, b"") if number == 0 else right(number, body),
        Location="/elsewhere",
    )
    assert scores(RemoteReward([relative.url], chunk_size=9), requests)[4] == 4.0


@pytest.mark.parametrize(
    ("status", "location"),
    [
        *((status, "http://127.0.0.1:{}/get_reward") for status in (301, 302, 303)),
        (307, "http://localhost:{}/get_reward"),
        (307, "ftp://127.0.0.1:{}/"),
    ],
)
def test_no_redirection_loses_the_request_or_leads_to_another_host_or_protocol(
    scripted: Start, requests: list[RewardRequest], status: int, location: str
) -> None:
    behind = scripted(right)
    there = location.format(behind.port)
    before = scripted(lambda *_: (status, b""), Location=there)
    with pytest.raises(RewardRejected, match=f"HTTP {status} .* to {there}"):
        RemoteReward([before.url])(requests)
    assert behind.bodies == []


def test_a_circle_of_redirections_ends(scripted: Start, requests: list[RewardRequest]) -> None:
    server = scripted(lambda *_: (308, b""), Location="/get_reward")
    with pytest.raises(RewardRejected, match="HTTP 308"):
        RemoteReward([server.url], chunk_size=9)(requests)
    assert len(server.bodies) == 5
