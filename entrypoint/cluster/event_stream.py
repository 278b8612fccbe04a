"""The journal as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from contract.journal import event_of
from entrypoint.run.reads import StorageReads

POLL_SECONDS = 0.5


async def follow(
    journal: Path, reads: StorageReads, closing: asyncio.Event
) -> AsyncIterator[dict[str, str]]:
    """Yield every event of the journal, old and new, until `closing` is set."""
    offset = 0
    while True:
        last = closing.is_set()  # before the read: the outcome is in the journal by then
        try:
            lines = await reads.ask(partial(_complete_lines, journal, offset))
        except OSError:  # the journal is not there yet, or storage fails
            lines = []
        for line in lines:
            offset += len(line)
            if event := event_of(line):
                yield {"data": json.dumps(event)}
        if last:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), POLL_SECONDS)


def _complete_lines(journal: Path, offset: int) -> list[bytes]:
    with journal.open("rb") as file:
        file.seek(offset)
        return [line for line in file if line.endswith(b"\n")]
