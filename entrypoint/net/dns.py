"""Names to addresses, in bounded time: a name server that does not answer holds nobody up."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from entrypoint.net.wait import NotYetError

ANSWER_SECONDS = 2.0
"""The system's own resolver takes up to 40 s where its servers are silent."""
HOLDS_SECONDS = 60.0
"""An answer to a question of so long ago counts no more."""


@dataclass(frozen=True, slots=True)
class _Question:
    answer: Future[list[str]] = field(default_factory=Future)
    asked: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return self.answer.done() and time.monotonic() - self.asked > HOLDS_SECONDS


_under_way: dict[str, _Question] = {}
_lock = threading.Lock()


def addresses(name: str) -> list[str]:
    """Those of `name`, an address for itself. An answer that comes too late is for the next who
    asks: a resolver whose first server is gone answers too late every time.

    Raises NotYetError where the name does not resolve, or not yet.
    """
    question = _question(name)
    try:
        found = question.answer.result(ANSWER_SECONDS)
    except TimeoutError:
        raise NotYetError(f"no name server answers for {name} yet") from None
    except OSError as error:
        _forget(name, question)
        raise NotYetError(f"the name {name} does not resolve ({error.strerror})") from None
    _forget(name, question)
    return found


def resolve(name: str) -> str:
    """The first address of `name`. Raises NotYetError as `addresses` does."""
    return addresses(name)[0]


def _question(name: str) -> _Question:
    """The one under way, or a new one."""
    with _lock:
        question = _under_way.get(name)
        if question is None or question.is_over:
            question = _under_way[name] = _Question()
            asking = (name, question.answer)
            threading.Thread(target=_ask, args=asking, name="name", daemon=True).start()
        return question


def _ask(name: str, answer: Future[list[str]]) -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        answer.set_result([str(entry[4][0]) for entry in found])
    except Exception as error:
        answer.set_exception(error)


def _forget(name: str, question: _Question) -> None:
    with _lock:
        if _under_way.get(name) is question:
            del _under_way[name]
