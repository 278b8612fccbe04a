"""Four nodes that may lead a run: at most one writes, no finished step is lost, and it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.run import lease, succession
from entrypoint.run.lease import HeldError, Lease
from entrypoint.run.succession import Holder, Vigil
from tests.support.succession_model import Bounds, Rules, explore

ROW = {"incarnation": "x", "beat": 7}
RULES = Rules()
NARROW = Bounds(steps=1, crashes=1, restarts=0)


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(crashes=1, restarts=0), id="one-crash"),
        pytest.param(Bounds(crashes=2, restarts=1), id="two-crashes", marks=pytest.mark.slow),
    ],
)
def test_in_no_interleaving_two_heads_write_a_step_is_lost_or_a_run_is_stuck(
    bounds: Bounds,
) -> None:
    found = explore(RULES, bounds)
    print(f"{found.states} states of {bounds}")
    assert (found.violations, found.stuck) == ([], 0)
    assert found.states > 20_000


def test_a_wrong_judgement_of_silence_costs_a_takeover_and_never_a_second_writer() -> None:
    hasty = replace(RULES, may_succeed=lambda *_: True)
    found = explore(hasty, NARROW)
    assert (found.violations, found.stuck) == ([], 0)


@pytest.mark.parametrize(
    ("rules", "violation"),
    [
        (replace(RULES, is_superseded=lambda own, newest: False), "written twice"),
        (replace(RULES, is_in_force=lambda epoch, newest: True), "after step"),
        (replace(RULES, begins_before_it_reads=False), "after step"),
    ],
    ids=["nobody-looks-at-the-leases", "late-lines-count", "a-head-reads-before-it-begins"],
)
def test_the_search_finds_what_each_rule_prevents(rules: Rules, violation: str) -> None:
    found = explore(rules, replace(NARROW, steps=3))
    assert violation in found.violations[0]


def test_the_search_finds_a_run_that_nobody_continues() -> None:
    never = replace(RULES, may_succeed=lambda *_: False)
    assert explore(never, NARROW).stuck


def test_a_watch_begins_anew_with_each_heartbeat_and_after_each_pause_of_its_own() -> None:
    first = succession.watched(None, 1, ROW, 100.0)
    later = succession.watched(first, 1, dict(ROW), 103.0)
    assert (later.since, later.looked) == (100.0, 103.0)
    assert succession.watched(later, 1, ROW | {"beat": 8}, 104.0).since == 104.0
    assert succession.watched(later, 2, ROW, 104.0).since == 104.0
    assert succession.watched(later, 1, ROW, 109.0).since == 109.0, "storage was away from here"
    assert succession.heard(later, 105.0).since == 105.0


@pytest.mark.parametrize(
    ("number", "row", "says"),
    [
        (1, ROW, Holder.SILENT),
        (1, {}, Holder.SILENT),
        (1, ROW | {"over": True}, Holder.OVER),
        (0, {}, Holder.UNKNOWN),
    ],
    ids=["silent", "damaged", "over", "no-lease"],
)
def test_a_worker_succeeds_a_head_that_is_silent_and_no_other(
    number: int, row: dict[str, object], says: Holder
) -> None:
    vigil = Vigil(number, row, since=0.0, looked=9.0)
    assert succession.holder(vigil, 7.9, 8.0) is not Holder.SILENT
    assert succession.holder(vigil, 8.1, 8.0) is says
    assert succession.may_succeed(vigil, number, row, 8.1, 8.0) is (says is Holder.SILENT)
    assert not succession.may_succeed(vigil, number, {**row, "beat": 8}, 8.1, 8.0)
    assert not succession.may_succeed(vigil, number + 1, row, 8.1, 8.0)


def test_only_a_head_that_was_a_worker_is_looked_for_where_its_lease_says() -> None:
    row = ROW | {"address": "10.0.0.7", "was_worker": True}
    assert succession.leader_after_failover(row) == "10.0.0.7"
    assert succession.leader_after_failover(row | {"was_worker": False}) == ""
    assert succession.leader_after_failover(row | {"over": True}) == ""
    assert succession.leader_after_failover({}) == ""


@pytest.mark.parametrize(
    ("expected", "given", "takeovers", "fewest"),
    [(2, None, 1, 1), (2, None, 3, 0), (2, 2, 1, 2), (4, 1, 1, 1), (0, None, 0, 0)],
)
def test_each_lost_head_may_cost_one_worker_unless_the_user_says_how_many_are_needed(
    expected: int, given: int | None, takeovers: int, fewest: int
) -> None:
    assert succession.fewest_workers(expected, given, takeovers) == fewest


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """Leases of a head that has died, with another machine's lock."""
    leases = RunFiles(tmp_path).leases
    leases.mkdir()
    (leases / "1").write_text('{"incarnation": "x", "host": "elsewhere", "beat": 7}')
    return leases


@pytest.mark.usefixtures("impatient")
def test_of_two_workers_that_saw_the_same_silence_one_takes_the_lease(silent: Path) -> None:
    number, row = lease.look(silent)
    vigil = Vigil(number, row, since=-60.0, looked=0.0)
    first, second = Lease(silent, was_worker=True), Lease(silent, was_worker=True)
    first.succeed(vigil)
    with first:
        assert first.claim.epoch == 2
        assert lease.look(silent)[1]["was_worker"] is True
        with pytest.raises(HeldError):
            second.succeed(vigil)
        assert sorted(path.name for path in silent.iterdir()) == ["1", "2"]


@pytest.mark.usefixtures("impatient")
def test_a_head_that_beats_again_in_the_last_moment_keeps_its_lease(silent: Path) -> None:
    number, row = lease.look(silent)
    vigil = Vigil(number, row, since=-60.0, looked=0.0)
    (silent / "1").write_text('{"incarnation": "x", "host": "elsewhere", "beat": 8}')
    with pytest.raises(HeldError, match="elsewhere"):
        Lease(silent).succeed(vigil)
    assert [path.name for path in silent.iterdir()] == ["1"]
