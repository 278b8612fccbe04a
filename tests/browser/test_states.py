"""What the page says first in each state of a run: whether it is well, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from contract.journal import EventSource, append_event, timestamp
from contract.journal_file.lines import line_of
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.roll import MissingWorker
from entrypoint.cluster.server import HeadPhase
from entrypoint.run.flight_record import run_end
from entrypoint.run.lost_head import Failover
from tests.support.accessible import DESKTOP, PHONE, is_for_everyone
from tests.support.control import Head, asking, node_info

pytestmark = pytest.mark.browser
FIRST_OF = """ids => {
  const top = id => document.getElementById(id).getBoundingClientRect().top;
  return ids.sort((one, other) => top(one) - top(other))[0];
}"""
"""The element that is the highest on the page."""
FIRST, SECOND = EventSource(attempt=1), EventSource(attempt=2)


def opened(head: Head, tab: Page) -> None:
    tab.goto(head.link(controls=True))


def trains(head: Head) -> None:
    """All nodes are there, and all is well."""
    registry = head.control._registry
    registry.expected = 1
    registry.check_in(replace(node_info("gpu-1"), joined=True), "")
    registry.poll_opened("gpu-1")
    Progress(step=5, total_steps=10, attempt=1, reward=0.5, checkpoint=4).write(head.run.progress)
    head.run.metrics.write_text('{"step": 5, "train/reward": 0.5, "eval/acc": 0.5}\n')
    append_event(head.run.journal, "attempt", "attempt 1 starts", source=FIRST)
    head.control.phase = HeadPhase.TRAINING


def fails(head: Head) -> None:
    """A node is silent, another was refused."""
    trains(head)
    registry = head.control._registry
    registry.expected = 2
    entry = registry._entries["gpu-1"]
    registry.poll_closed(entry, hung_up=True)
    registry.check_in(node_info("gpu-2", python="3.9.0"), "")


def recovers(head: Head) -> None:
    trains(head)
    journal = head.run.journal
    append_event(journal, "failure", "hang: no step for 9 min", {"failure": "hang"}, source=FIRST)
    append_event(journal, "decision", "resuming from step 4", source=FIRST)
    head.control.phase = HeadPhase.RECOVERING


def recovers_without_a_node(head: Head) -> None:
    recovers(head)
    registry = head.control._registry
    registry.poll_closed(registry._entries["gpu-1"], hung_up=True)


def starts_again(head: Head) -> None:
    """The second attempt has told no step yet; the first one had a speed."""
    recovers(head)
    Progress(step=5, total_steps=10, attempt=1, tokens_per_second=2490.0, eta_seconds=90.0).write(
        head.run.progress
    )
    append_event(head.run.journal, "attempt", "attempt 2 starts", source=SECOND)
    head.control.phase = HeadPhase.TRAINING


def runs_a_command(head: Head) -> None:
    """A command whose log tells no steps."""
    trains(head)
    head.run.progress.unlink()
    head.run.journal.unlink()
    details = {"tells_steps": False}
    append_event(head.run.journal, "attempt", "attempt 1 starts", details, source=FIRST)


def is_followed(head: Head) -> None:
    """A worker takes the head's place if it is lost."""
    trains(head)
    failover = Failover.of_head(300.0, "").as_dict()
    append_event(head.run.journal, "start", "this is the head", {"failover": failover})
    append_event(head.run.journal, "check-in", "worker-1 checked in", {"node": "worker-1"})


def waits_for_storage(head: Head) -> None:
    trains(head)
    head.control.phase = HeadPhase.AWAITING_STORAGE


def waits_for_ray(head: Head) -> None:
    trains(head)
    head.control.phase = HeadPhase.AWAITING_RAY


def fails_in_vain(head: Head) -> None:
    """Two attempts in a row have made no step."""
    starts_again(head)
    details = {"failure": "not_taken"}
    append_event(head.run.journal, "failure", "not_taken: no agent", details, source=SECOND)
    append_event(head.run.journal, "attempt", "attempt 3", source=EventSource(attempt=3))


def ends(outcome: str, exit_code: int) -> Callable[[Head], None]:
    def end(head: Head) -> None:
        trains(head)
        sentence, details = "this is how it ended", {"outcome": outcome}
        append_event(head.run.journal, "outcome", sentence, details, source=FIRST)
        head.control.announce(outcome, exit_code)

    return end


