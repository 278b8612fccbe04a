"""`Client` and `AsyncClient`: what they take, and what they raise."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rollcall import AsyncClient, AwayError, Client, ConfigError, NoAnswerError, RefusedError
from rollcall import client as client_module
from tests.support.job_head import JobHead, fails, finishes, until_stopped


def test_a_client_takes_host_and_port_and_is_a_context_manager(tmp_path: Path) -> None:
    with JobHead(tmp_path, false=fails) as head:
        address = head.environment["ROLLCALL_URL"].removeprefix("http://")
        token = head.environment["ROLLCALL_TOKEN"]
        with Client(address, token) as client:
            assert client.runs() == []

        async def asked() -> list[object]:
            async with AsyncClient(address, token) as client:
                return [*await client.runs()]

        assert asyncio.run(asked()) == []


def test_a_head_that_refuses_a_job_has_answered(tmp_path: Path) -> None:
    with JobHead(tmp_path, false=fails) as head:
        client = Client(head.environment["ROLLCALL_URL"], head.environment["ROLLCALL_TOKEN"])
        with pytest.raises(RefusedError, match=r"nosuch\.py"):
            client.submit("python nosuch.py")
        with pytest.raises(NoAnswerError, match="set token to the run's token") as caught:
            Client(head.environment["ROLLCALL_URL"], "x" * 40).runs()
        assert not isinstance(caught.value, RefusedError)
        assert "ROLLCALL_TOKEN" not in str(caught.value)
        with pytest.raises(NoAnswerError, match="no token: give token, or set ROLLCALL_TOKEN to"):
            Client(head.environment["ROLLCALL_URL"]).runs()


@pytest.mark.parametrize(
    ("host", "reason", "remedy"),
    [
        ("127.0.0.1:9", "nothing listens there: ", "the address of another node (url)"),
        (
            "nohost.invalid:9",
            "no machine of this name is known here: ",
            "Correct the address (url)",
        ),
    ],
)
def test_why_no_head_answers_is_said_with_its_remedy_once(
    host: str,
    reason: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLCALL_HEAD_TIMEOUT", "1s")
    with pytest.raises(AwayError, match=f"http://{host}: {reason}") as caught:
        Client(f"http://{host}", "t" * 40).status()
    assert str(caught.value).count(remedy) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"no head answers: http://{host}: {reason}")
    assert said.endswith("; asking again\n")
    assert remedy not in said


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ("python 'a", "cannot be read as a shell reads it"),
        (["python", 3], "has a word that is no text"),
        (7, "is no command"),
    ],
)
def test_a_command_that_is_none_is_refused_before_a_head_is_asked(
    command: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Client("http://127.0.0.1:9", "x" * 40).submit(command)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"working_dir": "/no/such"}, "working_dir"),
        ({"runtime_env": {"working_dir": "/no/such"}}, "working_dir"),
        ({"runtime_env": "env.yaml"}, "runtime_env"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_what_is_no_environment_is_refused_before_a_head_is_asked(
    given: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Client("http://127.0.0.1:9", "x" * 40).submit("true", **given)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_a_job_is_named_by_what_submit_returns_its_id_or_its_name(tmp_path: Path) -> None:
    with JobHead(tmp_path, true=finishes) as head:
        address = head.environment["ROLLCALL_URL"], head.environment["ROLLCALL_TOKEN"]
        client = Client(*address)
        job = client.submit("true", name="first try")

        async def waited() -> object:
            return await AsyncClient(*address).wait(job, timeout=60)

        for named in (job, job.id, "first try"):
            done = client.wait(named, timeout=60)
            assert (done.id, done.exit_code) == (job.id, 0)
            assert [*client.logs(named)] == [*client.logs(job.id)]
            assert [event.kind for event in client.events(named)]
        assert asyncio.run(waited()) == client.status(job)
        wrong: Any
        for wrong in ("", 1):
            with pytest.raises(ConfigError, match="job: is no job"):
                client.status(wrong)
        with pytest.raises(RefusedError, match="job-9"):
            client.wait("job-9")
        with pytest.raises(ConfigError, match="timeout: is no number"):
            client.wait(job, timeout="2h")  # type: ignore[call-overload]


def test_a_name_that_another_job_has_is_the_newest_ones_and_submit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with JobHead(tmp_path, true=finishes) as head:
        client = Client(head.environment["ROLLCALL_URL"], head.environment["ROLLCALL_TOKEN"])
        first = client.submit("true", name="first")
        assert "has the name" not in capsys.readouterr().err
        second = client.submit("true", name="first")
        said = capsys.readouterr().err
        assert f"note: {first.id} has the name first, too: the name means the newest job" in said
        assert client.status("first").id == second.id


def test_a_wait_that_takes_too_long_says_for_what(tmp_path: Path) -> None:
    with JobHead(tmp_path, sleep=until_stopped) as head:
        address = head.environment["ROLLCALL_URL"], head.environment["ROLLCALL_TOKEN"]
        client = Client(*address)
        job = client.submit("sleep 9")
        said = rf"{job.id} has not ended within 0.1 s: it is (queued|running)"
        with pytest.raises(TimeoutError, match=said):
            client.wait(job, timeout=0.1)
        with pytest.raises(TimeoutError, match=said):
            asyncio.run(AsyncClient(*address).wait(job, timeout=0.1))
        client.stop(job)


def test_a_wait_ends_at_its_limit_while_no_head_answers() -> None:
    """ROLLCALL_HEAD_TIMEOUT is ten minutes then."""
    address = "http://127.0.0.1:9", "t" * 40
    said = r"job-1 has not ended within 1 s: .*not there after.*; timeout sets this limit"
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=said):
        Client(*address).wait("job-1", timeout=1)
    with pytest.raises(TimeoutError, match=said):
        asyncio.run(AsyncClient(*address).wait("job-1", timeout=1))
    assert time.monotonic() - began < 30


def test_a_head_that_has_ended_as_asked_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STOPPED_SECONDS", 0.1)
    with JobHead(tmp_path, true=finishes) as head:
        client = Client(head.environment["ROLLCALL_URL"], head.environment["ROLLCALL_TOKEN"])
        client.stop()
    with pytest.raises(AwayError, match=r"the head has ended, as stop\(\) has asked it to"):
        client.wait(timeout=60)


def test_what_is_no_text_is_no_address_and_no_token() -> None:
    wrong: Any
    for wrong in (8367, Path("head:8267")):
        with pytest.raises(ConfigError, match="url: is not an address of a head"):
            Client(wrong)
    for wrong in (5, Path("token")):
        with pytest.raises(ConfigError, match=r"token: is of type .* Give the token itself"):
            Client("http://127.0.0.1:9", wrong)


def test_a_fault_of_an_argument_names_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("127.0.0.1", "ftp://head:8267", ""):
        with pytest.raises(ConfigError) as caught:
            Client(url)
        assert [fault.path for fault in caught.value.faults] == ["url"]
    with pytest.raises(ConfigError) as caught:
        Client("head:8267", "short\n")
    assert [fault.path for fault in caught.value.faults] == ["token"]
    monkeypatch.setenv("ROLLCALL_URL", "head")
    with pytest.raises(ConfigError) as caught:
        Client()
    assert [fault.path for fault in caught.value.faults] == ["ROLLCALL_URL"]
