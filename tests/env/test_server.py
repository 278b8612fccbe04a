"""The reward server: batches, refuses with reasons, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from env.http.batching import Limits
from env.http.client import RemoteReward
from env.http.serving import listen
from env.rewards import arithmetic
from env.server import create_app, main
from env.types import RewardRequest, Score
from tests.support.scripted_server import ScriptedServer

Serve = Callable[[Starlette], str]
SUM = {"query": ["1+1=2"], "prompts": ["1+1="], "labels": ["2"]}


class Recorder:
    """A slow reward function that remembers the size of each batch."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[int] = []
        self.seconds = seconds

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        self.batches.append(len(requests))
        time.sleep(self.seconds)
        return arithmetic.exact(requests)


def numbered(count: int) -> list[RewardRequest]:
    """Sums of which every other one is right."""
    return [RewardRequest(f"{n}+0={n + n % 2}", f"{n}+0=", str(n)) for n in range(count)]


def test_health_answers_when_rewards_can_be_had(serve: Serve) -> None:
    url = serve(create_app("arithmetic", arithmetic.exact, Limits()))
    health = httpx.get(f"{url}/health")
    assert health.status_code == 200
    assert health.json() == {"status": "ready", "task": "arithmetic", "waiting": 0, "scored": 0}


def test_client_and_server_agree(serve: Serve) -> None:
    url = serve(create_app("arithmetic", arithmetic.exact, Limits(max_batch=7)))
    requests = [*numbered(100), RewardRequest("1+1=2", "1+1=", None)]
    scores = RemoteReward([f"{url}/get_reward"])(requests)
    assert [score.reward for score in scores[:100]] == [1.0 - n % 2 for n in range(100)]
    assert scores[0].metrics == {"acc": 1.0, "format": 1.0}
    assert not scores[100].ok
    assert httpx.get(f"{url}/health").json()["scored"] == 101


def test_small_requests_that_come_together_are_scored_together(serve: Serve) -> None:
    reward = Recorder(seconds=0.05)
    url = serve(create_app("t", reward, Limits(max_batch=8, max_wait=0.5)))
    client = RemoteReward([f"{url}/get_reward"], chunk_size=1, concurrency=16)
    assert [score.reward for score in client(numbered(32))] == [1.0, 0.0] * 16
    assert sum(reward.batches) == 32
    assert max(reward.batches) <= 8
    assert len(reward.batches) <= 10, "32 requests of one, in batches of up to 8"


def test_an_unfilled_batch_waits_for_company_and_not_for_ever(serve: Serve) -> None:
    reward = Recorder()
    url = serve(create_app("t", reward, Limits(max_batch=4, max_wait=2.0)))

    def ask(number: int) -> httpx.Response:
        time.sleep(0.02 * number)
        return httpx.post(f"{url}/get_reward", json=SUM)

    with ThreadPoolExecutor(5) as pool:
        assert all(answer.status_code == 200 for answer in pool.map(ask, range(5)))
    assert reward.batches == [4, 1]


def test_a_large_request_is_cut_to_the_batch_size(serve: Serve) -> None:
    reward = Recorder()
    url = serve(create_app("t", reward, Limits(max_batch=8)))
    assert len(RemoteReward([f"{url}/get_reward"], chunk_size=20)(numbered(20))) == 20
    assert reward.batches == [8, 8, 4]


def test_a_full_queue_turns_away_and_the_client_comes_again(serve: Serve) -> None:
    url = serve(create_app("t", Recorder(seconds=0.1), Limits(max_batch=1, max_queue=4)))
    body = {"query": ["1+1=2"] * 2, "prompts": ["1+1="] * 2, "labels": ["2"] * 2}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{url}/get_reward", json=body), range(8)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert "waiting already" in refused.json()["error"]
    client = RemoteReward([f"{url}/get_reward"], chunk_size=2, deadline=20)
    assert [score.reward for score in client(numbered(8))] == [1.0, 0.0] * 4


def test_a_reward_function_that_raises_fails_the_completion_not_the_server(serve: Serve) -> None:
    def broken(requests: Sequence[RewardRequest]) -> list[Score]:
        if len(requests) == 2:
            return [Score.of(1.0)]
        raise RuntimeError("no judge")

    url = serve(create_app("t", broken, Limits()))
    (score,) = RemoteReward([f"{url}/get_reward"])(numbered(1))
    assert "raised RuntimeError: no judge" in score.error
    first, second = RemoteReward([f"{url}/get_reward"])(numbered(2))
    assert not first.ok
    assert "1 scores for 2" in second.error
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_malformed_body_gets_400_with_the_field_and_a_large_one_413(serve: Serve) -> None:
    url = serve(create_app("t", arithmetic.exact, Limits(max_queue=3), max_body=1000))
    post = f"{url}/get_reward"
    missing = httpx.post(post, json={"query": ["a"]})
    assert (missing.status_code, missing.json()) == (400, {"error": "'prompts' is missing"})
    large = httpx.post(post, content=b"x" * 1001)
    assert large.status_code == 413
    assert "above 1000 bytes" in large.json()["error"]
    many = httpx.post(post, json={"query": ["a"] * 4, "prompts": ["a"] * 4})
    assert (many.status_code, many.json()["error"]) == (413, "4 completions; at most 3")
    assert httpx.get(post).status_code == 405
    assert httpx.post(post, json=SUM).json()["rewards"] == [1.0]


