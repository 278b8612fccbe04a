"""Calls in daemon threads, which end with the process: an unfinished call never delays its exit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_background(name: str, call: Callable[[], T]) -> Future[T]:
    """Run `call` in a daemon thread named `name`. Returns the future of its result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return result
