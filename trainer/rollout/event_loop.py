"""A thread with an asyncio loop for the environments of all episodes, and its watchdog.

The loop is a daemon thread, as are the threads of `asyncio.to_thread`: a tool that hangs delays
nobody's exit. If code of an environment blocks the loop, all other episodes wait. The watchdog
then names the method and the line.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from contract.background import in_background
from env.episodes import types as episode_types

T = TypeVar("T")
P = ParamSpec("P")
logger = logging.getLogger(__name__)
BLOCKED_SECONDS = 1.0
"""A loop that does not answer for so long is blocked."""
CLOSE_SECONDS = 5.0
"""Longest wait for environments to close at the end of the run."""
CALLS = str(Path(asyncio.__file__).with_name("events.py"))
"""The file of asyncio that calls coroutines."""
ENV = Path(episode_types.__file__).parents[1]
NOT_BLAMED = (
    str(ENV / "episodes"),
    *(str(ENV / "environments" / name) for name in ("openrlhf_", "trl_", "verifiers_")),
    str(Path(__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
"""Beginnings of files that no environment is in: this project's, Python's and libraries'."""


class _Threads(ThreadPoolExecutor):
    """A daemon thread for each call. asyncio accepts no executor of another class."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return in_background("environment-call", lambda: call(*args, **kwargs))


class EventLoop:
    def __init__(self, warn: Callable[[str], None]) -> None:
        """`warn`: gets a sentence about each place that blocks the loop."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads(1))
        self._warn = warn
        self._told: set[tuple[str, int]] = set()
        self._closed, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="environments-watchdog", daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop. Returns the future of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function in the thread of the loop."""
        self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Cancel all coroutines, and end the loop when they have ended."""
        self._closed.set()
        with suppress(TimeoutError):
            self.start(_cancel_all()).result(CLOSE_SECONDS)
        self._ended.set()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        """Run the loop until `close`, whatever the tasks of an environment do to it."""
        while not self._ended.is_set():
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # who awaits the task gets the exception, too
                logger.exception("A task of an environment would have ended the program.")

    def _watch(self) -> None:
        while not self._closed.wait(BLOCKED_SECONDS / 4):
            answered, begun = threading.Event(), time.monotonic()
            self.call(answered.set)
            if answered.wait(BLOCKED_SECONDS):
                continue
            place = self._place()
            if answered.wait(BLOCKED_SECONDS / 4) or self._place() != place:
                continue  # a busy machine, and no call that blocks
            if place and place[:2] not in self._told:
                self._told.add(place[:2])
                seconds = time.monotonic() - begun
                self._warn(
                    f"{place[2]} blocks all other episodes, for {seconds:.1f} s so far. It must "
                    "await what it waits for, or call it by `await asyncio.to_thread(…)`"
                )
            answered.wait()

    def _place(self) -> tuple[str, int, str] | None:
        """Return where the loop's thread is in an environment's code."""
        return blocking_place(sys._current_frames().get(self._thread.ident or 0))


def blocking_place(innermost: FrameType | None) -> tuple[str, int, str] | None:
    """Return file, line and description of the environment's code in a stack; None: not there."""
    stack: list[FrameType] = []
    while innermost is not None and innermost.f_code.co_filename != CALLS:
        stack.append(innermost)
        innermost = innermost.f_back
    own = [frame for frame in stack if not frame.f_code.co_filename.startswith(NOT_BLAMED)]
    if innermost is None or not own:
        return None  # the loop waits for work, or is in code of this project
    inner, method = own[0], own[-1]
    file, line = method.f_code.co_filename, method.f_lineno
    within = f", in {inner.f_code.co_qualname}" if inner is not method else ""
    return file, line, f"{method.f_code.co_qualname} ({file}:{line}{within})"


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
