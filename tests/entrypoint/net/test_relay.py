"""One port leads to another machine's: everything passes, or the caller learns why not."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from entrypoint.commands.head_client import ask_there
from entrypoint.config.read import read_settings
from entrypoint.net import relay
from entrypoint.net.http import tls
from entrypoint.net.sockets import listen
from entrypoint.run.tls.files import prepare
from tests.support.control import TOKEN, Head, answers
from tests.support.waiting import eventually

OLD, NEW = "127.0.0.6", "127.0.0.5"


@contextmanager
def moved(head: Head) -> Iterator[None]:
    """The old address leads to the head at the new one."""
    with head.control:
        eventually(lambda: answers(head.port, NEW))
        with relay.relaying(listen(head.port, OLD), NEW, head.port):
            yield


def test_the_page_a_browsers_key_and_open_streams_pass(tmp_path: Path) -> None:
    head = Head(tmp_path, address=NEW)
    with moved(head), httpx.Client(verify=tls(), trust_env=False) as browser:
        link = head.link(controls=True).replace("127.0.0.1", OLD).replace("#", "?")
        assert "refresh" in browser.get(link).text
        base = f"http://{OLD}:{head.port}"
        assert "<script>" in browser.get(f"{base}/").text  # by the cookie of the old address
        own = {"sec-fetch-site": "same-origin", "origin": base}
        assert browser.post(f"{base}/v1/stop", headers=own).status_code == 202
        assert head.heard.stops == ["asked over HTTP"]
        head.run.journal.write_text("")
        with browser.stream("GET", f"{base}/v1/events") as events:
            assert events.headers["content-type"].startswith("text/event-stream")


@pytest.fixture
def home() -> Iterator[Path]:
    """A node's own directory, whose path is short."""
    with tempfile.TemporaryDirectory(prefix="rc-") as root:
        yield Path(root) / "node"


def test_a_command_proves_the_head_behind_it_before_it_sends_the_token(
    tmp_path: Path, home: Path
) -> None:
    node = {
        "ROLLCALL_TLS": "auto",
        "ROLLCALL_RAY_TEMP_DIR": str(home),
        "ROLLCALL_TOKEN": TOKEN,
    }
    served = prepare(read_settings(node), TOKEN, NEW)
    head = Head(tmp_path / "run", address=NEW, tls=served)
    with moved(head):
        url = f"https://{OLD}:{head.port}"
        settings = read_settings({**node, "ROLLCALL_URL": url})
        state, where = ask_there(settings, "GET", "/v1/state")
        assert (state["head"], where) == ("head", url)


def test_who_comes_while_the_head_does_not_answer_is_told_so(tmp_path: Path) -> None:
    head = Head(tmp_path, address=NEW)  # it listens, and its server does not run
    head.control._serving._socket.close()
    with relay.relaying(listen(head.port, OLD), NEW, head.port):
        answer = httpx.get(f"http://{OLD}:{head.port}/v1/state", trust_env=False)
    assert answer.status_code == 502
    assert answer.json()["error"].startswith(f"the head, now at {NEW}:{head.port}, does not answer")


def test_what_is_more_than_the_relay_holds_is_closed_and_the_rest_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_CONNECTIONS", 2)
    head = Head(tmp_path, address=NEW)
    with moved(head):
        held = [socket.create_connection((OLD, head.port), timeout=5) for _ in range(2)]
        eventually(lambda: _is_closed_at_once(head.port))
        for one in held:
            one.close()
        eventually(lambda: answers(head.port, OLD))


def _is_closed_at_once(port: int) -> bool:
    with socket.create_connection((OLD, port), timeout=5) as one:
        one.settimeout(0.5)
        try:
            return one.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def test_the_end_of_the_relay_ends_its_connections_and_frees_the_port(tmp_path: Path) -> None:
    head = Head(tmp_path, address=NEW)
    with head.control:
        eventually(lambda: answers(head.port, NEW))
        before = threading.active_count()
        with relay.relaying(listen(head.port, OLD), NEW, head.port):
            open_one = socket.create_connection((OLD, head.port), timeout=5)
            open_one.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert open_one.recv(12) == b"HTTP/1.1 200"
        with open_one:
            while open_one.recv(4096):
                pass
        listen(head.port, OLD).close()
        eventually(lambda: threading.active_count() <= before)
