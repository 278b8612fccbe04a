"""Reward and retrieval servers that others reach ask for a key, which the clients send."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from env.http.client import RemoteReward, RewardRejected
from env.http.service_key import INSECURE, VARIABLE
from env.server import main
from env.types import RewardRequest
from tests.support.scripted_server import ScriptedServer

KEY = "the-key-of-all-services"
SUM = {"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]}
REQUEST = RewardRequest("1+1=2", "1+1=", "2")


@contextmanager
def started(*flags: str, key: str = "", insecure: str = "") -> Iterator[tuple[str, int]]:
    """The address that a real server listens on, and its port."""
    command = [sys.executable, "-m", "env.server", "--task", "arithmetic", "--port", "0", *flags]
    environment = {**os.environ, VARIABLE: key, INSECURE: insecure}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(1 + (insecure == "1"))]
        assert (insecure == "1") == any("everyone who reaches" in line for line in lines)
        found = re.search(r"on (\S+) port (\d+)", "".join(lines))
        assert found, lines
        yield found[1], int(found[2])
    finally:
        process.kill()
        process.communicate()


def status(port: int, user: str = "", **headers: str) -> int:
    url = f"http://{user}127.0.0.1:{port}/get_reward"
    return httpx.post(url, json=SUM, headers=headers, trust_env=False).status_code


def test_without_a_key_a_server_is_for_its_own_machine() -> None:
    with started() as (host, port):
        assert host == "127.0.0.1"
        assert status(port) == 200


def test_with_a_key_it_listens_to_all_and_asks_for_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with started(key=KEY) as (host, port):
        assert host == "0.0.0.0"
        assert status(port) == 401
        assert status(port, Authorization=f"Bearer {KEY[:-1]}") == 401
        assert status(port, Authorization="Basic !") == 401
        assert status(port, Authorization=f"Bearer {KEY}") == 200
        assert status(port, user=f":{KEY}@") == 200  # as OpenRLHF's client can be told
        health = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        assert health.json() == {"status": "ready"}
        ask = RemoteReward([f"http://127.0.0.1:{port}/get_reward"])
        with pytest.raises(RewardRejected, match="this server asks for its key"):
            ask([REQUEST])
        monkeypatch.setenv(VARIABLE, KEY)
        assert [score.reward for score in ask([REQUEST])] == [1.0]


def test_by_name_it_is_open_and_on_loopback_it_asks_for_nothing() -> None:
    with started(key=KEY, insecure="1") as (host, port):
        assert host == "0.0.0.0"
        assert status(port) == 200
    with started("--host", "127.0.0.1", key=KEY) as (_, port):
        assert status(port) == 200
    with started(key=KEY, insecure="0") as (_, port):
        assert status(port) == 401


@pytest.mark.parametrize(
    ("flags", "insecure", "says"),
    [((), "perhaps", f"{INSECURE}=perhaps is neither yes nor no"), (("--open",), "", "--open")],
)
def test_nothing_but_the_variable_opens_a_server(
    flags: tuple[str, ...], insecure: str, says: str
) -> None:
    command = [sys.executable, "-m", "env.server", "--task", "arithmetic", "--port", "0", *flags]
    environment = {**os.environ, INSECURE: insecure}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, says in ended.stderr) == (os.EX_USAGE, True), ended.stderr


@pytest.mark.parametrize(
    ("key", "says"),
    [("", f"Set {VARIABLE} for the server and its clients"), ("short", "16 or more")],
)
def test_others_are_let_in_neither_without_a_key_nor_with_a_weak_one(
    key: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, key)
    assert main(["--task", "arithmetic", "--host", "0.0.0.0", "--port", "0"]) == os.EX_USAGE
    assert says in capsys.readouterr().err


def test_a_users_own_name_and_password_are_sent_in_place_of_the_key(
    scripted: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    server = scripted(lambda *_: (200, {"rewards": [0.5]}))
    RemoteReward([server.url])([REQUEST])
    RemoteReward([server.url.replace("://", "://user:own@")])([REQUEST])
    assert server.keys == [f"Bearer {KEY}", f"Basic {b64encode(b'user:own').decode()}"]
