"""Which head may write to the store: the one that came last."""

from __future__ import annotations

import logging
import time

from contract.run_dir import RunFiles
from entrypoint.run import restore
from entrypoint.run.store import Store, StoreError

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Between two looks whether a later head uses the store, if nothing is uploaded."""


class TakenOverError(Exception):
    """A later head uploads to the store; the sentence says so."""


class Ownership:
    """Of one head, from its first contact with the store."""

    def __init__(self, store: Store, run: RunFiles, holder: str) -> None:
        """`holder`: the incarnation of this head."""
        self._store = store
        self._run = run
        self._holder = holder.encode()
        self._taken = False
        self._looked = 0.0

    @property
    def is_due(self) -> bool:
        """Return whether to look again."""
        return not self._taken or time.monotonic() - self._looked >= LOOK_SECONDS

    def take_or_check(self) -> None:
        """Raises OtherRunError, TakenOverError if another head has come since, StoreError."""
        if not self._taken:
            restore.claim(self._store, self._run)
            self._store.write(restore.OWNER, self._holder)
            self._taken = True
            self._abort_left_uploads()
        elif self._store.read(restore.OWNER) != self._holder:
            raise TakenOverError(f"a later head uses {self._store.url}")
        self._looked = time.monotonic()

    def _abort_left_uploads(self) -> None:
        try:
            self._store.abort_uploads()
        except StoreError as error:  # the right to list them may be missing
            log.info("incomplete uploads of earlier heads may be left in the store: %s", error)
