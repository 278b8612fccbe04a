"""Sends the growth of this worker's logs to a head that does not share its run directory."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.cluster.client import ControlClient, WrongTokenError
from entrypoint.cluster.worker_logs import MOST_BYTES, belongs
from entrypoint.config.settings import Settings
from entrypoint.net import wait

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
LAST_SECONDS = 3.0
"""For the last parts, when the worker leaves the cluster."""


class OwnLogs:
    """The logs of this life of the node, and how much of each the head has."""

    def __init__(self, directory: Path, node: str, life: str) -> None:
        """What the files hold already is of an earlier life, and is not sent."""
        self._directory = directory
        self._node = node
        self._life = life
        self._sent = {path.name: path.stat().st_size for path in self._files()}
        self._times_begun: Counter[str] = Counter()
        """File → how often it was begun anew; its offsets then begin anew, too."""

    def _files(self) -> list[Path]:
        try:
            found = sorted(self._directory.iterdir())
        except OSError:
            return []
        return [path for path in found if belongs(path.name, self._node)]

    def send(self, client: ControlClient) -> None:
        """Send all that is new. Raises NotYetError, WrongTokenError, OSError."""
        for path in self._files():
            while content := self._next(path):
                offset = self._sent[path.name]
                life = f"{self._life}-{self._times_begun[path.name]}"
                where = {"node": self._node, "life": life, "file": path.name}
                client.send_log(where | {"offset": str(offset)}, content)
                self._sent[path.name] = offset + len(content)

    def _next(self, path: Path) -> bytes:
        sent = self._sent.setdefault(path.name, 0)
        with path.open("rb") as file:
            if file.seek(0, 2) < sent:
                sent = self._sent[path.name] = 0
                self._times_begun[path.name] += 1
            file.seek(sent)
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
