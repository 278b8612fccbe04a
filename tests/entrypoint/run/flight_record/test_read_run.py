"""What a report shows of a run directory: programs without metrics, and the jobs of a cluster."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from contract.exit_codes import RESUMES
from contract.files.child_variables import NODE_OWNER
from contract.journal import append_event
from contract.manifest import write_manifest
from contract.run_dir import RunFiles
from entrypoint.commands import report as report_command
from entrypoint.run import curves
from entrypoint.run.attempt_ends import INTERRUPTED
from entrypoint.run.flight_record import html, read_run, run_end
from entrypoint.run.flight_record import record as report
from entrypoint.run.flight_record import text as report_text
from entrypoint.run.flight_record.remedies import OVER, OVER_STAGE, WORKERS_TOO
from entrypoint.run.flight_record.time_accounting import AGAIN, IN_FLIGHT, TRAINING, UNTOLD, USES
from tests.support import reported_runs
from tests.support.flight_events import Clock


def test_a_program_that_tells_no_steps_has_worked_all_the_time(tmp_path: Path) -> None:
    record = read_run.of_run(reported_runs.tells_nothing(tmp_path / "run")).record
    assert record
    assert record.seconds[UNTOLD] == 3600
    assert record.effective_time_ratio is None
    said = "\n".join(report_text.lines(record))
    assert "no known step in 1 h 0 min, 1 attempt" in said
    assert "its effective time is not known" in said
    assert "0 steps" not in said


def test_a_program_that_tells_no_steps_works_until_now(tmp_path: Path) -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.then(30, "roll", present=[], expected=0)
    clock.then(0, "attempt", 1)
    run = RunFiles(tmp_path)
    run.journal.write_text("".join(f"{json.dumps(row)}\n" for row in clock.rows))
    kept_lease(run)
    record = read_run.of_run(run).record
    assert record
    assert record.outcome == report.RUNNING
    assert record.seconds[UNTOLD] > record.seconds["roll call"]


def test_a_program_that_tells_no_steps_has_worked_until_the_cluster_stopped() -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.then(10, "roll", present=[], expected=0)
    clock.then(0, "attempt", 1)
    clock.then(99, INTERRUPTED)
    record = report.from_journal(clock.rows)
    assert record.seconds[UNTOLD] == 99
    assert "end of the job" not in record.seconds


def test_of_steps_that_became_one_event_those_after_the_checkpoint_alone_are_repeated() -> None:
    clock = Clock()
    clock.begins(1)
    clock.then(100, "step", 1, step=10, steps=10)
    clock.then(100, "step", 1, step=20, steps=10)
    clock.then(5, "failure", 1, failure="unknown", silent_seconds=5.0)
    clock.begins(2, from_step=14)
    record = report.from_journal(clock.rows)
    assert record.seconds[TRAINING] == pytest.approx(140)
    assert record.seconds[AGAIN] == pytest.approx(60)


def test_the_curve_of_a_job_without_metrics_is_that_of_the_steps_that_count(
    tmp_path: Path,
) -> None:
    clock = Clock()
    clock.begins(1)
    clock.then(9, "step", 1, step=1, reward=0.1, loss=3.0)
    clock.then(9, "step", 1, step=2, reward=0.9, loss=2.0)
    clock.then(9, "resume", 2, step=1)
    clock.then(9, "step", 2, step=2, reward=0.2)
    clock.then(9, "eval", 2, step=2, accuracy=0.5)
    part = read_run.of_run(reported_runs.written(tmp_path / "run", clock))
    assert part.curves["steps"] == [1, 2]
    assert part.curves["series"] == {
        "train/reward": [0.1, 0.2],
        "train/loss": [3.0, None],
        "eval/accuracy": [None, 0.5],
    }


def test_the_jobs_of_a_cluster_are_in_the_order_of_their_numbers_and_pipelines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = reported_runs.cluster(tmp_path / "run")
    reported_runs.tells_loss(reported_runs.entered(run.root, "job-10", state="queued"))
    (run.jobs / "job-11").mkdir()
    (run.jobs / "job-11" / "job.json").write_text("[damaged")
    jobs = read_run.of_jobs(run)
    named = [[part.name for part in group] for group in read_run.pipelines(jobs)]
    assert named == [["job-1"], ["job-2", "job-3", "job-4", "job-5"], ["job-10"]]
    assert report_command.main([str(run.root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert [(row["job"], row["state"], row["recipe"]) for row in rows[:2]] == [
        ("job-1", "finished", "command"),
        ("job-2", "finished", "supervised"),
    ]
    assert rows[4] == {
        **{"job": "job-5", "stage": "eval", "after": "job-4", "recipe": "", "record": None},
        **{"state": "failed", "sentence": "it did not begin: the disk is full"},
    }
    assert report_command.main([str(run.root)]) == 0
    said = capsys.readouterr().out
    assert "job-4 (ppo, after job-3):\n  finished: the job has finished\n  60 steps kept of" in said
    assert "60 steps kept of 62 made in 1 h 3 min, 2 attempts, 1 failure" in said
    assert "  started from tiny-7b\n" in said


@pytest.mark.parametrize("ended", [None, "2026-01-01T00:00:00.000+00:00"])
def test_a_job_that_is_over_does_not_resume_with_its_cluster(
    tmp_path: Path, ended: str | None
) -> None:
    """A job that was stopped with its cluster goes on with the next head."""
    job = RunFiles(tmp_path / "run/jobs/job-1")
    job.root.mkdir(parents=True)
    append_event(job.journal, "start", "job-1 begins on the cluster of head")
    stopped = {"outcome": "stopped", "exit_code": 143}
    append_event(job.journal, "outcome", "step 3 is saved", stopped)
    (job.root / "job.json").write_text(json.dumps({"ended": ended}))
    found = read_run.of_run(job).end
    assert found is not None
    assert found.to_do == (OVER if ended else RESUMES)
    (job.root / "job.json").write_text(json.dumps({"ended": ended, "stage": "sft"}))
    found = read_run.of_run(job).end
    assert found is not None
    assert found.to_do == (OVER_STAGE if ended else RESUMES)


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_that_was_stopped_names_its_step_and_whether_its_workers_start_too(
    tmp_path: Path, alone: bool
) -> None:
    """`alone`: the command that is told starts the head only."""
    run = RunFiles(tmp_path)
    details = {"resume": "rollcall up", "resumes_head_alone": alone}
    append_event(run.journal, "start", "this is the head", details)
    append_event(run.journal, "check-in", "worker-1 checked in", {"node": "worker-1"})
    append_event(run.journal, "outcome", "step 4 is saved", {"outcome": "stopped"})
    saved = run.checkpoints / "global_step_4"
    saved.mkdir(parents=True)
    (saved / "weights").write_text("1")
    write_manifest(saved, 4)
    found = read_run.of_run(run).end
    assert found is not None
    told = "Started again with its run directory, it resumes from step 4."
    assert found.to_do == (f"{told} {WORKERS_TOO}" if alone else told)


def test_each_use_of_time_that_a_tally_knows_has_a_colour_of_its_own() -> None:
    uses = {*USES.values(), TRAINING, UNTOLD, AGAIN, IN_FLIGHT}
    assert uses == set(html.USES)
    assert len({*html.USES.values()}) == len(uses)
    assert len({*curves.PHASES.values()}) == len(curves.PHASES)


def test_a_run_whose_head_has_been_silent_for_hours_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    clock.begins(1)
    clock.then(9, "step", 1, step=1)
    run = reported_runs.written(tmp_path / "run", clock)
    lease = kept_lease(run)
    assert report_command.main([str(run.root)]) == 0
    assert capsys.readouterr().out.startswith("running: ")
    long_ago = time.time() - 7500
    os.utime(lease, (long_ago, long_ago))
    page = tmp_path / "report.html"
    assert report_command.main([str(run.root), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("head_lost: the head was lost 2 h 5 min ago: start it again with the")
    assert "running" not in said
    assert "running" not in page.read_text()
    assert report_command.main([str(run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "head_lost"


def test_a_run_whose_storage_is_full_is_said_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    clock.begins(1)
    run = reported_runs.written(tmp_path / "run", clock)
    monkeypatch.setattr(report_command, "LEAST_FREE", 2**80)
    assert report_command.main([str(run.root)]) == 0
    assert f"warning: no space is left in {run.root}: free some" in capsys.readouterr().out


def test_a_head_that_died_a_moment_ago_is_lost_and_one_with_another_clock_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    clock.begins(1)
    run = reported_runs.written(tmp_path / "run", clock)
    lease = kept_lease(run)
    behind = time.time() - 18
    os.utime(lease, (behind, behind))
    assert report_command.main([str(run.root)]) == 0
    assert re.match(
        "head_lost: the head was lost [12]\\d(\\.\\d)? s ago: start", capsys.readouterr().out
    )
    ended = threading.Event()

    def renews() -> None:
        while not ended.wait(0.2):
            at = time.time() - 18
            os.utime(lease, (at, at))

    head = threading.Thread(target=renews)
    head.start()
    try:
        assert report_command.main([str(run.root)]) == 0
    finally:
        ended.set()
        head.join()
    assert capsys.readouterr().out.startswith("running: ")


def test_what_a_lost_head_has_left_to_run_is_told_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    clock.begins(1)
    run = reported_runs.written(tmp_path / "run", clock)
    lease = kept_lease(run)

    def said(**row: str) -> str:
        lease.write_text(json.dumps(row))
        os.utime(lease, (0, 0))
        assert report_command.main([str(run.root)]) == 0
        return capsys.readouterr().out.splitlines()[0]

    here = {"host": socket.gethostname(), "mark": f"{NODE_OWNER}=of {tmp_path}"}
    with subprocess.Popen(["sleep", "60"], env={NODE_OWNER: f"of {tmp_path}"}) as left:
        assert "still runs on this machine: memory and GPUs may be in use" in said(**here)
        assert said(**here).endswith(f"By hand: kill -9 {left.pid}")
        left.kill()
    assert "still run" not in said(**here)
    assert "may still run on node-7: the start of a node there ends it" in said(host="node-7")


def test_a_job_given_by_its_path_does_not_run_if_the_head_of_its_cluster_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    clock.begins(1)
    job = reported_runs.written(tmp_path / "run" / "jobs" / "job-1", clock)
    (job.root / "job.json").write_text("{}")
    lease = kept_lease(RunFiles(tmp_path / "run"))
    monkeypatch.chdir(job.root)
    assert report_command.main(["."]) == 0
    assert capsys.readouterr().out.startswith("running: ")
    os.utime(lease, (0, 0))
    assert report_command.main(["."]) == 0
    assert capsys.readouterr().out.startswith("head_lost: ")


def kept_lease(run: RunFiles) -> Path:
    run.leases.mkdir()
    lease = run.leases / "1"
    lease.write_text("{}")
    return lease


def test_a_run_that_left_checkpoints_alone_names_the_newest_one_and_no_model(
    tmp_path: Path,
) -> None:
    run = reported_runs.tells_loss(tmp_path)
    for name in ("checkpoint-3", "checkpoint-16", "checkpoint-20", "."):
        (run.exported / name).mkdir(parents=True, exist_ok=True)
        (run.exported / name / "README.md").write_text("a model card")
    for name in ("checkpoint-3", "checkpoint-16"):  # that of step 20 is half written
        (run.exported / name / "config.json").write_text("{}")
        (run.exported / name / "model.safetensors").write_bytes(b"weights")
    newest = run.exported / "checkpoint-16"
    end = run_end.read(run)
    assert end is not None
    said = f"newest checkpoint: {newest}; the script has saved no final model"
    assert list(end.places()) == [said]
    assert end.told()["newest_checkpoint"] == end.row()["newest_checkpoint"] == str(newest)
    assert end.told()["model"] == ""
    (run.exported / "adapter_config.json").write_text("{}")
    (run.exported / "adapter_model.safetensors").write_bytes(b"weights")
    end = run_end.read(run)
    assert end is not None
    assert list(end.places()) == [f"trained model: {run.exported}"]
