"""Calls in daemon threads, which end with the process: a call that hangs delays nobody's exit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_background(name: str, call: Callable[[], T]) -> Future[T]:
    """Run `call` in a daemon thread named `name`. Returns the future of its result.

    The caller limits the time with `future.result(seconds)`, which raises TimeoutError.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # nobody can cancel a call that has begun

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return result
