"""Limits on the connections of every HTTP server: how many, how long, how much of a request.

Anyone who reaches the port may connect; addresses are served in turn (`fair_accept`). A connection
counts as unproven until it has brought a request with the key that the server asks for; to an open
server, any request. Unproven connections have a deadline and are few for each address, so that
whoever holds them open cannot keep the cluster's own nodes out. Proven ones are not counted:
hundreds of workers may share one address.

A request that arrives before the answer of the one before is not read: the connection ends. So a
client costs one request for each time that it waits, and others are served between.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from h11 import DONE, IDLE, SEND_BODY
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from env.http.fair_accept import Listener

log = logging.getLogger("uvicorn.error")  # of the server that this extends

PROVE = "rollcall.prove"
"""Name of the scope's extension to call once a request has shown a key."""
REQUEST_SECONDS = 10.0
"""Deadline of a request's headers, and of each piece of its body after the token is shown; and of
an unproven connection."""
HEADER_BYTES = 16 * 1024
"""Longest header section of a request, which is read in pieces of this size."""
UNPROVEN_OF_ADDRESS = 64
"""An address that has more unproven connections loses its oldest, once that is no longer new."""
NEW_SECONDS = 2.0
"""How long a new connection is spared, so that a node can send its request."""
MOST_UNPROVEN = 1024
UNPROVEN_SHARE = 4
"""Unproven connections take at most one of this many descriptors of the process."""
TLS_BUFFER_BYTES = 64 * 1024
"""Most that is decrypted at once, for each connection."""
HEALTH = "/healthz"
"""Answers everyone, also without TLS: probes of containers ask for it."""
NEEDS_TLS = 426
"""The status of a request without TLS, where TLS is on (RFC 9110, 15.5.22)."""
CLIENT_HELLO = b"\x16\x03"
"""The first bytes of TLS (RFC 8446, 5.1)."""
REPEATED_SECONDS = 60.0
REPEATING = ("asyncio", "uvicorn.error")
"""Loggers of what anyone who reaches a server can make it say."""
IPV6_NETWORK_BITS = 64
"""The smallest IPv6 network that one owner has."""


class Unproven:
    """The unproven connections of each address, oldest first. Used only in the event loop."""

    def __init__(self) -> None:
        self._opened: dict[Connection, float] = {}
        self._of: defaultdict[str, dict[Connection, None]] = defaultdict(dict)

    def add(self, connection: Connection, now: float) -> None:
        """Count a connection; abort another one if there are too many."""
        self._opened[connection] = now
        self._of[connection.owner][connection] = None
        if (surplus := self._surplus(connection.owner, now)) is not None:
            self.discard(surplus)
            surplus.abort()

    def discard(self, connection: Connection) -> None:
        if self._opened.pop(connection, None) is None:
            return
        mine = self._of[connection.owner]
        del mine[connection]
        if not mine:
            del self._of[connection.owner]

    def abort_all(self) -> None:
        """Abort all: descriptors are needed at once."""
        for connection in list(self._opened):
            self.discard(connection)
            connection.abort()

    def _surplus(self, owner: str, now: float) -> Connection | None:
        """Return the connection to abort: of this address, or of the address with the most."""
        mine = self._of[owner]
        oldest = next(iter(mine))
        if len(mine) > UNPROVEN_OF_ADDRESS and now - self._opened[oldest] > NEW_SECONDS:
            return oldest
        if len(self._opened) > most_unproven():
            greediest = max(self._of, key=lambda address: len(self._of[address]))
            return next(iter(self._of[greediest]))
        return None


def most_unproven() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_UNPROVEN, descriptors // UNPROVEN_SHARE)


def owner_of(address: str) -> str:
    """Return `address`, or its network for IPv6: one owner has all addresses of the network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.ipv4_mapped:
        return address
    return str(ipaddress.ip_network((int(parsed), IPV6_NETWORK_BITS), strict=False))


class Config(uvicorn.Config):
    """uvicorn's settings, and the state that the server's connections share."""

    def __init__(self, app: Any, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(
            app,
            http=partial(Handshake.of_connection, tls) if tls else Connection,  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            **settings,
        )
        self.unproven = Unproven()


class Server(uvicorn.Server):
    """uvicorn's server; it logs errors of the event loop in one line."""

    def __init__(
        self, app: Any, name: str, *, tls: ssl.SSLContext | None = None, **settings: Any
    ) -> None:
        """`app`: calls the scope's extension PROVE. `settings`: more of uvicorn's."""
        say_once_per_minute()
        self._name = name
        self._unproven = (config := Config(app, tls, **settings)).unproven
        self._listeners: list[Listener] = []
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._say)
        await super().startup([])
        self._listeners = [
            Listener(one, self._connection, owner_of, self._exhausted) for one in sockets or ()
        ]
        for listener in self._listeners:
            listener.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            listener.close()
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def _exhausted(self, error: OSError) -> None:
        log.warning("%s: %s", self._name, error.strerror or error)
        self._unproven.abort_all()

    def _say(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):
            log.warning("%s: %s", self._name, error.strerror or error)
        else:
            loop.default_exception_handler(context)


