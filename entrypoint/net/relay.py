"""Passes the connections of one port on to another machine, byte by byte.

So TLS, keys and cookies are between the two ends alone: what passes them on reads none of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from entrypoint.net.sockets import host_port

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
"""At once; each further one is closed."""
CONNECT_SECONDS = 3.0
PIECE_BYTES = 64 * 1024
CLOSE_SECONDS = 1.0


@contextmanager
def relaying(listener: socket.socket, host: str, port: int) -> Iterator[None]:
    """Pass each connection to `listener` on to the host's port while the block runs.

    A connection that cannot be passed on is answered with 502 (RFC 9110, 15.6.3) and the reason as
    JSON. The listener is closed at the end, and so is what is still open.
    """
    relay = _Relay(listener, host, port)
    thread = threading.Thread(target=relay.run, name="relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        relay.end()
        thread.join(2 * CLOSE_SECONDS)


class _Relay:
    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self._listener, self._host, self._port = listener, host, port
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def end(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener)
        await self._over.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # the relay ends: Python would print what it takes for a lost exception
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = asyncio.open_connection(self._host, self._port)
        try:
            there, onward = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except OSError as error:  # TimeoutError, too
            await self._decline(reader, writer, error.strerror or "timed out")
            return
        ways = [asyncio.create_task(_pump(*way)) for way in ((reader, onward), (there, writer))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            onward.transport.abort()

    async def _decline(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why: str
    ) -> None:
        place = host_port(self._host, self._port)
        body = json.dumps({"error": f"the head, now at {place}, does not answer ({why})"}).encode()
        head = (
            "HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with suppress(OSError, TimeoutError):
            # Else the kernel would reset the connection, whose request nobody has read.
            await asyncio.wait_for(reader.read(PIECE_BYTES), CLOSE_SECONDS)
            writer.write(head.encode() + body)
            await asyncio.wait_for(writer.drain(), CLOSE_SECONDS)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), CLOSE_SECONDS)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Write what comes to the other side, at its speed, until it ends."""
    try:
        while piece := await source.read(PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:  # one side is gone: the other shall know
        sink.transport.abort()
        raise
