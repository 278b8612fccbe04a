"""A worker's side of the head's HTTP, where no head answers."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from entrypoint import __main__ as entrypoint
from entrypoint.cluster import roll
from entrypoint.cluster.client import ControlClient, NoHeadError
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.commands import ask_head, cli, doctor
from entrypoint.commands.arguments import parse
from entrypoint.commands.head_client import NoAnswerError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.net.wait import NotYetError
from entrypoint.processes.inbox import HeadLost, Message
from tests.support.control import TOKEN, Head, node_info
from tests.support.http_serving import Handler, serving
from tests.support.waiting import eventually

Stranger = Callable[[int, str], int]
"""Starts a server that gives everyone this status and body; its port."""


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with ExitStack() as servers:

        def start(status: int, body: str) -> int:
            class Same(Handler):
                def do_GET(self) -> None:
                    self.answer(status, body.encode(), "text/plain")

                do_POST = do_GET

            return int(servers.enter_context(serving(Same)).rpartition(":")[2])

        yield start


NO_HEAD = [(404, "404 page not found"), (200, "<html>log in</html>"), (404, '{"detail": ""}')]


@pytest.mark.parametrize(("status", "body"), NO_HEAD)
@pytest.mark.parametrize("command", [ask_head.status, ask_head.stop])
def test_a_command_says_that_what_answers_is_no_head(
    stranger: Stranger,
    command: Callable[[Settings, argparse.Namespace], int],
    status: int,
    body: str,
) -> None:
    port = stranger(status, body)
    settings = read_settings(
        {
            "ROLLCALL_TOKEN": "correct-horse-battery",
            "ROLLCALL_HEAD_ADDRESS": "127.0.0.1",
            "ROLLCALL_CONTROL_PORT": str(port),
        }
    )
    with pytest.raises(NoAnswerError) as caught:
        command(settings, parse("status", []))
    assert caught.value.exit_code == 69
    said = str(caught.value)
    assert said.startswith(f"what answers at http://127.0.0.1:{port} is not a head (/v1/")
    assert f"gives {status}): is ROLLCALL_CONTROL_PORT right?" in said
    assert doctor.of_head(settings) is None


@pytest.mark.parametrize("words", [("status",), ("wait",), ("status", "--watch")])
def test_a_request_on_which_the_head_fails_ends_a_command_at_once(
    head: Head,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    asked: list[bool] = []

    def fails(*, brief: bool = False) -> None:
        asked.append(brief)
        raise LookupError("a defect of the head")

    monkeypatch.setattr(head.control, "state", fails)
    url = f"http://127.0.0.1:{head.port}"
    where = {"ROLLCALL_URL": url, "ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    assert entrypoint._ask(cli.parse(words), {**where, "ROLLCALL_HEAD_TIMEOUT": "20s"}) == 69
    log = "RUN/logs/head.log has the cause, and so has `rollcall logs head`"
    assert capsys.readouterr().err == f"the head failed on GET {url}/v1/state (status 500): {log}\n"
    assert len(asked) == 1


def test_a_server_of_another_protocol_is_no_head() -> None:
    """Ray's port speaks HTTP/2. A server that ends the connection may be a head that ends."""
    for answer, kind in ((b"\x00\x00\x12\x04", NoHeadError), (b"", NotYetError)):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:

            def serve(server: socket.socket = server, answer: bytes = answer) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            serving_it = threads.submit(serve)
            client = ControlClient("127.0.0.1", server.getsockname()[1], TOKEN)
            with pytest.raises(NotYetError) as caught:
                client.command("GET", "/v1/state")
            serving_it.result()
            client.close()
        assert type(caught.value) is kind


@pytest.mark.parametrize(("status", "body"), [*NO_HEAD, (400, "{}")])
def test_a_worker_waits_on_while_another_server_has_the_heads_port(
    stranger: Stranger, status: int, body: str
) -> None:
    client = ControlClient("127.0.0.1", stranger(status, body), "correct-horse-battery")
    with pytest.raises(wait.NotYetError, match="is not a head"):
        client.check_in(NodeInfo(node="a", address="127.0.0.2", versions={}))
    assert not client.leave("a", "its machine is taken away")


def test_what_is_no_answer_of_a_head_ends_a_membership_and_not_the_watch(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Message] = []
    client = head.client()
    monkeypatch.setattr(
        client, "ask", lambda *_, **__: httpx.Response(200, text="<html>log in</html>")
    )
    client.watch("a", "first", said.append)
    eventually(lambda: bool(said))
    assert isinstance(said[0], HeadLost)


def test_a_head_whose_name_leads_elsewhere_is_given_up_at_the_first_answer_that_fails(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Message] = []
    asked: list[str] = []
    client = head.client()

    def fails(method: str, path: str, **options: object) -> httpx.Response:
        asked.append(path)
        raise wait.NotYetError("no route to host")

    monkeypatch.setattr(client, "ask", fails)
    client.watch("a", "first", said.append, is_there=lambda: False)
    eventually(lambda: bool(said))
    assert said == [HeadLost("no route to host, and it is elsewhere now")]
    assert len(asked) == 1


def test_no_head_is_a_reason_to_try_again(closed_port: int) -> None:
    with pytest.raises(NotYetError):
        ControlClient("127.0.0.1", closed_port, TOKEN).check_in(node_info("a"))


def test_a_worker_is_told_how_long_its_questions_stay_open(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = head.client()
    client.check_in(node_info("a"))
    assert client._question_seconds == roll.QUESTION_SECONDS
    monkeypatch.setattr(roll, "QUESTIONS_PER_SECOND", 0.1)
    client.check_in(node_info("a"))
    assert client._question_seconds == 10 * head.control._registry.expected > 5


def test_a_membership_that_is_left_ends_its_watch_without_a_traceback(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "QUESTION_SECONDS", 0.5)
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    client.close()
    eventually(lambda: len(said) == 1)
    assert isinstance(said[0], HeadLost)
