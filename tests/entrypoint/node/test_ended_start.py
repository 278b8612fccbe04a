"""Whether a platform has started again what a person has stopped, and what then resumes the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.job.supervisor import ENDED_START
from entrypoint.node import ended_start, worker
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal
from tests.support import platforms

BATCH = platforms.AWS_BATCH_NODES[1] | {"AWS_BATCH_JOB_ID": "ab12#1"}
SKY = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_TASK_ID": "sky-managed-1_train_7-0",
}
POD = platforms.POD | {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "first-1"}


STOPPED = {"outcome": "stopped", "exit_code": 143}


def record(run_dir: Path, *events: tuple[str, dict[str, Any]]) -> None:
    journal = Journal(RunFiles(run_dir).journal, "first-0")
    for kind, details in events:
        journal.write(kind, kind, **(STOPPED if kind == "outcome" else {}), **details)


@pytest.mark.parametrize(
    ("environ", "ended", "resumes"),
    [
        ({"ROLLCALL_START_ID": "7"}, "7", "start all nodes with another ROLLCALL_START_ID"),
        (POD | {"ROLLCALL_START_ID": "uid-1"}, "uid-1", "kubectl delete job first && helm upgrade"),
        (BATCH, "ab12", "aws batch submit-job"),
        (SKY, "sky-managed-1_train_7-0", "sky jobs launch FILE"),
    ],
    ids=["variable", "kubernetes", "aws-batch", "skypilot"],
)
def test_a_worker_of_the_start_that_a_person_has_ended_says_what_resumes_and_ends_with_0(
    environ: dict[str, str],
    ended: str,
    resumes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    head = {"ROLLCALL_HEAD_ADDRESS": "first-0.first"}
    given = head | environ | {"RAY_WORKER": "1", "ROLLCALL_RUN_DIR": str(tmp_path)}
    settings = read_settings(given)
    record(tmp_path, ("start", {}), ("outcome", {ENDED_START: ended}))
    assert worker.serve(settings, {}, Inbox()) == 0
    (line,) = caplog.messages
    assert "`rollcall stop` has ended the run" in line
    assert f"To resume: {resumes}" in line.replace("To resume, ", "To resume: ")


@pytest.mark.parametrize(
    ("events", "given"),
    [
        ([], {"ROLLCALL_START_ID": "7"}),
        ([("start", {}), ("outcome", {})], {"ROLLCALL_START_ID": "7"}),
        ([("outcome", {ENDED_START: "7"})], {"ROLLCALL_START_ID": "8"}),
        ([("outcome", {ENDED_START: "7"})], {}),
        ([("outcome", {ENDED_START: ""})], {}),
        ([("outcome", {ENDED_START: "7"}), ("start", {})], {"ROLLCALL_START_ID": "7"}),
    ],
    ids=[
        "no journal",
        "stopped by a platform",
        "another start",
        "no name",
        "never a name",
        "begun since",
    ],
)
def test_every_other_start_resumes(
    events: list[tuple[str, dict[str, Any]]], given: dict[str, str], tmp_path: Path
) -> None:
    record(tmp_path, *events)
    assert not ended_start.is_over(read_settings(given | {"ROLLCALL_RUN_DIR": str(tmp_path)}))
