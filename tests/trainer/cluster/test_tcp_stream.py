"""The server of weights and snapshots under connections that do not show its secret."""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from trainer.cluster import tcp_stream
from trainer.cluster.tcp_stream import RANGE, Reader, Server, StreamSource
from trainer.types import TrainingError

CONTENT = b"weights!" * 512


@pytest.fixture
def source() -> StreamSource:
    buffer = mmap.mmap(-1, len(CONTENT))
    buffer[:] = CONTENT
    return Server(buffer, port=0).source


def connected(source: StreamSource) -> socket.socket:
    return socket.create_connection((source.host, source.port), timeout=10)


def read(source: StreamSource) -> bytes:
    content = bytearray(len(CONTENT))
    Reader().read(source, 0, memoryview(content))
    return bytes(content)


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_silent_connections_cost_no_threads_and_keep_no_reader_out(source: StreamSource) -> None:
    before = threading.active_count()
    silent = [connected(source) for _ in range(300)]
    assert read(source) == CONTENT
    eventually(lambda: threading.active_count() <= before)
    assert silent[0].recv(1) == b""  # the oldest made room
    assert read(source) == CONTENT
    for connection in silent:
        connection.close()


def test_a_connection_that_does_not_show_the_secret_in_time_is_closed(
    source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_stream, "SECRET_SECONDS", 0.3)
    with connected(source) as silent, connected(source) as slow:
        slow.sendall(source.secret[:-1])
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""


def test_a_wrong_secret_ends_the_connection_and_reads_nothing(source: StreamSource) -> None:
    with connected(source) as connection:
        connection.sendall(bytes(len(source.secret)))
        assert connection.recv(1) == b""
    with pytest.raises(TrainingError):
        read(StreamSource(source.host, source.port, bytes(len(source.secret))))


def test_a_secret_that_comes_in_parts_with_the_first_request_behind_it_is_served(
    source: StreamSource,
) -> None:
    with connected(source) as connection:
        connection.sendall(source.secret[:5])
        time.sleep(0.1)
        connection.sendall(source.secret[5:] + RANGE.pack(8, 16))
        assert connection.recv(16, socket.MSG_WAITALL) == CONTENT[8:24]


AT_THE_LIMIT = """
import mmap, os, resource, socket, sys, time
from trainer.cluster.tcp_stream import RANGE, Reader, Server

def descriptors():
    return len(os.listdir("/proc/self/fd"))

buffer = mmap.mmap(-1, 16)
buffer[:] = b"weights!" * 2
source = Server(buffer, port=0).source
before = descriptors()
reader = socket.create_connection((source.host, source.port), timeout=10)
while descriptors() < before + 2:
    time.sleep(0.02)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
reader.sendall(source.secret + RANGE.pack(0, 16))
first = reader.recv(16, socket.MSG_WAITALL)
for descriptor in taken:
    os.close(descriptor)
second = bytearray(16)
Reader().read(source, 0, memoryview(second))
sys.exit(not first == bytes(second) == buffer[:])
"""


def test_readers_are_served_by_a_process_without_a_free_descriptor() -> None:
    command = [sys.executable, "-c", AT_THE_LIMIT]
    ended = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_reader_that_gets_no_thread_is_turned_away_and_the_next_is_served(
    source: StreamSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(TrainingError, match="cannot be read from the policy's node"):
            read(source)
    assert read(source) == CONTENT


def test_a_server_that_is_closed_serves_its_readers_and_takes_no_new_ones() -> None:
    buffer = mmap.mmap(-1, len(CONTENT))
    buffer[:] = CONTENT
    server = Server(buffer, port=0)
    reader, target = Reader(), bytearray(8)
    reader.read(server.source, 0, memoryview(target))
    server.close()
    eventually(lambda: refused(server.source))
    reader.read(server.source, 8, memoryview(target))
    assert target == CONTENT[8:16]


def refused(source: StreamSource) -> bool:
    try:
        connected(source).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the listener closed in the middle of the handshake
    return False
