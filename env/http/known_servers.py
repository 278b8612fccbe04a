"""The servers that have answered in this run: what they refuse later is an outage.

An ingress, a gateway or a login proxy answers 302, 401 or 404 while the server behind it is
deployed again. Before a server's first answer, the same means that its address is wrong.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from pathlib import Path

from env.http.post import shown

log = logging.getLogger(__name__)


class KnownServers:
    """The addresses that have answered: in this process, and in earlier ones if a file keeps them.

    The file has an address without its secrets, and its SHA-256.
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._file: Path | None = None
        self._writing = threading.Lock()

    def keep_in(self, file: Path) -> None:
        """Begin a run: read the addresses that its file has, and keep later ones there, too."""
        self._shown, self._file = {}, file
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is not read: %s", file, error)
            return
        if isinstance(found, dict):
            self._shown = {str(digest): str(text) for digest, text in found.items()}

    def has(self, url: str) -> bool:
        return _digest(url) in self._shown

    def add(self, url: str) -> None:
        """The server has answered with what it was asked for."""
        if self.has(url):
            return
        with self._writing:
            self._shown[_digest(url)] = shown(url)
            if self._file is not None:
                self._write(self._file)

    def clear(self) -> None:
        self._shown, self._file = {}, None

    def _write(self, file: Path) -> None:
        """Replace the file. A run goes on without it: a refusal then ends a later attempt."""
        temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(self._shown, indent=1) + "\n")
            temporary.chmod(0o644)  # a reward function may have changed the umask
            temporary.replace(file)
        except OSError as error:
            log.warning("%s is not written: %s", file, error.strerror)


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


KNOWN = KnownServers()
"""Of this process: each episode may have a client of its own."""
