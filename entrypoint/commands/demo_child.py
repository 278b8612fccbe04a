"""A program that a demo waits for, and that ends with the demo."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 0.2
END_SECONDS = 5.0
"""Time for the program to end after SIGTERM; then it is killed, with all that it has started."""


def run(words: Sequence[str]) -> None:
    """Run a program; its output is lost, but not its errors. Raises CalledProcessError.

    Raises KeyboardInterrupt, with the signal's number, if a signal asks this process to end: the
    program and what it has started have ended by then.
    """
    with _asked() as asked:
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        while not asked and _runs(child, LOOK_SECONDS):
            pass
        if asked:
            _end(child)
            raise KeyboardInterrupt(asked[0])
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)


@contextmanager
def _asked() -> Iterator[list[int]]:
    """Yield the signals that have come; those that are ignored, as by `nohup`, stay so."""
    asked: list[int] = []
    listened = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number)) for number in listened
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the program's session: a signal to its group reaches what it has started."""
    _signal(child, signal.SIGTERM)
    _runs(child, END_SECONDS)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _runs(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False
