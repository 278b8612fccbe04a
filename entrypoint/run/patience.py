"""Asks a store until it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from entrypoint.net import wait
from entrypoint.run.store import Store, StoreError, UnusableStoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store may give no answer, and what ends the wait earlier."""

    seconds: float
    stop: Event

    def ask(self, store: Store, question: Callable[[], T]) -> T:
        """Return the store's answer to `question`, which is asked again after a StoreError.

        Raises StoreError if there is no answer for `seconds`, UnusableStoreError at once,
        InterruptedWaitError if `stop` is set.
        """

        def probe() -> T:
            try:
                return question()
            except UnusableStoreError as error:
                raise UnusableStoreError(f"{store.url} cannot be used: {error}") from None
            except StoreError as error:
                raise wait.NotYetError(str(error)) from None

        what = f"{store.url} to answer"
        if self.stop.is_set():
            raise wait.InterruptedWaitError(f"asked to stop while waiting for {what}")
        try:
            return wait.until(what, probe, timeout=self.seconds, stop=self.stop)
        except wait.GaveUpError as error:
            raise StoreError(str(error)) from None
