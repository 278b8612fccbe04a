"""Resolves names in bounded time: a name server that does not answer delays nobody."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from contract.background import in_background
from entrypoint.net.wait import NotYetError

ANSWER_SECONDS = 2.0
"""Seconds to wait for an answer. The system's resolver takes up to 40 s if no server answers."""
HOLDS_SECONDS = 60.0
"""A finished lookup that began longer ago is discarded."""


@dataclass(frozen=True, slots=True)
class _Lookup:
    answer: Future[list[str]]
    began: float = field(default_factory=time.monotonic)

    @property
    def is_outdated(self) -> bool:
        return self.answer.done() and time.monotonic() - self.began > HOLDS_SECONDS


_under_way: dict[str, _Lookup] = {}
_lock = threading.Lock()


def addresses(name: str) -> list[str]:
    """The addresses of `name`, each once, in the resolver's order; of an address, itself.

    An answer that comes too late is kept for the next call: a resolver whose first server is gone
    answers too late every time.

    Raises NotYetError if the name does not resolve, or not yet.
    """
    lookup = _lookup(name)
    try:
        found = lookup.answer.result(ANSWER_SECONDS)
    except TimeoutError:
        raise NotYetError(f"no name server answers for {name} yet") from None
    except OSError as error:
        _forget(name, lookup)
        raise NotYetError(f"the name {name} does not resolve ({error.strerror})") from None
    _forget(name, lookup)
    return found


def resolve(name: str) -> str:
    """The first address of `name`. Raises NotYetError as `addresses` does."""
    return addresses(name)[0]


def _lookup(name: str) -> _Lookup:
    """The lookup of `name` that is under way, or a new one."""
    with _lock:
        lookup = _under_way.get(name)
        if lookup is None or lookup.is_outdated:
            answer = in_background("resolve", lambda: _system_addresses(name))
            lookup = _under_way[name] = _Lookup(answer)
        return lookup


def _system_addresses(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _forget(name: str, lookup: _Lookup) -> None:
    with _lock:
        if _under_way.get(name) is lookup:
            del _under_way[name]
