"""Coroutines in code that is not async, also where the thread runs an event loop already."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what the coroutine returns, and raise what it raises.

    A thread has one loop at a time, and a notebook's thread runs one: then another thread runs the
    coroutine, a daemon, so that Ctrl-C does not wait for it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # none runs
        return asyncio.run(coroutine)
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(asyncio.run(coroutine))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=work, name="coroutine", daemon=True).start()
    return result.result()
