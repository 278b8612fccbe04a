"""Starts a call that may hang, in a daemon thread: it keeps neither its caller nor the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start(call: Callable[[], T], name: str) -> Future[T]:
    """The future of what `call` returns or raises; `name`: of the thread.

    The caller limits the time with `future.result(seconds)`, which raises TimeoutError.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # nobody can cancel a call that has begun

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
