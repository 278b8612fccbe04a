"""Transfers of several files at once, in daemon threads: a silent store delays nobody's exit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent import futures
from threading import Event

from contract.background import in_background


class Transfers:
    """Makes the calls in order, several at once. After an error no further call begins."""

    def __init__(
        self, name: str, calls: Iterable[Callable[[], None]], at_once: int, over: Event
    ) -> None:
        """`over`: begin no further call once it is set. An error sets it, too."""
        self._over = over
        self._calls = deque(calls)
        count = min(at_once, len(self._calls))
        self._threads = [in_background(name, self._work) for _ in range(count)]

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            try:
                call()
            except BaseException:
                self._over.set()
                raise

    def ended(self, seconds: float | None = None) -> bool:
        """Wait until all threads have ended, and return whether they have.

        Raises the error of a call, once all threads have ended.
        """
        ended, running = futures.wait(self._threads, seconds)
        if running:
            return False
        for thread in ended:
            thread.result()
        return True