class Connection(H11Protocol):
    """One connection. Its application calls `prove` by way of the scope's extensions."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._inner, self.app = self.app, self._answer
        self._unproven = config.unproven
        self._deadline: asyncio.TimerHandle | None = None
        self._is_proven = False
        self._accepted: asyncio.Transport | None = None
        self.owner = ""

    def accept(self, transport: asyncio.Transport) -> None:
        """Count the connection, before the first byte, and before TLS."""
        self._accepted = transport
        client = get_remote_addr(transport)
        self.owner = owner_of(client[0]) if client else ""
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.abort)
        self._unproven.add(self, self.loop.time())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._accepted is None:
            self.accept(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_proven and self.scheme == "http" and data.startswith(CLIENT_HELLO):
            log.warning(
                "%s speaks TLS to this server, which has none",
                self.client[0] if self.client else "-",
            )
            self.abort()
            return
        for start in range(0, len(data), HEADER_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + HEADER_BYTES])
        self._keep_deadline()

    def on_response_complete(self) -> None:
        if self.conn.their_state is DONE and self.conn.trailing_data[0]:
            self.transport.close()  # no client of ours sends before it has its answer
        super().on_response_complete()
        self._keep_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        super().connection_lost(exc)

    def forget(self) -> None:
        """Count the connection no more: it has ended."""
        self._unproven.discard(self)
        self._end_deadline()

    def abort(self) -> None:
        """Close without waiting for the other side to take what was written."""
        assert self._accepted is not None
        self._accepted.abort()

    def answer_without_tls(self, begin: bytes) -> None:
        """Answer a request that came without TLS, of which `begin` has the first bytes."""
        assert self._accepted is not None
        is_probe = begin.split(b" ")[1:2] == [HEALTH.encode()]
        status = "200 OK" if is_probe else f"{NEEDS_TLS} Upgrade Required"
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        self._accepted.write(head.encode())
        self._accepted.close()

    def prove(self) -> None:
        """Note that a request with the token has arrived."""
        if not self._is_proven:
            self._is_proven = True
            self._unproven.discard(self)
            self._end_deadline()
            self._keep_deadline()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"] = {PROVE: self.prove}
        with suppress(ClientDisconnect):  # the other side left before the end of its request
            await self._inner(scope, receive, send)

    def _keep_deadline(self) -> None:
        """Set the deadline of a proven connection while a request is incomplete."""
        if not self._is_proven:
            return
        state = self.conn.their_state
        if state is SEND_BODY:
            self._end_deadline()  # a working directory may arrive for minutes
        if not (state is SEND_BODY or (state is IDLE and self.conn.trailing_data[0])):
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Handshake(SSLProtocol):
    """TLS below a Connection, whose limits count from the accepted connection on.

    A request without TLS gets a status that says so; a probe of HEALTH gets its answer.
    """

    max_size = TLS_BUFFER_BYTES

    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        super().__init__(
            connection.loop,
            connection,
            context,
            waiter=None,  # type: ignore[arg-type]
            server_side=True,
        )
        self._connection = connection
        self._first: memoryview | None = None
        """Where the first bytes will be."""
        self._has_begun = False

    @classmethod
    def of_connection(cls, context: ssl.SSLContext, **settings: Any) -> Handshake:
        """Return the protocol of a connection. `settings`: those of Connection."""
        return cls(Connection(**settings), context)

    def connection_made(self, transport: Any) -> None:
        self._connection.accept(transport)
        super().connection_made(transport)

    def get_buffer(self, n: int) -> Any:
        self._first = memoryview(super().get_buffer(n))
        return self._first

    def buffer_updated(self, nbytes: int) -> None:
        if not self._has_begun and self._first is not None:
            self._has_begun = True
            begin = bytes(self._first[:nbytes])
            if not begin.startswith(CLIENT_HELLO[:1]):
                self._connection.answer_without_tls(begin)
                return
        super().buffer_updated(nbytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.forget()
        super().connection_lost(exc)


class OncePerMinute(logging.Filter):
    """Passes a repeated message once a minute, with how often it has come since."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[tuple[str, ...], float] = {}
        self._held: Counter[tuple[str, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.exc_info[0]) if record.exc_info else ""
        first_line = record.getMessage().partition("\n")[0]
        message = (record.name, first_line, kind)
        if record.created - self._shown.get(message, 0.0) < REPEATED_SECONDS:
            self._held[message] += 1
            return False
        self._shown = {
            known: at for known, at in self._shown.items() if record.created - at < REPEATED_SECONDS
        }
        held = self._held.pop(message, 0)
        self._held = Counter({known: n for known, n in self._held.items() if known in self._shown})
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} times more since)", ()
        self._shown[message] = record.created
        return True


ONCE_PER_MINUTE = OncePerMinute()


def say_once_per_minute() -> None:
    """Have the loggers of servers pass repeated messages once a minute, in this process."""
    for name in REPEATING:
        logging.getLogger(name).addFilter(ONCE_PER_MINUTE)
