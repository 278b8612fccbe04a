"""The server of weights and snapshots under connections that do not show its secret."""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Callable

import pytest

from trainer import stream
from trainer.stream import RANGE, Reader, Server, Source
from trainer.types import TrainingError

CONTENT = b"weights!" * 512


@pytest.fixture
def source() -> Source:
    buffer = mmap.mmap(-1, len(CONTENT))
    buffer[:] = CONTENT
    return Server(buffer, port=0).source


def connected(source: Source) -> socket.socket:
    return socket.create_connection((source.host, source.port), timeout=10)


def read(source: Source) -> bytes:
    content = bytearray(len(CONTENT))
    Reader().read(source, 0, memoryview(content))
    return bytes(content)


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_silent_connections_cost_no_threads_and_keep_no_reader_out(source: Source) -> None:
    before = threading.active_count()
    silent = [connected(source) for _ in range(300)]
    assert read(source) == CONTENT
    eventually(lambda: threading.active_count() <= before)
    assert silent[0].recv(1) == b""  # the oldest made room
    assert read(source) == CONTENT
    for connection in silent:
        connection.close()


def test_a_connection_that_does_not_show_the_secret_in_time_is_closed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SECRET_SECONDS", 0.3)
    with connected(source) as silent, connected(source) as slow:
        slow.sendall(source.secret[:-1])
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""


def test_a_wrong_secret_ends_the_connection_and_reads_nothing(source: Source) -> None:
    with connected(source) as connection:
        connection.sendall(bytes(len(source.secret)))
        assert connection.recv(1) == b""
    with pytest.raises(TrainingError):
        read(Source(source.host, source.port, bytes(len(source.secret))))


def test_a_secret_that_comes_in_parts_with_the_first_request_behind_it_is_served(
    source: Source,
) -> None:
    with connected(source) as connection:
        connection.sendall(source.secret[:5])
        time.sleep(0.1)
        connection.sendall(source.secret[5:] + RANGE.pack(8, 16))
        assert connection.recv(16, socket.MSG_WAITALL) == CONTENT[8:24]
