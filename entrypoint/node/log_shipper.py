"""Sends the growth of this worker's logs to a head that does not share its run directory."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.cluster.worker_logs import MOST_BYTES, belongs
from entrypoint.config.settings import Settings
from entrypoint.net import wait

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
LAST_SECONDS = 3.0
"""For the last parts, when the worker leaves the cluster."""
FIRST_BYTES = 1024
"""Of a log, which tell it from the log that had its name before."""


@dataclass(slots=True)
class _Sent:
    """How much of a log the head has, and what shows that the log is begun anew."""

    size: int = 0
    """Bytes."""
    first: bytes = b""
    """The beginning of those bytes."""
    inode: int = 0
    times_begun: int = 0
    """The offsets begin anew with the log, too."""


class OwnLogs:
    """The logs of this life of the node, and how much of each the head has."""

    def __init__(self, directory: Path, node: str, life: str) -> None:
        """What the files hold already is of an earlier life, and is not sent."""
        self._directory = directory
        self._node = node
        self._life = life
        self._sent = {path.name: _all_of(path) for path in self._files()}

    def _files(self) -> list[Path]:
        try:
            found = sorted(self._directory.iterdir())
        except OSError:
            return []
        return [path for path in found if belongs(path.name, self._node)]

    def send(self, client: ControlClient) -> None:
        """Send all that is new. Raises NotYetError, WrongTokenError, OSError."""
        for path in self._files():
            sent = self._sent.setdefault(path.name, _Sent())
            while content := _next(path, sent):
                life = f"{self._life}-{sent.times_begun}"
                where = {"node": self._node, "life": life, "file": path.name}
                client.send_log(where | {"offset": str(sent.size)}, content)
                sent.size += len(content)


def _all_of(path: Path) -> _Sent:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        return _Sent(found.st_size, file.read(FIRST_BYTES)[: found.st_size], found.st_ino)


def _next(path: Path, sent: _Sent) -> bytes:
    """Return the next part; b"" at the end. `sent` begins anew if the log has.

    A log that is begun anew may be longer than it was: its first bytes tell, or its inode.
    """
    with path.open("rb") as file:
        found, first = os.fstat(file.fileno()), file.read(FIRST_BYTES)
        anew = found.st_size < sent.size or not first.startswith(sent.first)
        if anew or (sent.size and found.st_ino != sent.inode):
            sent.size = 0
            sent.times_begun += 1
        sent.first, sent.inode = first[: sent.size], found.st_ino
        file.seek(sent.size)
        return file.read(MOST_BYTES)


def own_logs(settings: Settings, life: str) -> OwnLogs | None:
    """Return the logs that this node has to send; None if all nodes share the run directory."""
    if settings.shares_run_dir:
        return None
    return OwnLogs(RunFiles(settings.run_dir).logs, settings.node_name, life)


@contextmanager
def sending(logs: OwnLogs | None, client: ControlClient) -> Iterator[None]:
    """Send from a thread until the block ends; then send the rest, if the head takes it in time."""
    if logs is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_send, args=(logs, client, over), name="send-logs")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_SECONDS)


def _send(logs: OwnLogs, client: ControlClient, over: threading.Event) -> None:
    ending = False
    while not ending:
        ending = over.wait(EVERY_SECONDS)
        try:
            logs.send(client)
        except (wait.NotYetError, WrongTokenError, OSError) as error:
            log.debug("the head takes no logs: %s", error)  # the next round sends them
