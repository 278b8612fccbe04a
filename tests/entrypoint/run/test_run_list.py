"""The list of runs below a directory: which runs it has, what it says of each, in bounded time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from contract.files.plain_files import NotPlainError
from contract.launch.standalone import alive
from contract.run_dir import RunFiles
from entrypoint.run import run_list
from entrypoint.run.flight_record import read_run
from entrypoint.run.run_list import RunList
from tests.support import reported_runs
from tests.support.flight_events import Clock


def rows_of(root: Path) -> dict[str, dict[str, Any]]:
    known = RunList()
    while (answer := known.rows(run_list.find(root)))["more"]:
        pass
    assert answer["count"] == len(answer["runs"])
    return {row["id"]: row for row in answer["runs"]}


def running(root: Path, *, is_alive: bool) -> RunFiles:
    """A run that has not ended, whose head has, or has not, told lately that it lives."""
    clock = Clock()
    clock.then(0, "start", resume="rollcall up --seed 3")
    clock.begins(1)
    clock.steps(1, 1, 2, 3)
    run = reported_runs.written(root, clock)
    run.leases.mkdir()
    lease = run.leases / "1"
    lease.write_text("{}")
    if not is_alive:
        os.utime(lease, (1, 1))
    return run


def test_a_row_says_what_became_of_a_run(tmp_path: Path) -> None:
    reported_runs.with_faults(tmp_path / "demo-1" / "run")
    reported_runs.tells_loss(tmp_path / "sft")
    running(tmp_path / "dead", is_alive=False)
    running(tmp_path / "live", is_alive=True)
    rows = rows_of(tmp_path)
    assert rows["demo-1/run"] == {
        "id": "demo-1/run",
        "name": "demo-1",
        "model": "tiny-7b",
        "recipe": "builtin",
        "state": "finished",
        "sentence": "the job has finished",
        "steps": 60,
        "total_steps": None,
        "metric": "eval/accuracy",
        "metric_title": "held-out accuracy",
        "best": pytest.approx(0.8751, abs=1e-4),
        "best_step": 60,
        "began": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T01:03:41+00:00",
        "path": str(tmp_path / "demo-1" / "run"),
        "resume": "",
    }
    assert (rows["sft"]["metric"], rows["sft"]["best"], rows["sft"]["steps"]) == (
        "eval/accuracy", 0.75, 100,
    )  # fmt: skip
    assert (rows["dead"]["state"], rows["live"]["state"]) == ("head_lost", "running")
    assert (rows["dead"]["resume"], rows["live"]["resume"]) == ("rollcall up --seed 3", "")


def test_the_jobs_of_a_cluster_are_runs_and_the_cluster_is_none(tmp_path: Path) -> None:
    reported_runs.cluster(tmp_path / "cluster")
    rows = rows_of(tmp_path)
    assert sorted(rows) == [f"cluster/jobs/job-{n}" for n in range(1, 5)]
    assert sorted(run_list.find(tmp_path / "cluster")) == [f"jobs/job-{n}" for n in range(1, 5)]


def test_the_best_value_is_that_of_one_row_and_of_a_loss_the_least(tmp_path: Path) -> None:
    run = reported_runs.tells_nothing(tmp_path / "a")
    values = [*range(1000), 5, 7]  # more rows than points: their means are less
    rows = [{"step": n, "eval/accuracy": value} for n, value in enumerate(values)]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    other = reported_runs.tells_nothing(tmp_path / "b")
    other.metrics.write_text('{"step": 1, "train/loss": 0.5}\n{"step": 2, "train/loss": 0.75}\n')
    found = rows_of(tmp_path)
    assert (found["a"]["best"], found["b"]["best"]) == (999, 0.5)


def test_a_damaged_run_and_one_of_another_version_have_rows(tmp_path: Path) -> None:
    torn = reported_runs.with_faults(tmp_path / "torn")
    with torn.journal.open("ab") as file:
        file.write(b'{"at": "2026-01-01T02:00:00+00:00", "kind": "st')
    torn.metrics.write_text('{"step": 1, "train/reward": 0.5}\n{"step": 2, "tra')
    older = reported_runs.tells_nothing(tmp_path / "older")
    older.run.unlink()
    newer = reported_runs.tells_nothing(tmp_path / "newer")
    newer.run.write_text('{"format": 9, "recipe": ["x"], "model": {"name": "y"}}')
    newer.progress.write_text('{"steps_done": 7}')
    rows = rows_of(tmp_path)
    assert (rows["torn"]["state"], rows["torn"]["best"]) == ("finished", 0.5)
    assert {rows[name]["state"] for name in ("older", "newer")} == {"finished"}
    assert (rows["newer"]["recipe"], rows["newer"]["model"]) == ("", "")


@pytest.mark.parametrize("name", ["journal", "metrics", "run", "progress", "result"])
def test_no_link_leads_out_of_a_run(tmp_path: Path, name: str) -> None:
    run = reported_runs.with_faults(tmp_path / "runs" / "a")
    path = getattr(run, name)
    path.unlink(missing_ok=True)
    secret = tmp_path / "secret"
    secret.write_text('{"model": "the secret", "step": 7}')
    path.symlink_to(secret)
    with pytest.raises(NotPlainError, match=f"{path.name}"):
        run_list.check(run)
    (row,) = rows_of(tmp_path / "runs").values()
    assert row["state"] == "unreadable"
    assert "is a link" in row["sentence"]
    assert "the secret" not in json.dumps(row)


def test_a_link_to_a_run_is_no_run_of_the_directory(tmp_path: Path) -> None:
    reported_runs.tells_nothing(tmp_path / "elsewhere" / "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "elsewhere" / "a")
    (tmp_path / "runs" / "around").symlink_to(tmp_path / "runs")
    assert run_list.find(tmp_path / "runs") == {}


def test_many_runs_come_in_parts_and_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        root = tmp_path / f"r{number}"
        root.mkdir()
        (root / "journal.jsonl").write_text("")
    runs, read = run_list.find(tmp_path), list[str]()
    original = run_list._row

    def counted(name: str, run: RunFiles) -> run_list.RunRow:
        read.append(name)
        return original(name, run)

    monkeypatch.setattr(run_list, "_row", counted)
    monkeypatch.setattr(run_list, "READ_SECONDS", 0.01)
    monkeypatch.setattr(run_list, "state_of", lambda run: ("finished", ""))
    known, answers = RunList(), list[dict[str, Any]]()
    while not answers or answers[-1]["more"]:
        answers.append(known.rows(runs))
    assert len(answers) > 1
    assert answers[0]["count"] == len(answers[-1]["runs"]) == 200
    assert sorted(read) == sorted(runs)


def standalone(root: Path, *then: str) -> RunFiles:
    """A run of two attempts that trainers without a head have made, and what follows."""
    clock = Clock()
    for number in (1, 2):
        clock.then(1, "start", by="trainer", resume="python -m trainer --max_steps 2")
        clock.then(0, "attempt", by="trainer")
        clock.then(1, "resume", 1, step=number - 1)
        clock.then(1, "step", 1, step=number)
    ends: dict[str, Any] = {"outcome": "finished", "exit_code": 0}
    for kind in then:
        clock.then(1, kind, None, **(ends if kind == "outcome" else {}))
    return reported_runs.written(root, clock)


def test_a_trainer_without_a_head_runs_while_it_lives_and_ends_by_its_own_word(
    tmp_path: Path,
) -> None:
    standalone(tmp_path / "finished", "export", "outcome")
    dead = standalone(tmp_path / "dead")
    dead.heartbeat.touch()
    os.utime(dead.heartbeat, (1, 1))
    with alive(standalone(tmp_path / "live")):
        os.utime(tmp_path / "live" / ".heartbeat", (1, 1))  # the lock counts, not the clock
        rows = rows_of(tmp_path)
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {"finished": "finished", "dead": "trainer_lost", "live": "running"}
    assert "the trainer ended without saying so" in rows["dead"]["sentence"]
    assert rows["dead"]["sentence"].endswith("\nto start it again: python -m trainer --max_steps 2")


def test_a_run_of_an_earlier_version_is_over_when_its_model_is_written_or_its_files_are_old(
    tmp_path: Path,
) -> None:
    for name, kinds in (("done", ["step", "export"]), ("old", ["step"]), ("young", ["step"])):
        clock = Clock()
        clock.then(0, "resume", 1, step=0)
        for kind in kinds:
            clock.then(1, kind, 1, step=1)
        run = reported_runs.written(tmp_path / name, clock)
        if name == "old":
            os.utime(run.journal, (1, 1))
    states = {name: row["state"] for name, row in rows_of(tmp_path).items()}
    assert states == {"done": "finished", "old": "trainer_lost", "young": "running"}


def test_the_report_tells_the_silent_end_of_a_trainer_as_its_own_not_as_a_heads(
    tmp_path: Path,
) -> None:
    run = standalone(tmp_path / "run")
    run.heartbeat.touch()
    os.utime(run.heartbeat, (1, 1))
    record = read_run.of_run(run).record
    assert record is not None
    assert record.outcome == "trainer_lost"
    assert [one.ending for one in record.attempts] == ["trainer_lost", "trainer_lost"]
    assert record.failures[0].evidence == "the trainer ended without a word"


def test_the_best_value_says_whether_it_is_of_the_model_before_training(tmp_path: Path) -> None:
    for name, values in {"worse": (0.4, 0.3), "better": (0.3, 0.4), "same": (0.4, 0.4)}.items():
        run = standalone(tmp_path / name, "outcome")
        rows = [{"step": step, "eval/accuracy": value} for step, value in enumerate(values)]
        run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {name: (row["best"], row["best_step"]) for name, row in rows_of(tmp_path).items()}
    assert found == {"worse": (0.4, 0), "better": (0.4, 1), "same": (0.4, 1)}
    told = {name: list(read_run.of_run(RunFiles(tmp_path / name)).best_told()) for name in found}
    assert told["worse"] == [
        "the model before training was best: held-out accuracy 0.4. Training made it worse"
    ]
    assert told["same"] == ["best value: held-out accuracy 0.4, after step 1"]
    rows = [{"step": 0, "eval/accuracy": 0.4}, {"step": 4, "train/loss": 1.0}]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert not [*read_run.of_run(run).best_told()], "no model after a step was evaluated"