@pytest.mark.parametrize(("host", "families"), [("127.0.0.1", "4"), ("::1", "6"), ("::", "46")])
def test_both_address_families_are_served(host: str, families: str) -> None:
    try:
        listening = listen(host, 0)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with listening:
        served = [family for family in ("4", "6") if reaches(ADDRESSES[family], listening)]
    assert served == list(families)


ADDRESSES = {"4": "127.0.0.1", "6": "::1"}


def reaches(address: str, listening: socket.socket) -> bool:
    """Whether a caller of the address is heard here; at that port another program may listen."""
    listening.settimeout(10)
    try:
        with socket.create_connection((address, listening.getsockname()[1]), timeout=10) as caller:
            heard, peer = listening.accept()
            heard.close()
            return bool(peer[1] == caller.getsockname()[1])
    except OSError:
        return False


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The real program on a free port, and its address."""
    command = [sys.executable, "-m", "env.server", "--host", "127.0.0.1", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = re.search(r"port (\d+)", line)
        assert port, line
        assert "hunter2" not in line
        yield process, f"http://127.0.0.1:{port[1]}"
    finally:
        process.kill()
        process.communicate()


def test_no_line_has_the_password_of_the_server_behind(
    scripted: Callable[..., ScriptedServer],
) -> None:
    behind = scripted(lambda *_: (200, {"rewards": [0.5]}))
    spec = behind.url.replace("://", "://user:hunter2@")
    with started("--task", spec) as (process, url):
        assert httpx.post(f"{url}/get_reward", json=SUM).json()["rewards"] == [0.5]
        assert "hunter2" not in httpx.get(f"{url}/health").text
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert "hunter2" not in said


def test_sigterm_answers_what_is_under_way_and_ends_with_0(tmp_path: Path) -> None:
    slow, begun = tmp_path / "slow.py", tmp_path / "begun"
    slow.write_text(
        "import pathlib, time\n"
        "def reward_func(queries, prompts, labels):\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n"
        "    time.sleep(0.7)\n"
        "    return [0.5] * len(queries)\n"
    )
    with started("--task", str(slow)) as (process, url), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{url}/get_reward", json=SUM)
        deadline = time.monotonic() + 20
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert answer.result().json()["rewards"] == [0.5]


def test_a_server_that_is_killed_and_started_again_is_only_a_wait(free_port: int) -> None:
    program = [sys.executable, "-m", "env.server", "--task", "arithmetic"]
    program += ["--host", "127.0.0.1", "--port", str(free_port)]
    client = RemoteReward([f"http://127.0.0.1:{free_port}/get_reward"], deadline=30)
    for _ in range(2):
        process = subprocess.Popen(program, stderr=subprocess.DEVNULL)
        try:
            assert [score.reward for score in client(numbered(4))] == [1.0, 0.0] * 2
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "arithmetc"], "Did you mean 'arithmetic'?"),
        (["--task", "arithmetic", "--port", "70000"], "'70000' is not a port"),
        (["--task", "arithmetic", "--max-batch", "0"], "whole number from 1"),
        *(
            (["--task", "none", "--max-wait-ms", wrong], f"'{wrong}' is not a number from 0")
            for wrong in ("nan", "inf", "-1", "few")
        ),
        (["--task", "arithmetic", "--hots", "x"], "--hots: did you mean --host?"),
        ([], "--task"),
    ],
)
def test_wrong_usage_is_one_line_and_64(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    message = capsys.readouterr().err
    assert (code, message.count("\n")) == (os.EX_USAGE, 1)
    assert says in message


def test_a_taken_port_is_one_line_and_69() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "env.server", "--task", "arithmetic", "--port", port]
        done = subprocess.run([*command, "--host", "127.0.0.1"], capture_output=True, text=True)
    assert done.returncode == os.EX_UNAVAILABLE
    assert done.stderr == (
        f"reward server: cannot listen on 127.0.0.1 port {port}: "
        "another program has it; choose another --port\n"
    )
