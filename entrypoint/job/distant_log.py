"""Copies the driver's output from another machine, through Ray's dashboard."""

from __future__ import annotations

import http.client
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from contract.files.log_copy import Copy
from entrypoint.job.job_log import CHUNK_BYTES, END_SECONDS, POLL_SECONDS
from entrypoint.net.http import bearer

ANSWER_SECONDS = 10.0
"""How long Ray may take for the first byte. It sends none before the job has printed something."""
INTERVAL_SECONDS = 0.2
"""How often Ray looks for new output."""
LAST_LINES = 10_000
"""Of its end, that are read for evidence in any case."""
BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class LogsApi:
    """Where Ray's dashboard gives the output of jobs."""

    dashboard: str
    token: str

    def read(
        self, submission_id: str, *, ends: threading.Event | None, lines: int = -1
    ) -> Iterator[bytes]:
        """Yield the output from its start: what is there or, given `ends`, also what comes.

        `lines`: so many of the last ones; -1: all.

        The connection is ended once `ends` is set. Yields nothing before there is output. Raises
        OSError and HTTPException if the connection breaks.
        """
        kind = "file" if ends is None else "stream"
        wanted = {"submission_id": submission_id, "lines": lines, "interval": INTERVAL_SECONDS}
        parts = urlsplit(self.dashboard)
        of_scheme = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = of_scheme[parts.scheme](parts.netloc, timeout=ANSWER_SECONDS)
        with closing(connection):
            path = f"{parts.path}/api/v0/logs/{kind}?{urlencode(wanted)}"
            connection.request("GET", path, headers=bearer(self.token))
            connected = connection.sock
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                return
            over = threading.Event()
            if ends is not None:
                connected.settimeout(None)
                arguments = (connected, ends, over)
                threading.Thread(target=_hang_up_at, args=arguments, daemon=True).start()
            try:
                while data := answer.read1(CHUNK_BYTES):
                    yield data
            finally:
                over.set()


def follow(logs: LogsApi, submission_id: str, copy: Copy, over: threading.Event) -> None:
    """Copy the output from its start, until `over` is set and its end is read.

    What takes more than END_SECONDS from then on is left out, but for the last lines.
    """
    copied = 0
    try:
        while not over.is_set():
            copied = _add(logs.read(submission_id, ends=over), copy, copied)
            over.wait(POLL_SECONDS)
        until = time.monotonic() + END_SECONDS
        _add(logs.read(submission_id, ends=None), copy, copied, until)
        if time.monotonic() > until:
            copy.skip()
            _add(logs.read(submission_id, ends=None, lines=LAST_LINES), copy, 0)
    finally:
        copy.close()


def _add(output: Iterator[bytes], copy: Copy, copied: int, until: float = math.inf) -> int:
    """Copy what follows the first `copied` bytes; return how many are copied then.

    `until`: when to give up, in seconds of the monotonic clock.
    """
    seen = 0
    with suppress(*BROKEN):  # the next connection begins at the start again
        for data in output:
            seen += len(data)
            if seen > copied:
                copy.take(data[copied - seen :])
                copied = seen
            if time.monotonic() > until:
                break
    return copied


def _hang_up_at(connected: socket.socket, ends: threading.Event, over: threading.Event) -> None:
    """End a connection on which another thread waits for data; `over`: that thread has ended."""
    while not over.is_set():
        if ends.wait(POLL_SECONDS):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            return
