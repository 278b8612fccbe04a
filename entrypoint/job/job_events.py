"""Logs what a job itself writes to the journal: its start, and the repairs inside an attempt."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from contract.journal_file.index import ROUTINE
from entrypoint.cluster.event_stream import next_events
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)


@dataclass(slots=True)
class JobEvents:
    """Reads what is new in the journal of an attempt; the journal knows what this head has said."""

    journal: Journal
    _offset: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """What the journal has by now is old."""
        with suppress(OSError):
            self._offset = self.journal.path.stat().st_size

    def new(self) -> list[dict[str, Any]]:
        """Return the events of the attempt that no console has yet, without the routine ones.

        What storage does not give now is read by the next look.
        """
        found: list[dict[str, Any]] = []
        more = True
        try:
            while more:
                self._offset, entries, more = next_events(self.journal.path, self._offset, ROUTINE)
                found += [event for _, event in entries if self.journal.lacks_on_console(event)]
        except OSError as error:
            log.debug("the events of the job cannot be read: %s", error)
        return found
