"""The frame of the preflight: verdicts, time limits, exit codes, and what is left out."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint.cluster import request_format
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.config.settings import PreflightMode
from entrypoint.machine.view import Machine
from entrypoint.preflight import host, show
from entrypoint.preflight.check import Check, Context, Report, Result
from entrypoint.preflight.run import CHECKS, run_checks
from entrypoint.preflight.verdict import Finding, Verdict, worst

HEAD = Head(1, 1, "a test")
PASSING = Check("t.passes", "?", lambda _: Finding(Verdict.PASS, "fine"))
WARNING = Check("t.warns", "?", lambda _: Finding(Verdict.WARN, "low", "add some"))
FAILING = Check("t.fails", "?", lambda _: Finding(Verdict.FAIL, "none", "buy [one]"))
SKIPPING = Check("t.skips", "?", lambda _: Finding(Verdict.SKIP, "nothing to look at"))
PASSING_BY = Check("t.busy", "?", lambda _: Finding(Verdict.FAIL, "taken", "wait", passes=True))
STORAGE = replace(FAILING, name="t.storage", exit_code=ExitCode.RUN_DIR)


def report(*checks: Check, **environ: str) -> Report:
    return run_checks(HEAD, read_settings(environ), checks)


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What a probe may wait for in vain; the threads are let go at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("load", "evidence", "remedy"),
    [
        (1, "no answer within 0.05 s", "find out what hangs behind the question: is it there?"),
        (
            50,
            "no answer within 0.1 s: the machine may be too busy (load 50 on 2 CPUs)",
            "or add t.hangs to ROLLCALL_PREFLIGHT_SKIP",
        ),
    ],
)
def test_a_probe_that_hangs_fails_its_check(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch, load: float, evidence: str, remedy: str
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def probe(_: Context) -> Finding:
        hang.wait()
        return Finding(Verdict.PASS, "too late")

    check = Check("t.hangs", "is it there?", probe, timeout=0.05)
    result = check.run(Context(HEAD, read_settings({})))
    assert (result.name, result.verdict) == (check.name, Verdict.FAIL)
    assert result.evidence.endswith(evidence)
    assert remedy in result.remedy
    assert check.question in result.remedy


def test_a_probe_on_a_busy_machine_has_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (5000.0, 0.0, 0.0))

    def probe(_: Context) -> Finding:
        time.sleep(0.7)
        return Finding(Verdict.PASS, "late")

    check = Check("t.late", "is it there?", probe, timeout=0.5)
    assert check.run(Context(HEAD, read_settings({}))).evidence == "late"


def test_checks_that_hang_cost_the_longest_timeout_and_not_the_sum(hang: threading.Event) -> None:
    def probe(_: Context) -> Finding:
        hang.wait()
        return Finding(Verdict.PASS, "too late")

    hanging = [Check(f"t.{number}", "?", probe, timeout=1.0) for number in range(10)]
    started = time.monotonic()
    told = report(*hanging, PASSING)
    assert time.monotonic() - started < 5
    assert len(told.fails) == 10
    assert told.results[-1].verdict is Verdict.PASS


def test_a_kernel_file_that_never_answers_is_a_failed_check(tmp_path: Path) -> None:
    """As a stale mount does: a FIFO that nobody writes blocks whoever opens it."""
    fifo = tmp_path / "self" / "cgroup"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    context = Context(HEAD, read_settings({}), Machine(proc=tmp_path))
    try:
        result = Check("host.memory", "is there memory?", host.memory, timeout=0.2).run(context)
    finally:
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    assert result.verdict is Verdict.FAIL


def test_a_probe_that_trips_cannot_tell_which_is_a_warning() -> None:
    def probe(_: Context) -> Finding:
        raise ZeroDivisionError("division by zero")

    (result,) = report(Check("t.trips", "?", probe)).results
    assert result.verdict is Verdict.WARN
    assert "ZeroDivisionError: division by zero" in result.evidence


@pytest.mark.parametrize(
    ("checks", "verdict", "exit_code"),
    [
        ((), "pass", 0),
        ((PASSING,), "pass", 0),
        ((PASSING, WARNING), "warn", 0),
        ((FAILING, WARNING), "fail", 76),
        ((STORAGE, WARNING), "fail", 73),
        ((STORAGE, FAILING), "fail", 73),
        ((PASSING_BY, WARNING), "fail", 75),
        ((PASSING_BY, FAILING), "fail", 76),
        ((PASSING_BY, STORAGE), "fail", 73),
    ],
)
def test_the_worst_verdict_is_the_reports_and_decides_how_the_node_ends(
    checks: tuple[Check, ...], verdict: str, exit_code: int
) -> None:
    told = report(*checks)
    assert (told.verdict, told.exit_code) == (verdict, exit_code)


def test_a_failed_check_is_only_shown_where_preflight_warns() -> None:
    told = report(FAILING, ROLLCALL_PREFLIGHT="warn")
    assert (told.verdict, told.exit_code) == (Verdict.FAIL, ExitCode.FINISHED)


def test_nothing_is_examined_where_preflight_is_off() -> None:
    told = report(FAILING, ROLLCALL_PREFLIGHT="off")
    assert (told.mode, told.results, told.exit_code) == (PreflightMode.OFF, (), 0)


def test_a_check_that_is_left_out_is_reported_as_skipped() -> None:
    failing = replace(FAILING, name="gpu.burn")
    told = report(failing, PASSING, ROLLCALL_PREFLIGHT_SKIP="gpu.burn")
    assert [result.verdict for result in told.results] == [Verdict.SKIP, Verdict.PASS]
    assert told.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("named", "nearest"),
    [("gpu.brun", "give gpu.burn"), ("node.clock", "give nodes.clock"), ("xyz", "give one of")],
)
def test_a_check_to_leave_out_that_does_not_exist_is_a_fault_with_the_nearest_name(
    named: str, nearest: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read_settings({"ROLLCALL_PREFLIGHT_SKIP": f"host.shm,{named}"})
    (fault,) = error.value.faults
    assert (fault.path, fault.value) == ("ROLLCALL_PREFLIGHT_SKIP", named)
    assert fault.remedy.startswith(nearest)


def test_what_loads_the_machine_runs_after_what_looks_at_it() -> None:
    order: list[str] = []

    def probe(name: str) -> Callable[[Context], Finding]:
        def note(_: Context) -> Finding:
            time.sleep(0.02)
            order.append(name)
            return Finding(Verdict.PASS, "fine")

        return note

    loading = Check("t.loads", "?", probe("loads"), loads=True)
    told = report(loading, *(Check(f"t.{n}", "?", probe("looks")) for n in range(3)))
    assert order == ["looks"] * 3 + ["loads"]
    assert told.results[0].name == "t.loads"


def test_checks_that_find_nothing_to_look_at_are_one_line() -> None:
    absent = [
        Check(f"gpu.{name}", "?", lambda _: Finding(Verdict.SKIP, "no GPU")) for name in "abc"
    ]
    told = report(*absent, PASSING)
    assert show.lines(told) == ["SKIP gpu.* (3 checks): no GPU", "PASS t.passes: fine"]
    assert len(told.as_dict()["checks"]) == 4


def test_a_node_that_is_well_says_so_in_one_line_and_what_is_not_in_full() -> None:
    said: list[str] = []
    show.say_report(report(PASSING, PASSING, SKIPPING), said.append, on_terminal=False)
    assert said == ["preflight: 2 passed, 1 skipped (rollcall doctor shows all)"]
    said.clear()
    show.say_report(report(PASSING, WARNING), said.append, on_terminal=False)
    assert said == [
        "WARN t.warns: low → add some",
        "preflight: 1 passed, 1 warning (rollcall doctor shows all)",
    ]
    said.clear()
    failed = report(FAILING, WARNING, SKIPPING, PASSING)
    show.say_report(failed, said.append, on_terminal=False)
    assert [line.split()[0] for line in said] == ["WARN", "FAIL", "preflight:"]
    assert said[1] == "FAIL t.fails: none → buy [one]"
    assert "1 passed, 1 warning, 1 failed, 1 skipped (rollcall doctor shows all)" in said[-1]


def test_what_a_node_says_of_its_checks_is_a_line_that_the_head_takes() -> None:
    odd = Check(
        "t.odd", "?", lambda _: Finding(Verdict.FAIL, "a\x1b[1mb\nc hunter2-hunter2", "x" * 999)
    )
    many = Check("t.many", "?", lambda _: Finding(Verdict.FAIL, "6379: Admin " * 99, "free them"))
    cut = show.not_well(report(many), [])["t.many"]
    assert set(cut.removeprefix("FAIL t.many: ").removesuffix(" …").split()) == {"6379:", "Admin"}
    assert cut.endswith(" …")
    said = show.not_well(report(PASSING, WARNING, odd, SKIPPING), ["hunter2-hunter2"])
    assert said["t.warns"] == "WARN t.warns: low → add some"
    assert said["t.odd"].startswith("FAIL t.odd: a [1mb c ******** → xxx")
    assert list(said) == ["t.odd", "t.warns"]
    body = json.dumps({"node": "a", "address": "10.0.0.1", "versions": {}, "findings": said})
    assert request_format.node_info(body.encode()).findings == said


def test_a_node_at_work_says_nothing_of_what_its_start_has_ended() -> None:
    left = Finding(Verdict.WARN, "left by an earlier life", ends_with_start=True)
    ends = Check("t.left", "?", lambda _: left)
    both = Check("t.both", "?", lambda _: worst([left, Finding(Verdict.WARN, "of another user")]))
    told = report(ends, both, WARNING)
    assert list(show.not_well(told)) == ["t.both", "t.warns"]
    assert [one.name for one in told.warnings] == ["t.left", "t.both", "t.warns"]
    assert "ends_with_start" not in told.as_dict()["checks"][0]


def test_the_report_comes_as_json_as_lines_and_as_a_table() -> None:
    told = report(PASSING, FAILING)
    row = json.loads(json.dumps(told.as_dict()))
    assert row["verdict"] == "fail"
    assert [set(check) for check in row["checks"]] == [
        {"name", "verdict", "evidence", "remedy", "seconds"}
    ] * 2
    assert show.lines(told) == ["PASS t.passes: fine", "FAIL t.fails: none → buy [one]"]
    screen = io.StringIO()
    Console(file=screen, width=120).print(show.table(told))
    assert "buy [one]" in screen.getvalue()


def test_the_names_of_checks_are_distinct_and_in_groups() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == {"host", "versions", "gpu", "fabric"}


def test_this_machine_passes_or_warns_with_evidence_for_each_check(tmp_path: Path) -> None:
    told = run_checks(HEAD, read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)}))
    assert [result.name for result in told.results] == [check.name for check in CHECKS]
    for result in told.results:
        assert isinstance(result, Result)
        assert result.evidence
        assert "could not tell" not in result.evidence