@dataclass(frozen=True)
class Case:
    arrange: Callable[[Head], object]
    word: str
    verdict: str
    dies: bool = False
    sentence: str = ""


CASES = {
    "empty": Case(lambda head: None, "Starting", "1 warning below."),
    "training": Case(trains, "Training", "All is well: nothing to do."),
    "no steps": Case(runs_a_command, "Running", "All is well: nothing to do."),
    "failing": Case(fails, "Training", "2 things to repair: see below."),
    "recovering": Case(recovers, "Recovering", "It recovers by itself: nothing to do yet."),
    "a node is away": Case(
        recovers_without_a_node, "Recovering", "It recovers by itself: nothing to do yet. If it"
    ),
    "starting again": Case(starts_again, "Attempt 2: starting, no step yet", "1 warning below."),
    "in vain": Case(fails_in_vain, "Attempt 3: starting, no step yet", "1 thing to repair: see"),
    "no Ray": Case(waits_for_ray, "Waiting for Ray to take the job", "1 thing to repair: see"),
    "no storage": Case(waits_for_storage, "Waiting for storage", "1 thing to repair: see below."),
    "dead": Case(trains, "Head lost", "Start the head again.", dies=True),
    "followed": Case(
        is_followed,
        "Head lost",
        "Nothing to do yet: a worker takes the head's place.",
        dies=True,
        sentence="after 5 min of silence (ROLLCALL_HEAD_FAILOVER)",
    ),
    "stopped": Case(ends("stopped", 143), "Stopped", "The run was stopped. Started again"),
    "failed": Case(ends("failed", 73), "Failed", "Look at the run directory's storage"),
    "finished": Case(ends("finished", 0), "Finished", "The run has finished: nothing to do."),
}


@pytest.mark.parametrize("name", CASES)
def test_each_state_says_what_to_do_to_everyone(head: Head, tab: Page, name: str) -> None:
    case = CASES[name]
    case.arrange(head)
    opened(head, tab)
    if case.dies:
        expect(tab.locator("#state")).to_have_text("Training")
        head.control.__exit__()
    expect(tab.locator("#state")).to_have_text(case.word)
    expect(tab.locator("#verdict")).to_contain_text(case.verdict)
    expect(tab.locator("#sentence")).to_contain_text(case.sentence)
    if case.arrange is runs_a_command:
        expect(tab.locator("#samples-title")).to_be_hidden()
    for width, height in (PHONE, DESKTOP):
        tab.set_viewport_size({"width": width, "height": height})
        below = tab.locator("#verdict").bounding_box()
        assert below is not None
        assert below["y"] + below["height"] < height / 3
    is_for_everyone(tab)


def test_the_speed_of_a_dead_attempt_is_not_shown(head: Head, tab: Page) -> None:
    starts_again(head)
    opened(head, tab)
    expect(tab.locator("#facts")).to_contain_text("5 of 10")
    expect(tab.locator("#facts")).to_contain_text("Failures so far")
    for stale in ("2490", "Time left", "Tokens/s"):
        expect(tab.locator("#facts")).not_to_contain_text(stale)


