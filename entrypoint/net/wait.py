"""The only retry helper: wait for something, say so as time goes by, give up at a deadline."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tenacity import RetryCallState, RetryError, Retrying
from tenacity.nap import sleep_using_event
from tenacity.retry import retry_if_exception_type
from tenacity.stop import stop_after_delay, stop_when_event_set
from tenacity.wait import wait_random_exponential

from contract.durations import duration

log = logging.getLogger(__name__)
T = TypeVar("T")

STEADY_SECONDS = 60.0
"""Seconds. A failure after a longer run restarts the count of failures in a row."""
SAY_AFTER_SECONDS = (3, 10, 30, 60)
SAY_EVERY_SECONDS = 60
LONGEST_BACKOFF_SECONDS = 60.0


class NotYetError(Exception):
    """A probe's answer while the thing is not there: why not, in words."""


class GaveUpError(Exception):
    """The deadline passed. `str()` is one sentence: what was missing, how long, the last answer."""


class InterruptedWaitError(Exception):
    """The node was asked to stop while it waited."""


Abort = Callable[[], None]
"""Raises an error if there is nothing to wait for any more."""


def wait_on() -> None:
    """An `Abort` that never ends a wait."""


def until(
    what: str,
    probe: Callable[[], T],
    *,
    timeout: float,
    stop: threading.Event,
    longest_pause: float = 1.0,
    abort: Abort = wait_on,
) -> T:
    """Call `probe` until it returns instead of raising NotYetError; return its answer.

    Between calls it sleeps a random, exponentially growing time of at most `longest_pause` s.

    Raises GaveUpError after `timeout` seconds, InterruptedWaitError once `stop` is set, and what
    `abort` raises after a failed try.
    """
    started = time.monotonic()

    def tried() -> T:
        try:
            return probe()
        except NotYetError:
            abort()
            raise

    pending = list(SAY_AFTER_SECONDS)

    def tell(state: RetryCallState) -> None:
        elapsed = time.monotonic() - started
        if elapsed < pending[0]:
            return
        while len(pending) > 1 and elapsed >= pending[0]:
            pending.pop(0)
        if elapsed >= pending[0]:
            pending[0] += SAY_EVERY_SECONDS
        reason = state.outcome.exception() if state.outcome else ""
        spent = f"{duration(elapsed)} of {duration(timeout)}"
        log.info("waiting for %s: %s (%s)", what, reason, spent)

    retrying = Retrying(
        retry=retry_if_exception_type(NotYetError),
        stop=stop_after_delay(timeout) | stop_when_event_set(stop),
        wait=wait_random_exponential(multiplier=0.1, max=longest_pause),
        sleep=sleep_using_event(stop),
        before_sleep=tell,
    )
    try:
        return retrying(tried)
    except RetryError as error:
        if stop.is_set():
            raise InterruptedWaitError(f"asked to stop while waiting for {what}") from None
        last = error.last_attempt.exception()
        raise GaveUpError(f"{what}: not there after {duration(timeout)} ({last})") from None


@contextmanager
def limited_by(variable: str) -> Iterator[None]:
    """Name the variable that sets the deadline in the sentence of a GaveUpError."""
    try:
        yield
    except GaveUpError as error:
        raise GaveUpError(f"{error}; {variable} sets this limit") from None


def failures_in_a_row(before: int, lasted: float) -> int:
    """The number of failures in a row, with a new failure after a run of `lasted` seconds."""
    return 1 if lasted > STEADY_SECONDS else before + 1


def backoff(failures: int, *, first: float = 1.0) -> float:
    """Seconds to wait before try number `failures` + 1: doubling, with jitter of a half."""
    ceiling = min(LONGEST_BACKOFF_SECONDS, first * 2.0 ** max(0, failures - 1))
    return ceiling * random.uniform(0.5, 1.0)
