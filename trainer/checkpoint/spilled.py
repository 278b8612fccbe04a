"""Replicas in files: what the nodes' memory held when their entrypoints ended.

Each entrypoint writes what its own node held (`contract.files.fd_store`). The next attempt finds
the files as it finds replica stores, and deletes them once a newer step is replicated.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contract.files.fd_store import LABEL
from trainer.checkpoint import labels
from trainer.checkpoint.memory_shards import ShardManifest
from trainer.checkpoint.writer import RunState

log = logging.getLogger(__name__)


class SpilledReplicas:
    """Those of one run: `owner`, as the stores deposit them, below `directory`."""

    def __init__(self, directory: Path, owner: str) -> None:
        self._directory = directory / owner
        self._any = self._directory.exists()

    def manifests(self) -> list[ShardManifest]:
        """Return the manifests of all shards that some node wrote."""
        found: dict[str, ShardManifest] = {}
        for label in sorted(self._directory.glob(f"*{LABEL}")):
            try:
                manifests = labels.parse(label.read_bytes())
                for manifest in manifests:
                    RunState.parse(manifest.run_state)
            except (OSError, ValueError) as error:
                log.warning("%s cannot be read and is ignored: %s", label, error)
            else:
                found |= {manifest.name: manifest for manifest in manifests}
        return list(found.values())

    def read(self, manifest: ShardManifest) -> NDArray[np.uint8]:
        """Return a shard's bytes. Raises OSError."""
        file, size = self._directory / manifest.name, manifest.contents.bytes
        if file.stat().st_size < size:
            raise OSError(errno.EIO, f"it has fewer than {size} bytes", str(file))
        return np.fromfile(file, np.uint8, count=size)

    def forget(self) -> None:
        if self._any:
            self._any = False
            shutil.rmtree(self._directory.parent, ignore_errors=True)