def test_nothing_of_a_lost_head_looks_live_and_the_command_that_starts_it_is_shown(
    head: Head, tab: Page
) -> None:
    trains(head)
    progress = Progress(step=5, total_steps=10, attempt=2, step_seconds=3.0)
    replace(progress, tokens_per_second=2490.0, eta_seconds=90.0).write(head.run.progress)
    again = "cd /job && rollcall up --run_dir '/runs/my run'"
    append_event(head.run.journal, "start", "this is the head", {"resume": again})
    append_event(head.run.journal, "attempt", "attempt 2 starts", source=SECOND)
    opened(head, tab)
    expect(tab.locator("#facts")).to_contain_text("Time left")
    expect(tab.locator("#attempts li").first).to_contain_text("· runs")
    expect(tab.locator("#resume")).to_be_hidden()
    head.control.__exit__()
    expect(tab.locator("#state")).to_have_text("Head lost")
    expect(tab.locator("#facts")).to_contain_text("5 of 10")
    for stale in ("2490", "Time left", "Step time"):
        expect(tab.locator("#facts")).not_to_contain_text(stale)
    expect(tab.get_by_role("button", name="Save and stop…")).to_be_hidden()
    expect(tab.locator("#attempts li").first).to_contain_text("· head_lost")
    expect(tab.locator("#resume code")).to_have_text(again)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_failed_run_shows_the_cause_and_the_end_of_the_last_attempts_log(
    head: Head, tab: Page, is_told: bool
) -> None:
    recovers(head)
    cause, place = "ValueError: expected hidden size 64", "/job/model.py:12"
    head.run.logs.mkdir(exist_ok=True)
    lines = [f"line {number}" for number in range(300)]
    (head.run.logs / "attempt-2.log").write_text("\n".join([*lines, cause]))
    append_event(head.run.journal, "attempt", "attempt 2 starts", source=SECOND)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Recovering")
    failure = {"failure": "unknown", "evidence": cause, "place": place}
    append_event(head.run.journal, "failure", f"unknown: {cause}", failure, source=SECOND)
    details = {"outcome": "failed", "exit_code": 70}
    append_event(head.run.journal, "outcome", "the job has failed", details, source=SECOND)
    found = {"gpu.clock": "WARN gpu.clock: 900 MHz → look at its cooling"}
    info = replace(node_info("gpu-1"), joined=True, warnings=tuple(found), findings=found)
    head.control._registry.check_in(info, "")
    if is_told:  # else the page has it from the journal first
        head.control.announce("failed", 70, run_end.read(head.run))
    expect(tab.locator("#verdict")).to_have_text(re.compile(f"^{cause}, in {place}\\. [A-Za-z]"))
    expect(tab.locator("#verdict")).not_to_contain_text("undefined")
    head.control.announce("failed", 70, run_end.read(head.run))
    items = tab.get_by_role("region", name="Needs attention").get_by_role("listitem")
    expect(items.first).to_have_text(re.compile(r"attempt 1 failed, too, at .*: hang: no step"))
    expect(items).to_have_text([re.compile("^attempt 1"), f"gpu-1: {found['gpu.clock']}"])
    expect(items).to_have_class(["bad", "warn"])
    expect(tab.locator("#log")).to_contain_text(cause)
    assert tab.evaluate("log => log.scrollTop > 0", tab.locator("#log").element_handle())
    assert tab.evaluate(FIRST_OF, ["of-logs", "curves", "of-nodes"]) == "of-logs"


def test_an_open_page_has_cause_and_log_of_a_head_that_ends_at_once(head: Head, tab: Page) -> None:
    trains(head)
    head.run.logs.mkdir(exist_ok=True)
    (head.run.logs / "attempt-1.log").write_text("KeyError: 'corect'\n")
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    failure = {"failure": "code", "evidence": "KeyError: 'corect'", "place": "/job/model.py:12"}
    append_event(head.run.journal, "failure", "code: KeyError", failure, source=FIRST)
    details = {"outcome": "failed", "exit_code": 70}
    append_event(head.run.journal, "outcome", "the code failed", details, source=FIRST)
    head.control.announce("failed", 70, run_end.read(head.run))
    head.control.wait_until_acknowledged(5)
    head.control.__exit__()
    expect(tab.locator("#log")).to_contain_text("KeyError: 'corect'")
    expect(tab.locator("#verdict")).to_contain_text("Correct the line")
    expect(tab.locator("#facts")).to_contain_text("Failures1")


def test_a_run_that_ended_with_its_head_before_any_failure_says_where_to_look(
    head: Head, tab: Page
) -> None:
    trains(head)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    details = {"outcome": "failed", "exit_code": 69}
    append_event(head.run.journal, "outcome", "workers are missing", details, source=FIRST)
    expect(tab.locator("#state")).to_have_text("Failed")
    told = f"rollcall report {head.run.root} says what to do."
    expect(tab.locator("#verdict")).to_have_text(told)
    expect(tab.locator("#resume")).to_be_hidden()


def test_what_many_nodes_have_in_common_is_said_once(head: Head, tab: Page) -> None:
    trains(head)
    registry = head.control._registry
    registry.expected = 21
    slow = {"gpu.clock": "WARN gpu.clock: 900 MHz → look at its cooling"}
    for number in range(100, 120):
        info = node_info(f"gpu-{number}")
        well = number < 110
        found = replace(info, warnings=() if well else tuple(slow), findings={} if well else slow)
        registry.check_in(replace(found, joined=True), "")
        entry = registry.poll_opened(info.node)
        if well and entry:
            registry.poll_closed(entry, hung_up=True)
    opened(head, tab)
    items = tab.get_by_role("region", name="Needs attention").get_by_role("listitem")
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text("10 nodes (gpu-100, gpu-101, gpu-102, …) are silent")
    expect(items.last).to_contain_text("10 nodes (gpu-110, gpu-111, gpu-112, …); the first says")
    expect(items.last).to_contain_text("look at its cooling")


