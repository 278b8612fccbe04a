"""Streams ranges of a shared segment over TCP, for nodes that cannot map the segment.

Ray cuts an object into small chunks and copies it several times. This is one stream from memory to
memory. A reader must show a secret, which travels only in Ray's own messages.
"""

from __future__ import annotations

import asyncio
import hmac
import mmap
import os
import secrets
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from trainer.types import TrainingError

ADDRESS = "NODE_ADDRESS"
"""Environment variable of a process: the address at which other nodes reach it."""
SECRET_BYTES = 32
RANGE = struct.Struct("!QQ")
"""A request: offset and length, in bytes."""
SILENCE_SECONDS = 60.0
"""Timeout of a stream: seconds without a byte."""
SECRET_SECONDS = 10.0
"""Timeout until a new connection must have shown the secret."""
MOST_NEWCOMERS = 64
"""Most connections without the secret. With more, the oldest is closed."""
ACCEPT_PAUSE = 0.1
"""Seconds until the next try after a failed accept."""


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The address from which other nodes can read a segment."""

    host: str
    port: int
    secret: bytes


class Server:
    """Serves the current contents of a buffer of this process, until the process ends."""

    def __init__(self, buffer: mmap.mmap, port: int) -> None:
        """`port`: 0 for any free port. Raises TrainingError if the port is taken."""
        self._buffer = buffer
        self.sent = 0
        """Bytes that readers have received, about."""
        host = os.environ.get(ADDRESS, "127.0.0.1")
        self._listener = listening(host, port)
        self._listener.setblocking(False)
        used = self._listener.getsockname()[1]
        self.source = StreamSource(host, used, secrets.token_bytes(SECRET_BYTES))
        self._loop = asyncio.new_event_loop()
        Thread(target=self._run, name="weights", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. Readers that are connected are served until they leave."""
        self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    def _run(self) -> None:
        runner = asyncio.Runner(loop_factory=lambda: self._loop)
        with self._listener, suppress(asyncio.CancelledError), runner:
            runner.run(self._accept())

    async def _accept(self) -> None:
        """Accept connections. Of too many without the secret, close the oldest."""
        loop = asyncio.get_running_loop()
        newcomers: dict[asyncio.Task[None], None] = {}
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # the peer has left, or this process has no free descriptor
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            newcomer = loop.create_task(self._greet(connection))
            newcomers[newcomer] = None
            newcomer.add_done_callback(lambda ended: newcomers.pop(ended, None))
            if len(newcomers) > MOST_NEWCOMERS:
                oldest = next(iter(newcomers))
                del newcomers[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # the tasks run, also when connections never stop coming

    async def _greet(self, connection: socket.socket) -> None:
        """Give a connection that shows the secret in time a thread; close any other."""
        try:
            async with asyncio.timeout(SECRET_SECONDS):
                shown = await _shown(connection)
            if hmac.compare_digest(shown, self.source.secret):
                connection.setblocking(True)
                Thread(target=self._serve, args=(connection,), daemon=True).start()
                return
        except (OSError, RuntimeError, asyncio.CancelledError):
            pass  # the peer has left or is late, no thread can start, or newer ones need the room
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, memoryview(self._buffer) as whole:
                while request := _read(connection, RANGE.size):
                    offset, length = RANGE.unpack(request)
                    with whole[offset : offset + length] as part:
                        connection.sendall(part)
                    self.sent += length
        except OSError:
            return  # the reader has left; it reports that itself


async def _shown(connection: socket.socket) -> bytes:
    """Return as many bytes as the secret has; fewer if the other side closes the connection."""
    loop, shown = asyncio.get_running_loop(), b""
    while len(shown) < SECRET_BYTES:
        part = await loop.sock_recv(connection, SECRET_BYTES - len(shown))
        if not part:
            break
        shown += part
    return shown


class Reader:
    """Reads from one source after another, and keeps the connection to the newest source."""

    def __init__(self) -> None:
        self._source: StreamSource | None = None
        self._connection: socket.socket | None = None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = self._source = None

    def read(self, source: StreamSource, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` of the segment. Raises TrainingError if that fails."""
        try:
            connection = self._connected(source)
            connection.sendall(RANGE.pack(offset, len(target)))
            _fill(connection, target)
        except OSError as error:
            self._source = None
            raise TrainingError(
                f"weights cannot be read from the policy's node at {source.host}, port "
                f"{source.port}: {error or type(error).__name__}. Nodes must reach each other on "
                "every port above 1023, or on --vllm_sync_port"
            ) from error

    def _connected(self, source: StreamSource) -> socket.socket:
        if self._connection is None or self._source != source:
            if self._connection:
                self._connection.close()
            address = (source.host, source.port)
            self._connection = socket.create_connection(address, timeout=SILENCE_SECONDS)
            self._connection.sendall(source.secret)
            self._source = source
        return self._connection


def listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise TrainingError(
            f"--vllm_sync_port {port} cannot be had on the policy's node, {host}: "
            f"{os.strerror(error.errno or 0)}. Give one that is free there, or 0 for any"
        ) from error


def _read(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes; no bytes if the other side has closed the connection."""
    content = bytearray(size)
    with memoryview(content) as view:
        try:
            _fill(connection, view)
        except ConnectionError:
            return b""
    return bytes(content)


def _fill(connection: socket.socket, target: memoryview) -> None:
    filled = 0
    while filled < len(target):
        with target[filled:] as rest:
            count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("it has closed the connection")
        filled += count
