"""The copy of the driver's output through Ray's dashboard, against a small stand-in for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from contract.files.log_copy import Copy, lines_of
from entrypoint.job import distant_log
from tests.support import http_serving
from tests.support.waiting import eventually


class Handler(http_serving.Handler):
    """Streams the output, and goes on until the client hangs up."""

    protocol_version = "HTTP/1.1"
    output: ClassVar[list[bytes]] = []
    breaks_after: ClassVar[list[int]] = []
    """After so many chunks the connection breaks, each once."""
    asked: ClassVar[list[str]] = []
    tokens: ClassVar[set[str | None]] = set()
    over: threading.Event

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.tokens.add(self.headers["Authorization"])
        stream = "/logs/stream?" in self.path
        if not self.output:  # as Ray before the driver has started
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        last = self.breaks_after.pop() if stream and self.breaks_after else None
        sent = 0
        try:
            while stream or sent < len(self.output):
                while sent < len(self.output):
                    data = self.output[sent]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    sent += 1
                    if sent == last:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                time.sleep(0.01)
                if stream and self.over.is_set():
                    return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            return


@pytest.fixture
def dashboard() -> Iterator[str]:
    Handler.output, Handler.breaks_after, Handler.asked = [], [], []
    Handler.over = threading.Event()
    with http_serving.serving(Handler) as url:
        yield url
        Handler.over.set()


def begin(dashboard: str, path: Path) -> tuple[list[str], threading.Event, threading.Thread]:
    lines: list[str] = []
    over = threading.Event()
    copy = Copy(path, lambda text: lines.extend(lines_of(text)), frozenset({"the-secret"}))
    logs = distant_log.LogsApi(dashboard, "a-token")
    thread = threading.Thread(target=distant_log.follow, args=(logs, "one", copy, over))
    thread.start()
    return lines, over, thread


def test_lines_come_while_the_job_runs_and_the_rest_at_its_end(
    dashboard: str, tmp_path: Path
) -> None:
    lines, over, thread = begin(dashboard, tmp_path / "log")
    time.sleep(0.3)  # Ray has no output yet
    Handler.output += [b"first\nsec", b"ond\n"]
    eventually(lambda: lines == ["first", "second"])
    Handler.output.append(b"the-secret\nno newline")
    eventually(lambda: len(lines) == 3)
    over.set()
    thread.join(5)
    assert not thread.is_alive(), "a stream that says nothing more does not hold the end up"
    assert lines == ["first", "second", "********", "no newline"]
    assert (tmp_path / "log").read_text() == "first\nsecond\n********\nno newline"
    assert Handler.tokens == {"Bearer a-token"}
    assert "submission_id=one" in Handler.asked[0]


def test_nothing_is_copied_twice_after_a_broken_connection(dashboard: str, tmp_path: Path) -> None:
    Handler.output += [b"a\n", b"b\n", b"c\n", b"d\n"]
    Handler.breaks_after += [3, 1]
    lines, over, thread = begin(dashboard, tmp_path / "log")
    eventually(lambda: lines == ["a", "b", "c", "d"])
    over.set()
    thread.join(5)
    assert lines == ["a", "b", "c", "d"]
    assert len([path for path in Handler.asked if "stream" in path]) >= 3


def test_a_dashboard_that_is_gone_ends_nothing_but_the_copy(tmp_path: Path) -> None:
    lines, over, thread = begin("http://127.0.0.1:9", tmp_path / "log")
    time.sleep(0.3)
    over.set()
    thread.join(5)
    assert not thread.is_alive()
    assert lines == []