def test_nodes_that_start_ray_are_on_their_way(head: Head, tab: Page) -> None:
    registry = head.control._registry
    registry.expected = 1
    registry.check_in(node_info("gpu-1"), "")
    registry.poll_opened("gpu-1")
    head.control.phase = HeadPhase.STARTING
    opened(head, tab)
    expect(tab.locator("#verdict")).to_have_text("No fault so far: nothing to do yet.")
    expect(tab.get_by_role("region", name="Needs attention")).to_be_hidden()
    expect(tab.locator("#counts")).to_contain_text("1 starting Ray")
    registry.expected = 2
    attention = tab.get_by_role("region", name="Needs attention")
    expect(attention.get_by_role("listitem")).to_contain_text("1 worker not checked in yet")


def test_the_page_shows_a_missing_worker_once_whatever_the_words_about_it_are(
    head: Head, tab: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MissingWorker, "__str__", lambda worker: f"{worker.absence}, we think")
    trains(head)
    registry = head.control._registry
    registry.expected = 5
    for name in ("silent", "starts"):
        registry.check_in(replace(node_info(name), joined=name == "silent"), "")
        entry = registry.poll_opened(name)
        assert entry is not None
        if name == "silent":
            registry.poll_closed(entry, hung_up=True)
    registry.check_in(node_info("other", python="3.9.0"), "")
    opened(head, tab)
    items = tab.get_by_role("region", name="Needs attention").get_by_role("listitem")
    for text in ("silent has been silent", "other was refused", "starting-ray, we", "unknown, we"):
        expect(items.filter(has_text=text)).to_have_count(1)
    expect(items).to_have_count(4)


def test_a_finding_that_a_few_nodes_share_is_one_line(head: Head, tab: Page) -> None:
    trains(head)
    registry = head.control._registry
    registry.expected = 3
    found = {"host.nofile": "WARN host.nofile: open files: 1024 → raise them"}
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        said = {"host.nofile": "WARN host.nofile: open files: 2048"} if name == "gpu-3" else found
        info = replace(node_info(name), joined=True, warnings=tuple(said), findings=said)
        registry.check_in(info, "")
        registry.poll_opened(name)
    opened(head, tab)
    items = tab.get_by_role("region", name="Needs attention").get_by_role("listitem")
    both, one = found["host.nofile"], said["host.nofile"]
    expect(items).to_have_text([f"gpu-1, gpu-2: {both}", f"gpu-3: {one}"])


def test_a_failure_of_the_last_hour_needs_attention_with_the_heads_answer(
    head: Head, tab: Page
) -> None:
    recovers(head)
    append_event(head.run.journal, "attempt", "attempt 2 starts from step 4", source=SECOND)
    Progress(step=6, total_steps=10, attempt=2, at=timestamp()).write(head.run.progress)
    append_event(head.run.journal, "engine-replaced", "engine 1 is there again", source=SECOND)
    head.control.phase = HeadPhase.TRAINING
    opened(head, tab)
    attention = tab.get_by_role("region", name="Needs attention")
    expect(attention).to_contain_text("hang: no step for 9 min. The head's answer: resuming from")
    expect(tab.locator("#verdict")).to_have_text("Running. 1 warning below.")
    attempts = tab.get_by_role("list", name="Attempts").get_by_role("listitem")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("Attempt 2 · ")
    expect(attempts.first).to_contain_text("runs · 1 repair")
    expect(attempts.last).to_contain_text("· hang")


def test_an_attempt_whose_head_was_lost_does_not_run_for_ever(head: Head, tab: Page) -> None:
    trains(head)
    append_event(head.run.journal, "start", "this is the head")
    append_event(head.run.journal, "attempt", "attempt 2 starts from step 4", source=SECOND)
    opened(head, tab)
    attempts = tab.get_by_role("list", name="Attempts").get_by_role("listitem")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("· runs")
    expect(attempts.last).to_contain_text("· head_lost")


