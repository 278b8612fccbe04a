"""Tells a webhook of start, failures, warnings, recoveries and end of a run, from the journal.

All of it happens in a thread of its own, so that no server, however slow, holds up the run.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from contract.durations import duration
from contract.lease import Claim
from contract.redaction import redact
from contract.run_dir import RunFiles
from entrypoint.cluster.event_stream import next_events
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.run import run_facts
from entrypoint.run.failure_classes import for_people

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between looks at the journal."""
ANSWER_SECONDS = 5.0
"""Limit for one answer of the server."""
DEADLINE_SECONDS = 30.0
"""After it, a message that the server does not take is dropped."""
LAST_SECONDS = 3.0
"""For the rest of the messages when the head ends."""
MOST_WAITING = 50
"""Messages that wait for the server; the oldest are dropped."""
REPAIRED = ("engine-replaced", "head-moved", "node-back", "node-replaced", "rank-replaced")
"""Kinds of events that tell of a recovery within an attempt."""
WARNED = (
    *("engine-left-out", "node-lost", "oom-kill", "push-failed", "refused", "reward-server"),
    *("node-change", "node-needed", "rank-behind", "replace-failed", "service", "straggler"),
    *("straggler-replaced", "straggler-stays", "upload-failed"),
)
"""Kinds of events that tell of a loss that has ended no attempt."""
AGAIN_AFTER = timedelta(minutes=10)
"""A warning with the same kind and details, as of a node in a restart loop, is told again then."""

Message = dict[str, Any]


class DeclinedError(Exception):
    """The server does not want the message, now or later; the sentence says why."""


@dataclass(slots=True)
class News:
    """Makes messages of the events of one run."""

    run: str
    """The name of the run, or of the job."""
    _failed_at: datetime | None = None
    """When the newest attempt failed; None once a step has followed."""
    _warned: dict[str, datetime] = field(default_factory=dict)
    """Kind and details of a warning → when it was told last."""

    def of(self, event: Mapping[str, Any]) -> Message | None:
        """Return the message of an event; None if there is nothing to tell."""
        kind, at = event["kind"], datetime.fromisoformat(event["at"])
        sentence = event["sentence"]
        match kind:
            case "start":
                return self.message("start", event, sentence)
            case "failure":
                self._failed_at = at
                return self.message("failure", event, for_people(event["details"], sentence))
            case "step" if self._failed_at is not None:
                seconds = max(0.0, (at - self._failed_at).total_seconds())
                self._failed_at = None
                step = event["details"]["step"]
                text = f"the run goes on: step {step}, {duration(seconds)} after the failure"
                return self.message("recovery", event, text)
            case "outcome":
                text = f"{event['details']['outcome']}: {sentence}"
                return self.message("end", event, text)
        if kind in REPAIRED or event["details"].get("waits") is False:
            return self.message("recovery", event, sentence)
        if kind in WARNED and self._is_news(event, at):
            return self.message("warning", event, sentence)
        return None

    def _is_news(self, event: Mapping[str, Any], at: datetime) -> bool:
        """Note a warning; return whether none like it was told in the last AGAIN_AFTER."""
        self._warned = {
            known: told for known, told in self._warned.items() if at - told < AGAIN_AFTER
        }
        warning = json.dumps([event["kind"], event["details"]], sort_keys=True)
        if warning in self._warned:  # maybe of the same millisecond
            return False
        self._warned[warning] = at
        return True

    def message(self, what: str, event: Mapping[str, Any], text: str) -> Message:
        fields = {name: event[name] for name in ("at", "node", "attempt", "kind", "details")}
        return {"text": f"{self.run}: {text}", "event": what, "run": self.run, **fields}


@dataclass(slots=True)
class _Followed:
    journal: Path
    news: News
    offset: int = 0
    since: str = ""
    """Events from before this time were told by an earlier head."""
    ended: bool = False


