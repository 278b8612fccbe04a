"""What messages say of a head that is lost: who takes its place and when, or why nobody does."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contract.journal import append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.run import candidacy, lost_head
from entrypoint.run.candidacy import Candidates
from entrypoint.run.lost_head import Failover

AFTER = Failover.of_head(120.0, "")
ENDED = {"outcome": "stopped"}


@pytest.mark.parametrize(
    ("told", "silence", "said"),
    [
        (AFTER, 20.0, "a worker takes its place in 1 min 40 s (ROLLCALL_HEAD_FAILOVER)"),
        (AFTER, 121.0, "a worker takes its place at any moment"),
        (AFTER, 200.0, "no worker has taken its place after 2 min 0 s"),
        (AFTER, 200.0, "RUN/logs/worker-NAME.log, says why not. To go on, start it again"),
        (Failover.of_head(0.0, ""), 2.0, "a worker takes its place in 6 s"),
        (Failover.of_head(0.0, "there are no workers"), 9.0, "as there are no workers: start it"),
        (Failover(None), 9.0, "start it again"),
    ],
)
def test_a_message_says_when_a_worker_takes_the_place_or_why_none_does(
    told: Failover, silence: float, said: str
) -> None:
    follows = lost_head.what_follows(told, silence)
    assert said in follows
    assert ("start it again" in follows) != lost_head.is_awaited(told, silence)


WAITS = Candidates(waiting=("worker-1",))
REFUSES = Candidates(refused=(("worker-1", "port 6379 cannot be listened on"),))


@pytest.mark.parametrize(
    ("said", "silence", "follows"),
    [
        (Candidates(), 20.0, "a worker takes its place in 1 min 40 s (ROLLCALL_HEAD_FAILOVER); if"),
        (WAITS, 20.0, "in 1 min 40 s (ROLLCALL_HEAD_FAILOVER); nobody has to act"),
        (WAITS, 121.0, "at any moment (ROLLCALL_HEAD_FAILOVER); nobody has to act"),
        (REFUSES, 121.0, "; worker-1 cannot: port 6379 cannot be listened on. To go on, start it"),
        (replace(REFUSES, waiting=("worker-2",)), 121.0, "at any moment"),
        (Candidates(), 61.0, "none waits to do so. To go on, start it again"),
        (REFUSES, 200.0, "worker-1 cannot: port 6379"),
        (Candidates(), 200.0, "no worker has taken its place after 2 min 0 s"),
    ],
)
def test_no_worker_is_promised_that_cannot_or_of_which_none_lives(
    said: Candidates, silence: float, follows: str
) -> None:
    told = replace(AFTER, said=said)
    assert follows in lost_head.what_follows(told, silence)
    assert ("start it again" in follows or "cannot" in follows or "after 2 min" in follows) != (
        lost_head.is_awaited(told, silence)
    )


def test_what_workers_say_counts_from_the_last_heartbeat_on(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("{}")
    candidacy.tell(tmp_path, "worker-1")
    candidacy.tell(tmp_path, "worker-2", "its port is taken")
    os.utime(tmp_path / "1", (time.time() - 20,) * 2)
    both = Candidates(("worker-1",), (("worker-2", "its port is taken"),))
    assert candidacy.read(tmp_path) == both
    (tmp_path / "2").write_text("{}")
    os.utime(tmp_path / "2", (time.time() + 1,) * 2)
    assert candidacy.read(tmp_path) == Candidates()


@pytest.mark.parametrize(("silence", "label"), [(20.0, "or start it now"), (300.0, "to start it")])
def test_the_command_has_a_line_of_its_own(tmp_path: Path, silence: float, label: str) -> None:
    run = RunFiles(tmp_path)
    again = "cd /job && rollcall up --save_steps 4"
    details = {"failover": AFTER.as_dict(), "resume": again}
    append_event(run.journal, "start", "this is the head", details)
    append_event(run.journal, "check-in", "worker-1 checked in", {"node": "worker-1"})
    Progress(step=7, checkpoint=4, in_memory=6).write(run.progress)
    *said, last = lost_head.all_of(run, silence).splitlines()
    assert ". The run has: checkpoint of step 4, step 6 in the memory of two nodes" in said[0]
    assert said[0].endswith(lost_head.TO_STOP) == lost_head.is_awaited(AFTER, silence)
    assert last.startswith(label)
    assert last.endswith(f": {again}")


def test_the_newest_head_says_what_follows_its_loss(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    assert lost_head.failover(run) == Failover(None)
    assert lost_head.command(run) == ""
    for told in (AFTER, Failover.of_head(0.0, "it is off")):
        details = {"failover": told.as_dict(), "resume": f"rollcall up {told.off}"}
        append_event(run.journal, "start", "this is the head", details)
        append_event(run.journal, "check-in", "worker-1 checked in", {"node": "worker-1"})
        assert lost_head.failover(run) == told
        assert lost_head.command(run) == f"rollcall up {told.off}"
    append_event(run.journal, "start", "this is the head", {"failover": AFTER.as_dict()})
    for name in ("worker-1", "gpu-2"):
        append_event(run.journal, "check-in", f"{name} checked in", {"node": name})
    follows = lost_head.what_follows(lost_head.failover(run), 200.0)
    assert "its log, RUN/logs/worker-1.log or RUN/logs/worker-gpu-2.log, says why not" in follows


@pytest.mark.parametrize(
    ("events", "is_awaited"),
    [
        ((), False),
        ((("check-in", {"node": "worker-1"}),), True),
        ((("check-in", {"node": "worker-1"}), ("roll", {"present": ["worker-1"]})), True),
        ((("check-in", {"node": "worker-1"}), ("roll", {"present": []})), False),
        ((("check-in", {"node": "worker-1"}), ("outcome", ENDED), ("start", {})), False),
        ((("check-in", {"node": "worker-1"}), ("start", {})), True),
    ],
)
def test_nobody_waits_for_a_worker_if_none_is_left_that_knows_the_job(
    tmp_path: Path, events: tuple[tuple[str, dict[str, object]], ...], is_awaited: bool
) -> None:
    run = RunFiles(tmp_path)
    head = {"failover": AFTER.as_dict()}
    append_event(run.journal, "start", "this is the head", head)
    for kind, details in events:
        append_event(run.journal, kind, kind, head if kind == "start" else details)
    told = lost_head.failover(run)
    assert lost_head.is_awaited(told, 20.0) == is_awaited
    why = "no worker takes its place, as no worker was there that knows the job: start it again"
    assert (why in lost_head.what_follows(told, 20.0)) != is_awaited
