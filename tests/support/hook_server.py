"""A real HTTP server on loopback that takes messages as a webhook's server does, or does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.http_serving import Handler, serving

PATH = "/services/T0/B0/9f86d081884c7d65"
"""Whoever knows it can post."""


class Hook:
    def __init__(self, statuses: Sequence[int], delay: float) -> None:
        self.url = ""
        self.delay = delay
        self.taken: list[dict[str, Any]] = []
        self.taken_at: list[float] = []
        """Seconds of the epoch, for each message that was taken."""
        self.asked = 0
        self._statuses = list(statuses)
        self._lock = threading.Lock()

    def answer(self, message: dict[str, Any]) -> int:
        """Return the next of the statuses, and 200 once they are used up."""
        time.sleep(self.delay)
        with self._lock:
            self.asked += 1
            status = self._statuses.pop(0) if self._statuses else 200
            if status == 200:
                self.taken_at.append(time.time())
                self.taken.append(message)
            return status

    @property
    def events(self) -> list[str]:
        return [message["event"] for message in self.taken]


@contextmanager
def hook_server(statuses: Sequence[int] = (), delay: float = 0.0) -> Iterator[Hook]:
    hook = Hook(statuses, delay)

    class Posts(Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == PATH
            self.answer(hook.answer(json.loads(body)))

    with serving(Posts) as url:
        hook.url = url + PATH
        yield hook