class Follower:
    """Reads what the journals of a run and of its jobs have that is new."""

    def __init__(self, run: RunFiles, epoch: int) -> None:
        """What the journal has by now is old. `epoch`: events of other heads are theirs to tell."""
        self._run = run
        self._epoch = epoch
        self._name = run_facts.name(run)
        own = _Followed(run.journal, News(self._name))
        with suppress(FileNotFoundError):
            own.offset = run.journal.stat().st_size
        self._followed = {run.journal: own}

    def new(self) -> Iterator[Message]:
        """Yield the messages of all new events. Raises OSError, after those that could be read."""
        for one in list(self._followed.values()):  # a job's journal comes after the run's
            yield from self._read(one)
            if one.ended:
                del self._followed[one.journal]

    def _read(self, one: _Followed) -> Iterator[Message]:
        more = True
        while more:
            try:
                one.offset, entries, more = next_events(one.journal, one.offset)
            except FileNotFoundError:
                return
            for _, event in entries:
                if event.get("epoch") not in (None, self._epoch) or event["at"] < one.since:
                    continue
                if message := self._see(event) or one.news.of(event):
                    yield message

    def _see(self, event: Mapping[str, Any]) -> Message | None:
        """Follow a submitted job from its start to its end.

        Return the message of a job that has ended before it began: its own journal has none.
        """
        if not isinstance(job := event["details"].get("job"), str):
            return None
        journal, news = RunFiles(self._run.jobs / job).journal, News(f"{self._name}/{job}")
        if event["kind"] == "job-started":
            self._followed[journal] = _Followed(journal, news, since=event["at"])
        elif event["kind"] == "job-ended":
            if one := self._followed.get(journal):
                one.ended = True
            elif event["details"].get("outcome") in ("failed", "stopped"):
                return news.message("end", event, event["sentence"])
        return None


class Poster:
    """Posts messages, each with retries until its deadline."""

    def __init__(self, url: str) -> None:
        """Raises ImportError, ValueError and OSError: proxy or certificates cannot be used."""
        self._url = url
        self._http = httpx.Client(timeout=ANSWER_SECONDS)

    def post(self, message: Message, stop: threading.Event) -> None:
        """Raises DeclinedError, GaveUpError, InterruptedWaitError. None of them has the URL."""

        def tried() -> None:
            try:
                status = self._http.post(self._url, json=message).status_code
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise wait.NotYetError(type(error).__name__) from None
            if status == 429 or status >= 500:
                raise wait.NotYetError(f"it answers {status}")
            if status >= 300:
                raise DeclinedError(f"it answers {status}")

        wait.until(
            "the webhook to take a message",
            tried,
            timeout=DEADLINE_SECONDS,
            stop=stop,
            longest_pause=ANSWER_SECONDS,
        )


@contextmanager
def telling(settings: Settings, run: RunFiles, claim: Claim) -> Iterator[None]:
    """Tell ROLLCALL_WEBHOOK of the run until the block ends, and then of the rest, if in time."""
    if settings.webhook is None:
        yield
        return
    over, abandoned = threading.Event(), threading.Event()
    try:
        poster = Poster(settings.webhook.reveal())
    except (ImportError, ValueError, OSError) as error:
        log.warning("the webhook is told nothing of this run: %s", redact(str(error)))
        yield
        return
    follower = Follower(run, claim.epoch)
    thread = threading.Thread(
        target=_tell, args=(follower, poster, over, abandoned), name="webhook", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_SECONDS)
        abandoned.set()


def _tell(
    follower: Follower, poster: Poster, over: threading.Event, abandoned: threading.Event
) -> None:
    waiting: deque[Message] = deque(maxlen=MOST_WAITING)
    last = False
    while not last:
        last = over.wait(LOOK_SECONDS)
        try:
            waiting.extend(follower.new())
        except OSError as error:
            log.debug("the webhook's news cannot be read: %s", error)  # the next round reads them
        while waiting:
            message = waiting.popleft()
            try:
                poster.post(message, abandoned)
            except (wait.GaveUpError, DeclinedError) as error:
                log.warning("the webhook did not take the %s message: %s", message["event"], error)
            except wait.InterruptedWaitError:
                return
