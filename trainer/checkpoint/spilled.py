"""Snapshots in files: what was in the nodes' memory when those ended.

Entrypoints write them (`contract.fd_store`), each what its own node held. The next attempt finds
them as it finds what holders have, and deletes them once a newer step is held.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contract.fd_store import LABEL
from trainer.checkpoint import labels
from trainer.checkpoint.shard_manifest import Sheet
from trainer.checkpoint.writer import RunState

log = logging.getLogger(__name__)


class Kept:
    """Of one run; `directory`: where its entrypoints write, `owner`: as the holders' deposits."""

    def __init__(self, directory: Path, owner: str) -> None:
        self._directory = directory / owner
        self._any = self._directory.exists()

    def sheets(self) -> list[Sheet]:
        """Of all shares that some node has written."""
        found: dict[str, Sheet] = {}
        for label in sorted(self._directory.glob(f"*{LABEL}")):
            try:
                sheets = labels.parse(label.read_bytes())
                for sheet in sheets:
                    RunState.parse(sheet.run_state)
            except (OSError, ValueError) as error:
                log.warning("%s cannot be read and is left out: %s", label, error)
            else:
                found |= {sheet.name: sheet for sheet in sheets}
        return list(found.values())

    def read(self, sheet: Sheet) -> NDArray[np.uint8]:
        """A share's bytes. Raises OSError."""
        file, size = self._directory / sheet.name, sheet.contents.bytes
        if file.stat().st_size < size:
            raise OSError(errno.EIO, f"it has fewer than {size} bytes", str(file))
        return np.fromfile(file, np.uint8, count=size)

    def forget(self) -> None:
        if self._any:
            self._any = False
            shutil.rmtree(self._directory.parent, ignore_errors=True)
