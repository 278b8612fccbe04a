"""Accepts the connections of a listening socket, those of all addresses in turn.

The kernel hands connections over in the order in which they came, and lets others wait for seconds
once its queue is full. So they are taken from it at once, which costs microseconds, and wait here:
each address in a line of its own. Whoever opens thousands waits behind itself.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

WAITING_IN_KERNEL = 4096
"""The kernel has others try again after a second or more. Linux allows so many by default."""
ACCEPTED_AT_ONCE = 256
"""Between two turns of the event loop."""
SERVED_AT_ONCE = 16
"""A request costs about 0.5 ms: the event loop is at the others again after 8 ms."""
WAITING_OF_ADDRESS = 512
"""Connections of an address that are not served yet; more are closed at once."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_SECONDS = 0.05


class Listener:
    """Use in the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        owner_of: Callable[[str], str],
        exhausted: Callable[[OSError], None],
    ) -> None:
        """`owner_of`: of the addresses that count as one. `exhausted`: called with the error if
        the process can open no more connections; frees descriptors."""
        self._socket, self._protocol = listening, protocol
        self._owner_of, self._exhausted = owner_of, exhausted
        self._waiting: dict[str, deque[socket.socket]] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._turn: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._socket.setblocking(False)
        self._socket.listen(WAITING_IN_KERNEL)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more, and close what is not served yet; the socket stays open."""
        self._loop.remove_reader(self._socket)
        for handle in (self._turn, self._retry):
            if handle is not None:
                handle.cancel()
        self._drop_waiting()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._drop_waiting()
                self._exhausted(error)
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(RETRY_SECONDS, self.start)
                break
            line = self._waiting.setdefault(self._owner_of(address[0]), deque())
            if len(line) < WAITING_OF_ADDRESS:
                line.append(connection)
            else:
                connection.close()
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and self._turn is None:
            self._turn = self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Serve some that wait: one of each address, then the next one of each."""
        self._turn = None
        for _ in range(SERVED_AT_ONCE):
            if not self._waiting:
                return
            owner = next(iter(self._waiting))
            line = self._waiting.pop(owner)
            connection = line.popleft()
            if line:
                self._waiting[owner] = line  # behind all others
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._go_on()

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the other side has left
            await self._loop.connect_accepted_socket(self._protocol, connection)

    def _drop_waiting(self) -> None:
        for line in self._waiting.values():
            for connection in line:
                connection.close()
        self._waiting.clear()
