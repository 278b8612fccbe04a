"""The run's history: every event is one durable line of JSON and one sentence on the console."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from contract import lease
from contract.journal import NO_REWARD, EventSource, append_event, read_events
from contract.journal_file import index
from contract.redaction import redact, secret_texts
from entrypoint.run.failure_classes import for_people

log = logging.getLogger("rollcall")

MOST_SAID = 1000
"""Events whose sentences this head has logged, the newest: a look at the journal is due sooner."""

LONG_FAILURE, SHOWN_AGAIN = 160, 80
"""Characters from which the console shows a failure that comes again in part, and how many."""

WARNING_KINDS = frozenset(
    {
        *(
            "command",
            "failure",
            "layout-warning",
            "head-moved",
            "refused",
            NO_REWARD,
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
        self._said: deque[tuple[int | None, str, str]] = deque(maxlen=MOST_SAID)
        """Attempt, kind and sentence of events that are logged and were not read again."""
        self._failure: Mapping[str, Any] | None = None
        """The event of the last failure that is logged."""

    def record(self, kind: str, sentence: str, /, **details: Any) -> None:
        """Append the event and log its sentence.

        Raises OSError if the run directory does not take the event: then the head must stop, since
        a run without a journal cannot be resumed. Raises SupersededError if a later head owns the
        run.
        """
        lease.check(self.claim)  # before the sentence is logged
        told = redact(sentence, secret_texts(os.environ) | self._secrets)
        event = {"attempt": self.attempt, "kind": kind, "sentence": told, "details": details}
        self.say(event)
        self._said.append(_key(event))  # before another thread can read the event
        self.write(kind, sentence, **details)

    def say(self, event: Mapping[str, Any]) -> None:
        """Log the sentence of an event.

        A long failure that comes again is shown in part; a failed end with its last failure.
        """
        kind, details = event["kind"], event["details"]
        level = logging.WARNING if kind in WARNING_KINDS else logging.INFO
        if kind == "outcome" and details.get("outcome") == "failed":
            level = logging.ERROR
        fields = {"event": kind, "attempt": event["attempt"], "details": details}
        log.log(level, "%s", self._shown(event), extra=fields)
        if kind == "failure":
            self._failure = event

    def _shown(self, event: Mapping[str, Any]) -> str:
        sentence, before = for_people(event["details"], str(event["sentence"])), self._failure
        if before is None:
            return sentence
        if event["kind"] == "failure":
            is_same = event["sentence"] == before["sentence"]
            again = is_same and len(sentence) > LONG_FAILURE
            return f"{sentence[:SHOWN_AGAIN].rstrip()}… (as before)" if again else sentence
        is_failed_end = event["kind"] == "outcome" and event["details"].get("outcome") == "failed"
        if not is_failed_end or event["attempt"] != before["attempt"]:
            return sentence
        failure = before["details"].get("failure", "")
        return f"{sentence}. The last failure: {before['sentence'].removeprefix(f'{failure}: ')}"

    def lacks_on_console(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event that was read is of this attempt, and `record` has not said it.

        Each event is asked for once.
        """
        own = self.claim.epoch if self.claim else None
        is_of_attempt = event["attempt"] in (None, self.attempt)
        if event.get("epoch") not in (None, own) or not is_of_attempt:
            return False
        with suppress(ValueError):
            self._said.remove(_key(event))
            return False
        return True

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


def _key(event: Mapping[str, Any]) -> tuple[int | None, str, str]:
    return event["attempt"], event["kind"], event["sentence"]
