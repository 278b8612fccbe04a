"""How soon page, terminal, metrics and webhook of a real run say what the head knows.

The page is open in a real Chromium, `rollcall events -f` runs in a terminal of its own, the metrics
are scraped each second, and a real HTTP server takes the webhook's messages. All of them and the
head have one clock.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
from playwright.sync_api import Page, expect, sync_playwright
from prometheus_client.parser import text_string_to_metric_families

from contract.launch.programs import Program
from entrypoint.cluster.access import page_link
from entrypoint.processes.programs import program
from entrypoint.run import token as run_token
from tests.support.hook_server import Hook
from tests.support.node_cluster import HEAD, Cluster
from tests.support.terminal import in_terminal
from tests.support.waiting import eventually

SCRAPE_SECONDS = 1.0
NEVER = float("inf")
PLACES = ("page", "terminal", "metric", "webhook")
WATCHES = """() => {
  window.seen = {};
  const look = () => {
    for (const line of document.querySelectorAll("#events li")) {
      const key = line.querySelector("time").title + " " + line.querySelector("span").textContent;
      window.seen[key] ??= Date.now() / 1000;
    }
  };
  new MutationObserver(look).observe(document.getElementById("events"), {childList: true});
  look();
}"""
"""Notes when each event is on the page: its time and its sentence → seconds of the epoch."""


@dataclass(slots=True)
class Watchers:
    tab: Page
    hook: Hook
    _lines: list[tuple[float, str]] = field(default_factory=list)
    """When each line came in the terminal."""
    _scrapes: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def metric(self, name: str) -> float:
        """Return the newest value of a sample, such as `rollcall_failures_total hang`; else 0."""
        return self._scrapes[-1][1].get(name, 0.0)

    def told(self, event: Mapping[str, Any], metric: str, before: float) -> dict[str, float]:
        """Return the seconds from an event of the journal until each place says it; else NEVER.

        `before`: the metric's value before the fault.
        """
        at = datetime.fromisoformat(event["at"]).timestamp()
        found = {
            "page": self._on_page(event),
            "terminal": [when for when, line in self._lines if event["sentence"] in line],
            "metric": [when for when, row in self._scrapes if row.get(metric, 0.0) != before],
            "webhook": [
                when
                for when, message in zip(self.hook.taken_at, self.hook.taken, strict=True)
                if (message["at"], message["kind"]) == (event["at"], event["kind"])
            ],
        }
        earliest = at - 0.001  # the time of an event is in whole milliseconds
        return {
            place: min((when - at for when in times if when >= earliest), default=NEVER)
            for place, times in found.items()
        }

    def _on_page(self, event: Mapping[str, Any]) -> list[float]:
        key = f"{event['at']} {event['node']}: {event['sentence']}"
        when = self.tab.evaluate("key => window.seen[key] ?? null", key)
        return [] if when is None else [float(when)]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Callable[[Cluster], object]
    kind: str
    """The kind of the event by which the head says what it knows."""
    metric: str
    """The sample that then changes."""
    mend: Callable[[Cluster], object] = lambda cluster: None
    ends_attempt: bool = True


def measured(fault: Fault, cluster: Cluster, watchers: Watchers) -> dict[str, float]:
    """Inject the fault; return the seconds until each of PLACES says it."""
    before, events = watchers.metric(fault.metric), len(cluster.events(fault.kind))
    fault.act(cluster)
    event = cluster.event(fault.kind, within=240, after=events)
    with suppress(AssertionError):
        eventually(lambda: NEVER not in watchers.told(event, fault.metric, before).values())
    return watchers.told(event, fault.metric, before)


def mended(fault: Fault, cluster: Cluster, attempts: int) -> None:
    """Repair what does not repair itself, and wait until the run goes on after its fault.

    `attempts`: before the fault.
    """
    fault.mend(cluster)
    if fault.ends_attempt:
        cluster.resumes(attempts, within=240)
    else:
        cluster.goes_on(within=240)


@contextmanager
def watching(cluster: Cluster, hook: Hook) -> Iterator[Watchers]:
    """Watch a run that trains, in all places."""
    env = cluster.environment(HEAD)
    url = f"http://{env['ROLLCALL_BIND']}:{env['ROLLCALL_CONTROL_PORT']}"
    token = cluster.run.token.read_text().strip()
    over = threading.Event()
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        stack.callback(browser.close)
        tab = browser.new_page()
        tab.goto(page_link(url, run_token.read_only(token)))
        expect(tab.locator("#events li").first).to_be_visible(timeout=60_000)
        tab.evaluate(WATCHES)
        watchers = Watchers(tab, hook)
        follows = [*program(Program.ROLLCALL, "events", "-f")]
        _, terminal = stack.enter_context(in_terminal(follows, cluster.environment(HEAD)))
        threads = [
            threading.Thread(target=_read, args=(terminal, watchers._lines), daemon=True),
            threading.Thread(
                target=_scrape, args=(f"{url}/metrics", token, watchers._scrapes, over), daemon=True
            ),
        ]
        for thread in threads:
            thread.start()
        stack.callback(over.set)
        eventually(lambda: bool(watchers._lines and watchers._scrapes))
        yield watchers


def _read(terminal: int, lines: list[tuple[float, str]]) -> None:
    """Lines of the terminal, which is so wide that it breaks none."""
    rest = ""
    with suppress(OSError):
        while part := os.read(terminal, 65536):
            *whole, rest = (rest + part.decode(errors="replace")).split("\r\n")
            lines += [(time.time(), line) for line in whole]


def _scrape(
    url: str, token: str, rows: list[tuple[float, dict[str, float]]], over: threading.Event
) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        while not over.wait(SCRAPE_SECONDS):
            with suppress(httpx.HTTPError):
                text = client.get(url).raise_for_status().text
                rows.append((time.time(), _samples(text)))


def _samples(text: str) -> dict[str, float]:
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
