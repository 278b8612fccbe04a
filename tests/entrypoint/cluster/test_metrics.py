"""The head's metrics: what each says, and that a scrape of a large run is cheap."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from contract.journal import append_event, timestamp
from contract.journal_file.lines import line_of
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster import measurements
from entrypoint.cluster.measurements import Measuring
from entrypoint.cluster.prometheus import METRICS
from entrypoint.job.failures.policy import RestartBudget
from entrypoint.run.failure_classes import FailureClass
from entrypoint.run.flight_record.time_accounting import Tally
from tests.support.control import Head, answers, node_info
from tests.support.flight_events import Clock
from tests.support.waiting import eventually
from tests.support.watched_run import watched

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with watched(tmp_path_factory.mktemp("run")) as head:
        yield head


def scraped(head: Head) -> Found:
    return named(head.get("/metrics").text)


def named(text: str) -> Found:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Found, name: str, **labels: str) -> float:
    return found[f"rollcall_{name}", frozenset(labels.items())]


def test_every_metric_is_exported_under_its_name(head: Head) -> None:
    assert {name for name, _ in scraped(head)} == {f"rollcall_{name}" for name in METRICS}
    answer = head.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_every_number_of_the_progress_is_a_metric() -> None:
    others = {"at", "eval_is_reward", "eval_step", "is_logged"}
    assert {one.name for one in fields(Progress)} - others <= set(METRICS)


def test_counters_end_in_total_and_nothing_else_does(head: Head) -> None:
    for family in text_string_to_metric_families(head.get("/metrics").text):
        names = {sample.name for sample in family.samples}
        assert all(name.endswith("_total") for name in names) == (family.type == "counter")
        assert family.documentation


def test_the_metrics_say_what_the_run_has_told(head: Head) -> None:
    found = scraped(head)
    assert value(found, "node_up", node="head", role="head") == 1
    assert value(found, "node_up", node="w1", role="worker") == 1
    assert value(found, "node_up", node="w2", role="worker") == 0
    assert value(found, "node_gpus", node="w1") == 8
    assert value(found, "node_gpu_memory_bytes", node="w1") == 80e9
    assert value(found, "node_check_warning", node="w2", check="gpu.ecc") == 1
    assert value(found, "node_change", node="w1", kind="pcie-width", part="GPU 3") == 1
    assert value(found, "rank_slowness", role="policy", rank="2", node="w1") == 1.31
    assert value(found, "slow_node_stays", node="w1", why="no-spare") == 1
    assert value(found, "slow_nodes_replaced_total") == 0
    assert value(found, "phase", phase="training") == 1
    assert value(found, "outcome", outcome="failed") == 0
    assert value(found, "step") == 2, "the newest attempt has gone back to it"
    assert value(found, "attempts_total") == 3
    assert value(found, "failures_total", failure="gpu_fault") == 1
    assert value(found, "failures_total", failure="hang") == 1
    assert value(found, "repairs_total", repair="engine-replaced") == 1
    assert value(found, "repairs_total", repair="rank-replaced") == 0
    assert value(found, "repairs_total", repair="service") == 0
    assert value(found, "refusals_total") == 1
    assert value(found, "tokens_total") == 3000
    assert value(found, "restarts_allowed") == 3
    assert value(found, "restarts_left") == 2  # the first attempt had new steps
    assert value(found, "step_phase_seconds", phase="generate") == 3
    assert value(found, "peak_memory_bytes", phase="policy_update") == 61.5e9
    assert value(found, "reward_call_seconds") == 0.25
    assert 0 < value(found, "run_dir_free_bytes") < value(found, "run_dir_size_bytes")
    for name in ("start", "last_step", "last_checkpoint"):
        assert abs(value(found, f"{name}_timestamp_seconds") - time.time()) < 60
    assert value(found, "last_failure_timestamp_seconds", failure="hang") < time.time()


def test_a_run_that_has_told_no_step_has_no_share_of_effective_time(tmp_path: Path) -> None:
    """An alert on a share of 0 would fire for each cluster that waits for a job."""
    with Head(tmp_path).control as control:
        append_event(RunFiles(tmp_path).journal, "start", "this is the head")
        names = {name for name, _ in named(control._scraped())}
    assert "rollcall_start_timestamp_seconds" in names
    assert "rollcall_effective_time_ratio" not in names


@given(
    st.lists(st.tuples(st.sampled_from([FailureClass.HANG, FailureClass.UNKNOWN]), st.booleans()))
)
def test_the_restart_budget_is_counted_as_the_supervisor_counts_it(
    attempts: list[tuple[FailureClass, bool]],
) -> None:
    budget, clock, tally, step = RestartBudget(3), Clock(), Tally(), 0
    clock.then(0, "start")
    for number, (failure, progressed) in enumerate(attempts, 1):
        budget.after(failure, progressed=progressed)
        clock.begins(number, step)
        clock.steps(number, *([step, step + 1] if progressed else [step]))
        step += progressed
        clock.then(1, "failure", number, failure=failure)
    for row in clock.rows:
        tally.add(clock.at, row["kind"], row["details"])
    assert tally.attempts_without_progress == budget.attempts_without_progress


STEPS = 100_000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """A journal and metrics of 100,000 steps."""
    run = RunFiles(tmp_path_factory.mktemp("long"))
    event = {"at": timestamp(0), "node": "head", "epoch": 1, "attempt": 1, "sentence": "…"}
    with run.journal.open("wb") as file:
        for step in range(1, STEPS + 1):
            row = {**event, "kind": "step", "details": {"step": step, "tokens": 10}}
            file.write(line_of(row) + b"\n")
    row = {f"timing/{name}": 1.0 for name in ("generate", "reward", "update", "step")}
    with run.metrics.open("w") as lines:
        for step in range(1, STEPS + 1):
            lines.write(json.dumps({"step": step, **row}) + "\n")
    return run


def read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_scrape_of_a_long_run_reads_only_what_is_new(long_run: RunFiles) -> None:
    measuring = Measuring()
    while (found := measuring.of(long_run)).tally is None:
        pass
    assert found.tally.tokens == 10 * STEPS
    append_event(long_run.journal, "step", "one more", {"step": STEPS + 1, "tokens": 10})
    before = read_bytes()
    found = measuring.of(long_run)
    assert read_bytes() - before < 2**20 < long_run.journal.stat().st_size / 10
    assert found.tally is not None
    assert found.tally.tokens == 10 * (STEPS + 1)
    assert found.row["timing/generate"] == 1.0


def test_what_one_scrape_has_is_not_changed_by_the_next(tmp_path: Path) -> None:
    run, measuring = RunFiles(tmp_path), Measuring()
    append_event(run.journal, "failure", "…", {"failure": "hang"})
    first = measuring.of(run).tally
    append_event(run.journal, "failure", "…", {"failure": "gpu_fault"})
    second = measuring.of(run).tally
    assert first
    assert second
    assert (dict(first.failures), len(second.failures)) == ({"hang": 1}, 2)
    assert set(first.failed) == {"hang"}


def test_a_journal_that_is_not_read_to_its_end_gives_no_wrong_sums(
    long_run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "READ_SECONDS", 0.0)
    measuring = Measuring()
    assert measuring.of(long_run).tally is None
    for _ in range(100):
        if tally := measuring.of(long_run).tally:
            break
    assert tally
    assert tally.tokens >= 10 * STEPS


def test_a_journal_that_is_replaced_and_events_of_an_older_head_are_counted_right(
    tmp_path: Path,
) -> None:
    run, measuring = RunFiles(tmp_path), Measuring()
    event = {"at": timestamp(0), "node": "h", "attempt": 1, "kind": "attempt", "sentence": "…"}

    def write(*epochs: int) -> None:
        run.journal.unlink(missing_ok=True)
        lines = [line_of({**event, "epoch": epoch, "details": {}}) for epoch in epochs]
        run.journal.write_bytes(b"".join(line + b"\n" for line in lines))

    def attempts() -> int:
        tally = measuring.of(run).tally
        assert tally
        return tally.attempts

    assert attempts() == 0
    write(1, 2, 1, 2)
    assert attempts() == 3
    write(5)
    assert attempts() == 1
    assert attempts() == 1


def test_a_thousand_nodes_are_shown_in_time(tmp_path: Path) -> None:
    head = Head(tmp_path)
    with head.control:
        eventually(lambda: answers(head.port))
        for number in range(1000):
            info = node_info(f"w{number}", f"127.1.{number // 250}.{number % 250 + 1}")
            head.control._registry.check_in(replace(info, joined=True), "")
        began = time.monotonic()
        text = head.get("/metrics").text
        assert time.monotonic() - began < 2
        assert text.count("rollcall_node_up{") == 1001
