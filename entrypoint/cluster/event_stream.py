"""The journal as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Container
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from contract.journal import event_of
from entrypoint.run.reads import StorageReads

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events a reader wants."""

    after: int = 0
    """Bytes of the journal that the reader has: the id of its last event."""
    without: Container[str] = ()
    """Kinds of events that are left out."""
    last: int | None = None
    """So many at the most of those that are there already; None: all."""


class Entry(NamedTuple):
    end: int
    """Bytes of the journal up to the end of this event: its id."""
    event: dict[str, Any]


async def follow(
    journal: Path, reads: StorageReads, closing: asyncio.Event, asked: Asked
) -> AsyncIterator[dict[str, str]]:
    """Yield every event of the journal, old and new, until `closing` is set."""
    offset: int | None = None
    most = asked.last
    while True:
        last = closing.is_set()  # before the read: the outcome is in the journal by then
        entries: list[Entry] = []
        with suppress(OSError):  # the journal is not there yet, or storage fails
            if offset is None:
                offset = await reads.ask(partial(_start, journal, asked.after))
            offset, entries = await reads.ask(partial(_entries, journal, offset, asked.without))
            entries, most = entries[max(0, len(entries) - most) :] if most else entries, None
        for end, event in entries:
            yield {"id": str(end), "data": json.dumps(event)}
        if last:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), POLL_SECONDS)


def _start(journal: Path, after: int) -> int:
    """Return `after` if an event of this journal ends there, else 0: it is another journal."""
    with journal.open("rb") as file:
        file.seek(max(0, after - 1))
        return after if after and file.read(1) == b"\n" else 0


def _entries(journal: Path, offset: int, without: Container[str]) -> tuple[int, list[Entry]]:
    """Return the complete events from `offset` on, and where they end."""
    entries = []
    with journal.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            event = event_of(line)
            if event and event["kind"] not in without:
                entries.append(Entry(offset, event))
    return offset, entries
