"""Where a command asks for the head, and so to whom it shows the run's token.

That is where the user says, or where the run's lease says. This machine's usual port is asked only
by a user who names no run and gives the token.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from contract.run_dir import RunFiles
from entrypoint.config.role import head_address, host_to_ask
from entrypoint.config.settings import Settings
from entrypoint.run.lease import boot_id, has_ended, look, moved_to
from entrypoint.run.succession import Row

OF_USER = ("ROLLCALL_HEAD_ADDRESS", "HEAD_POD_ID")
"""Variables by which a user names the head's host; others are a platform's."""
HERE = "localhost"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a head may answer."""

    host: str
    url: str | None = None
    """As the user or the lease gives it, in place of the host."""
    port: int | None = None
    """None: ROLLCALL_CONTROL_PORT."""


def places(settings: Settings) -> list[Place]:
    """Return where to ask, in this order; nowhere if the run's lease tells that its head has ended.

    A worker that has taken the head's place is where its lease says, and so is a head with another
    port, or on another machine that shares the run directory. The lease of another run's
    directory gets no token of this one.
    """
    leases = RunFiles(settings.run_dir).leases
    moved = _of_lease(settings) or [] if moved_to(leases) else []
    if settings.urls:
        given = [Place("", url) for url in settings.urls]
        is_of_run = settings.token is None and settings.variable("run_dir")
        return [*given, *(moved if is_of_run else [])]
    named, told = head_address(settings), _of_lease(settings)
    usual = [Place(host_to_ask(settings))]
    if named and named.source in OF_USER:
        return _once([*moved, *usual])
    if told is not None:
        is_guess = settings.variable("run_dir") or settings.token is None
        return told if told or is_guess else usual
    port_or_host = settings.variable("control_port") or usual != [Place(HERE)]
    names_run = settings.variable("run_dir") and RunFiles(settings.run_dir).journal.exists()
    return usual if port_or_host or (settings.token and not names_run) else []


def _of_lease(settings: Settings) -> list[Place] | None:
    """Return where the newest lease says that its head listens; None if there is no such lease."""
    leases = RunFiles(settings.run_dir).leases
    row: Row = {}
    with suppress(OSError):
        row = look(leases)[1]
    if has_ended(leases):
        return []
    return _once(_where(settings, row)) if row.get("address") or _url(row, "url") else None


def _where(settings: Settings, row: Row) -> Iterator[Place]:
    """Yield where a lease says that its head listens, and last another URL that it prints.

    Never by less than this user's own TLS.
    """
    shown, own = _url(row, "url"), _url(row, "control_url")
    if not shown:  # a head that has only just begun
        yield Place(str(row["address"]))
    told = urlsplit(own)
    with suppress(ValueError):  # the port is none
        port = None if told.port == settings.control_port else told.port
        if told.hostname and settings.scheme in (told.scheme, "https"):
            if not row.get("bind") and _is_here(row):
                yield Place(HERE, port=port)
            yield Place(told.hostname, port=port)
            shown = "" if shown == own else shown
    if shown and settings.scheme in (urlsplit(shown).scheme, "http"):
        yield Place("", shown)


def _is_here(row: Row) -> bool:
    return row.get("host") == socket.gethostname() and row.get("boot_id") == boot_id()


def _url(row: Row, field: str) -> str:
    url = str(row.get(field) or "")
    return url if url.startswith(("http://", "https://")) else ""


def _once(found: Iterable[Place]) -> list[Place]:
    return list(dict.fromkeys(found))