def test_what_costs_nothing_now_is_not_red(head: Head, tab: Page) -> None:
    """A refused node while all workers are there, and steps whose duration nobody tells."""
    trains(head)
    old = "2026-01-01T00:00:00+00:00"
    Progress(step=5, loss=0.51234, eval=-1.324, at=old).write(head.run.progress)
    head.control._registry.check_in(node_info("gpu-2", python="3.9.0"), "")
    opened(head, tab)
    expect(tab.locator("#verdict")).to_have_text("1 warning below.")
    expect(tab.locator("#attention li.warn")).to_contain_text("gpu-2 was refused: ")
    expect(tab.locator("#facts")).to_contain_text("0.5123")
    expect(tab.locator("#facts")).to_contain_text("Held-out reward")
    expect(tab.locator("#facts")).to_contain_text("-1.324")


def long_ago(run: RunFiles) -> None:
    """A failure of two days ago, and more checkpoints since than the page keeps."""
    began = datetime.now(UTC) - timedelta(days=2)

    def line(number: int, kind: str, details: dict[str, object]) -> bytes:
        event = {
            "at": (began + timedelta(seconds=number)).isoformat(timespec="milliseconds"),
            "node": "head",
            "attempt": 1,
            "kind": kind,
            "sentence": f"{kind} of long ago",
            "details": details,
        }
        return line_of(event) + b"\n"

    with run.journal.open("ab") as journal:
        journal.write(line(0, "failure", {"failure": "hang"}))
        journal.writelines(line(number, "checkpoint", {"step": number}) for number in range(600))


def test_the_timeline_has_old_faults_in_spite_of_newer_routine(head: Head, tab: Page) -> None:
    long_ago(head.run)
    trains(head)
    opened(head, tab)
    events = tab.locator("#events li")
    expect(events).to_have_count(2)
    day = (datetime.now().astimezone() - timedelta(days=2)).day
    expect(events.last).to_contain_text("failure of long ago")
    expect(events.last.locator("time")).to_contain_text(str(day))
    expect(tab.get_by_role("region", name="Needs attention")).to_be_hidden()
    tab.get_by_label("other routine, too").check()
    expect(events).to_have_count(200)
    expect(events.nth(1)).to_contain_text("checkpoint of long ago")


def test_storage_that_fails_is_no_lost_head(head: Head, tab: Page) -> None:
    trains(head)
    opened(head, tab)
    expect(tab.locator("#verdict")).to_have_text("All is well: nothing to do.")
    head.run.progress.unlink()
    head.run.progress.mkdir()
    alert = tab.get_by_role("alert")
    expect(alert).to_contain_text("it has not been able to read the run since")
    expect(alert).to_contain_text("Is a directory")
    expect(tab.locator("#verdict")).to_have_text("Look at the run directory's storage.")
    expect(tab.locator("#state")).to_have_text("Training")
    head.run.progress.rmdir()
    expect(alert).to_be_hidden()


def test_a_key_that_opens_nothing_any_more_is_no_lost_head(head: Head, tab: Page) -> None:
    """Another run, or this one with a new token, may be at the address."""
    trains(head)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    tab.route("**/v1/state*", lambda route: route.fulfill(status=401, json={"error": "no"}))
    expect(tab.locator("#state")).to_have_text("Key refused")
    tab.wait_for_timeout(10_000)  # longer than until a head counts as lost
    expect(tab.locator("#state")).to_have_text("Key refused")
    expect(tab.get_by_role("alert")).to_contain_text("this page's key does not open its run")
    expect(tab.locator("#verdict")).to_have_text("Open the page by a new link: rollcall open.")
    tab.unroute("**/v1/state*")
    expect(tab.locator("#state")).to_have_text("Training")
    expect(tab.get_by_role("alert")).to_be_hidden()


def test_a_nodes_log_is_one_key_away(head: Head, tab: Page) -> None:
    trains(head)
    head.run.logs.mkdir()
    (head.run.logs / "worker-gpu-1.log").write_text("before\n" * 100 + "what gpu-1 says\n")
    tab.set_viewport_size({"width": 390, "height": 844})
    opened(head, tab)
    button = tab.get_by_role("button", name="Log of gpu-1")
    button.focus()
    head.client().check_in(replace(node_info("gpu-1"), joined=True, warnings=("gpu.clock",)))
    with asking(head, "gpu-1"):
        expect(tab.locator("#nodes")).to_contain_text("gpu.clock")
    expect(button).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("log")).to_contain_text("what gpu-1 says\n")
    expect(tab.get_by_role("log")).to_be_focused()
    expect(tab.get_by_role("log")).to_be_in_viewport(ratio=0.99)  # but for a part of a pixel
    expect(tab.get_by_role("combobox", name="Log")).to_have_value("worker-gpu-1")
