"""Snapshots in files: what was in the nodes' memory when those ended.

Entrypoints write them (`trainer.custody`), each what its own node held. The next attempt finds them
as it finds what holders have, and deletes them once a newer step is held.
"""

from __future__ import annotations

import logging
import pickle
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.checkpoint.sheet import Sheet
from trainer.custody import LABEL

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
                # Who can write here can read the run's token, and have Ray run what he likes.
                found |= {sheet.name: sheet for sheet in pickle.loads(label.read_bytes())}
            except Exception as error:  # of another version of this program, perhaps
                log.warning("%s cannot be read and is left out: %s", label, error)
        return list(found.values())

    def read(self, sheet: Sheet) -> NDArray[np.uint8]:
        """A share's bytes, as far as they are there. Raises OSError."""
        return np.fromfile(self._directory / sheet.name, np.uint8, count=sheet.contents.bytes)

    def forget(self) -> None:
        if self._any:
            self._any = False
            shutil.rmtree(self._directory.parent, ignore_errors=True)
