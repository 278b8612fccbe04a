"""The journal as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Container
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from contract.files import lines
from contract.files.plain_files import open_plain
from contract.journal_file.lines import KIND, event_of
from entrypoint.run.run_dir_reads import RunDirReads

POLL_SECONDS = 0.5
READ_BYTES = 2**21
"""About so much of a journal is read and sent at once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events a reader wants."""

    after: int = 0
    """Bytes of the journal that the reader has: the id of its last event."""
    without: Container[str] = ()
    """Kinds of events that are left out."""
    last: int | None = None
    """So many at the most of those that are there already: 0: only new ones; None: all."""


class Entry(NamedTuple):
    end: int
    """Bytes of the journal up to the end of this event: its id."""
    event: dict[str, Any]


async def follow(
    journal: Path, reads: RunDirReads, closing: asyncio.Event, asked: Asked
) -> AsyncIterator[dict[str, str]]:
    """Yield every event of the journal, old and new, until `closing` is set."""
    offset: int | None = None
    without = asked.without
    while True:
        last = closing.is_set()  # before the read: the outcome is in the journal by then
        entries: list[Entry] = []
        more = False
        with suppress(OSError):  # the journal is not there yet, or storage fails
            if offset is None and asked.last is not None and not asked.after:
                offset, entries = await reads.ask(partial(_newest, journal, asked.last, without))
            else:
                if offset is None:
                    offset = await reads.ask(partial(_start, journal, asked.after))
                offset, entries, more = await reads.ask(
                    partial(next_events, journal, offset, without)
                )
        for end, event in entries:
            yield {"id": str(end), "data": json.dumps(event)}
        if more:
            continue
        if last:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), POLL_SECONDS)


def _start(journal: Path, after: int) -> int:
    """Return `after` if an event of this journal ends there, else 0: it is another journal."""
    with open_plain(journal) as file:
        file.seek(max(0, after - 1))
        return after if after and file.read(1) == b"\n" else 0


def next_events(
    journal: Path, offset: int, without: Container[str] = ()
) -> tuple[int, list[Entry], bool]:
    """Return where the next complete events end, those events, and whether there may be more."""
    with open_plain(journal) as file:
        file.seek(offset)
        data = file.read(READ_BYTES) + file.readline()
    entries = []
    begin = offset
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        offset += len(line)
        if event := _wanted(line, without):
            entries.append(Entry(offset, event))
    return offset, entries, offset - begin >= READ_BYTES


def _newest(journal: Path, most: int, without: Container[str]) -> tuple[int, list[Entry]]:
    """Return where the complete events end, and the last `most` of them.

    A page asks so. It reads the end of the journal only, which may have 200,000 events.
    """
    with open_plain(journal) as file:
        ends = lines.backwards(file)
        newest = next(ends, None)
        if newest is None:
            return 0, []
        found = ((end, _wanted(line, without)) for end, line in chain([newest], ends))
        entries = [*islice((Entry(end, event) for end, event in found if event), most)]
    return newest[0], entries[::-1]


def _wanted(line: bytes, without: Container[str]) -> dict[str, Any] | None:
    """Return the event in a line; None if it is left out or damaged."""
    if (kind := KIND.search(line)) and kind[1].decode(errors="replace") in without:
        return None  # without reading the rest: of a long run, most events are steps
    event = event_of(line)
    return event if event and event["kind"] not in without else None
