"""The run's history: every event is one durable line of JSON and one sentence on the console."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from contract import lease
from contract.journal import EventSource, append_event, read_events
from contract.journal_file import index
from contract.redaction import redact

log = logging.getLogger("rollcall")

WARNING_KINDS = frozenset(
    {
        *(
            "command",
            "failure",
            "layout-warning",
            "head-moved",
            "refused",
            "node-lost",
            "node-needed",
            "replace-failed",
            "step-pattern",
            "node-change",
            "straggler",
            "straggler-replaced",
            "straggler-stays",
        ),
        *("engine-left-out", "left-over", "oom-kill", "rank-behind", "service", "upload-failed"),
    }
)


class Journal:
    def __init__(
        self,
        path: Path,
        node: str,
        claim: lease.Claim | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        """`claim`: the head's, under which all is written. `secrets`: masked in every event."""
        self.path = path
        self._node = node
        self._secrets = frozenset(secrets)
        self.claim = claim
        self.attempt: int | None = None

    def record(self, kind: str, sentence: str, /, **details: Any) -> None:
        """Append the event and log its sentence.

        Raises OSError if the run directory does not take the event: then the head must stop, since
        a run without a journal cannot be resumed. Raises SupersededError if a later head owns the
        run.
        """
        lease.check(self.claim)  # before the sentence is logged
        level = logging.WARNING if kind in WARNING_KINDS else logging.INFO
        if kind == "outcome" and details.get("outcome") == "failed":
            level = logging.ERROR
        fields = {"event": kind, "attempt": self.attempt, "details": details}
        log.log(level, "%s", redact(sentence, self._secrets), extra=fields)
        self.write(kind, sentence, **details)

    def write(self, kind: str, sentence: str, /, **details: Any) -> None:
        """Append the event alone; raises as `record` does."""
        append_event(
            self.path,
            kind,
            sentence,
            details,
            source=EventSource(
                attempt=self.attempt, node=self._node, claim=self.claim, secrets=self._secrets
            ),
        )

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """All events, or those of `kinds`, oldest first."""
        return (row for row in read_events(self.path) if not kinds or row["kind"] in kinds)

    def landmarks(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The events of `kinds`, oldest first; of steps and the like, the first of each attempt.

        They take the same time to read however long the run is.
        """
        return index.landmarks(self.path).events(kinds)

    def of_attempt(self) -> list[dict[str, Any]]:
        """The events of the attempt so far, oldest first."""
        events = takewhile(lambda event: event["kind"] != "attempt", index.newest_first(self.path))
        return [event for event in events if event["attempt"] == self.attempt][::-1]

    def attempts(self) -> int:
        """How many attempts this run has made, over all its heads."""
        return sum(1 for _ in self.landmarks("attempt"))
