"""Jobs one after another on a head that stays up: real queue, journal and control port, no Ray."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from contract.exit_codes import ExitCode
from contract.redaction import MASK
from contract.run_dir import RunFiles
from entrypoint.cluster.job_queue_protocol import SubmissionError
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.config.read import read_settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.job_queue import JobQueue
from entrypoint.job.run_context import RunContext
from entrypoint.processes.inbox import Inbox, RayEnded, RayFailedError, StopAsked
from entrypoint.run.flight_record.record import from_journal
from entrypoint.run.journal import Journal
from tests.support.control import HEAD
from tests.support.damage import damaged
from tests.support.job_head import JobHead, fails, finishes, job_head, soon, until_stopped

__all__ = ["job_head"]


def test_jobs_run_one_after_another_each_as_a_run_of_its_own(job_head: JobHead) -> None:
    for word in ("true", "false"):
        job_head.queue.submit([word], {})
    soon(lambda: job_head.state("job-2") == "finished")
    assert job_head.ran == ["job-1", "job-2"]
    events = sorted(["job-submitted", "job-started", "job-ended"] * 2)
    soon(lambda: sorted(job_head.kinds()) == events)  # the last one follows the job's state
    for job in ("job-1", "job-2"):
        run = RunFiles(job_head.run.jobs / job)
        assert json.loads(run.result.read_text())["outcome"] == "finished"
        assert json.loads(run.run.read_text())["recipe"] == "command"
        assert job_head.kinds(run) == ["start", "outcome"]
    assert job_head.revived == 0


def test_a_jobs_secrets_are_masked_where_it_is_shown(job_head: JobHead) -> None:
    environment = {"env_vars": {"HUB_TOKEN": "hf_not-to-be-shown", "LEVEL": "2"}}
    row = job_head.queue.submit(["true", "--api_key", "sk-not-to-be-shown"], environment)
    assert row["words"][:2] == ["true", "--api_key"]
    assert row["runtime_env"] == ["env_vars"]
    assert "not-to-be-shown" not in str(row) + job_head.run.journal.read_text()
    entry = job_head.run.jobs / "job-1" / "job.json"
    assert entry.stat().st_mode & 0o777 == 0o600
    of_job = job_head.queue.settings_of(job_head.queue._jobs["job-1"])
    assert "hf_not-to-be-shown" in of_job.secrets


def test_a_failed_job_leaves_the_cluster_up_with_a_new_ray(tmp_path: Path) -> None:
    with JobHead(tmp_path, false=fails) as head:
        head.queue.submit(["false"], {})
        head.queue.submit(["true"], {})
        soon(lambda: head.state("job-2") == "finished")
        row = head.queue.row("job-1")
        assert row is not None
        assert (row["state"], row["exit_code"]) == ("failed", 70)
        assert row["sentence"] == "ValueError: broken"
        assert head.revived == 1


def test_a_stop_of_a_job_ends_that_job_alone(job_head: JobHead) -> None:
    for _ in range(3):
        job_head.queue.submit(["sleep", "9"], {})
    soon(lambda: job_head.ran == ["job-1"])
    job_head.queue.stop("job-2")
    job_head.queue.stop("job-1")
    soon(lambda: job_head.ran == ["job-1", "job-3"])
    assert [row["state"] for row in job_head.queue.rows()] == ["stopped", "stopped", "running"]
    assert job_head.outcome is None
    assert not job_head.inbox.stop.is_set()


def test_the_next_head_goes_on_with_the_job_that_its_stop_interrupted(tmp_path: Path) -> None:
    with JobHead(tmp_path, sleep=until_stopped) as first:
        first.queue.submit(["sleep", "9"], {"env_vars": {"LEVEL": "2"}})
        first.queue.submit(["true"], {})
        soon(lambda: first.ran == ["job-1"])
    assert first.outcome is not None
    assert (first.outcome.name, first.outcome.exit_code) == ("stopped", ExitCode.STOPPED)
    left = "the cluster stops. The next head goes on with 2 jobs of the queue (job-1, job-2)"
    assert first.outcome.sentence.endswith(left)
    assert first.kinds()[-1] == "job-interrupted"
    seen: list[object] = []

    def finishes(run: RunContext) -> Outcome:
        seen.append(run.settings.runtime_env)
        return Outcome("finished", ExitCode.FINISHED, "the job has finished")

    with JobHead(tmp_path, sleep=finishes) as second:
        soon(lambda: second.state("job-2") == "finished")
        assert second.ran == ["job-1", "job-2"]
        assert seen == [{"env_vars": {"LEVEL": "2"}}]
        assert second.queue.submit(["true"], {})["id"] == "job-3"


def test_a_job_that_has_made_an_attempt_goes_on_and_does_not_begin_again(tmp_path: Path) -> None:
    def tries(run: RunContext) -> Outcome:
        run.journal.record("attempt", "attempt 1 starts")
        return until_stopped(run)

    with JobHead(tmp_path, sleep=tries) as first:
        first.queue.submit(["sleep"], {})
        soon(lambda: bool(Journal(RunFiles(first.run.jobs / "job-1").journal, "gn1").attempts()))
        first.inbox.put(StopAsked("maintenance"))
    with JobHead(tmp_path, sleep=finishes) as second:
        soon(lambda: second.state("job-1") == "finished")
        run = RunFiles(second.run.jobs / "job-1")
        started = [event["sentence"] for event in second.journal.events("job-started")]
        begun = [event["sentence"] for event in Journal(run.journal, "gn1").events("start")]
    assert started == ["job-1 begins", "job-1 continues"]
    assert [sentence.split(" on the ")[0] for sentence in begun] == started
    record = from_journal(Journal(run.journal, "gn1").events())
    assert ([one.ending for one in record.attempts], record.failures) == (["stopped"], [])


@pytest.mark.parametrize("code", [ExitCode.UNREACHABLE, ExitCode.RETRY, ExitCode.UNFIT])
def test_a_fault_of_the_cluster_ends_the_head_and_leaves_the_queue_as_it_is(
    tmp_path: Path, code: ExitCode
) -> None:
    def interrupted(run: RunContext) -> Outcome:
        return Outcome("failed", code, "no worker checks in with hf_not-to-be-shown")

    environment = {"env_vars": {"HF_TOKEN": "hf_not-to-be-shown"}}
    go_on = threading.Event()

    def after_both(run: RunContext) -> Outcome:
        go_on.wait(60)
        return interrupted(run)

    with JobHead(tmp_path, sleep=after_both) as first:
        first.queue.submit(["sleep", "9"], environment)
        first.queue.submit(["true"], {})
        go_on.set()
        soon(lambda: first.outcome is not None)
        assert first.outcome == Outcome("failed", code, f"no worker checks in with {MASK}")
        assert first.ran == ["job-1"]
    assert first.kinds()[-1] == "job-interrupted"
    with JobHead(tmp_path) as second:
        soon(lambda: second.state("job-2") == "finished")
        assert second.ran == ["job-1", "job-2"]
        assert second.state("job-1") == "finished"


def test_a_job_that_is_asked_to_stop_leaves_the_queue_also_if_the_cluster_fails(
    tmp_path: Path,
) -> None:
    def unreachable(run: RunContext) -> Outcome:
        run.inbox.stop.wait(60)
        return Outcome("failed", ExitCode.UNREACHABLE, "no worker checks in")

    with JobHead(tmp_path, sleep=unreachable) as head:
        head.queue.submit(["sleep", "9"], {})
        soon(lambda: head.ran == ["job-1"])
        head.queue.stop("job-1")
        soon(lambda: head.state("job-1") == "failed")


@pytest.mark.parametrize("broken", ["idle", "after a job"])
def test_a_ray_that_does_not_start_again_ends_the_head(tmp_path: Path, broken: str) -> None:
    with JobHead(tmp_path, false=fails) as head:
        head.broken = True
        if broken == "idle":
            head.inbox.put(RayEnded(1))
        else:
            head.queue.submit(["false"], {})
        soon(lambda: head.error is not None)
        assert isinstance(head.error, RayFailedError)


def test_the_gpus_that_a_job_left_without_work_are_named_while_it_runs(tmp_path: Path) -> None:
    seen: list[str] = []

    def leaves_gpus(run: RunContext) -> Outcome:
        run.control.idle = "4 of 8 GPUs have no work"
        seen.append(run.control.state()["idle"])
        return Outcome("finished", ExitCode.FINISHED, "it is done")

    with JobHead(tmp_path, true=leaves_gpus) as head:
        head.queue.submit(["true"], {})
        soon(lambda: head.state("job-1") == "finished")
        assert seen == ["4 of 8 GPUs have no work"]
        assert head.head.control.state()["idle"] == ""


def test_a_job_whose_directory_was_deleted_ends_alone(tmp_path: Path) -> None:
    def loses_its_directory(run: RunContext) -> Outcome:
        shutil.rmtree(run.files.root)
        return Outcome("failed", ExitCode.RUN_DIR, "its directory is gone")

    with JobHead(tmp_path, false=loses_its_directory) as head:
        head.queue.submit(["false"], {})
        head.queue.submit(["true"], {})
        soon(lambda: head.queue.rows()[1]["state"] == "finished")
        assert head.state("job-1") == "failed"


@pytest.mark.parametrize("words", [["--help"], ["--pretrain", "org/model", "-h"], ["sft", "-h"]])
def test_a_submitted_question_for_help_is_refused_and_not_answered_by_the_head(
    job_head: JobHead, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SubmissionError, match=f"^{words[-1]} trains nothing: "):
        job_head.queue.submit(words, {})
    assert capsys.readouterr().out == ""


def test_a_job_whose_directory_was_deleted_in_the_queue_ends_alone(job_head: JobHead) -> None:
    job_head.queue.submit(["sleep", "9"], {})
    for words in (["true", "second"], ["true", "third"], ["true", "fourth"]):
        job_head.queue.submit(words, {})
    soon(lambda: job_head.ran == ["job-1"])
    for job in ("job-2", "job-4"):
        shutil.rmtree(job_head.run.jobs / job)
    job_head.queue.stop("job-4")
    job_head.queue.stop("job-1")
    soon(lambda: job_head.queue.rows()[2]["state"] == "finished")
    row = job_head.queue.row("job-2")
    assert row is not None
    assert (row["state"], row["exit_code"]) == ("failed", ExitCode.RUN_DIR)
    assert row["sentence"].endswith(
        "jobs/job-2 was deleted while it was in the queue: submit it again"
    )
    assert (job_head.state("job-4"), job_head.ran) == ("stopped", ["job-1", "job-3"])
    assert (job_head.outcome, job_head.error) == (None, None)


def test_a_job_whose_outcome_the_queue_missed_does_not_run_twice(tmp_path: Path) -> None:
    with JobHead(tmp_path, false=fails) as first:
        first.queue.submit(["false"], {})
        soon(lambda: first.state("job-1") == "failed")
    entry = tmp_path / "jobs" / "job-1" / "job.json"  # as if the head was killed before its end
    before = {"state": "queued", "exit_code": None, "sentence": "", "ended": None}
    entry.write_text(json.dumps(json.loads(entry.read_text()) | before))
    with JobHead(tmp_path) as second:
        soon(lambda: second.queue.rows()[0]["state"] == "failed")
        row = second.queue.row("job-1")
        assert row is not None
        assert (row["exit_code"], row["sentence"]) == (70, "ValueError: broken")
        assert second.ran == []


def test_the_secrets_of_a_job_are_masked_in_the_reason_of_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(run: RunContext) -> Outcome:
        run.journal.record("failure", "401 for hf_not-to-be-shown", failure="unknown")
        return Outcome("failed", ExitCode.JOB_FAILED, "401 for hf_not-to-be-shown")

    caplog.set_level("INFO")
    with JobHead(tmp_path, false=refused) as head:
        head.queue.submit(["false"], {"env_vars": {"HF_TOKEN": "hf_not-to-be-shown"}})
        soon(lambda: head.state("job-1") == "failed")
        assert "not-to-be-shown" not in str(head.queue.rows()) + head.run.journal.read_text()
    assert "not-to-be-shown" not in caplog.text
    assert "401 for ***" in caplog.text


@pytest.mark.parametrize("node_first", [False, True])
def test_a_stop_of_job_and_node_at_once_ends_both_for_good(
    tmp_path: Path, node_first: bool
) -> None:
    go_on = threading.Event()

    def ends_late(run: RunContext) -> Outcome:
        go_on.wait(60)
        return until_stopped(run)

    with JobHead(tmp_path, sleep=ends_late) as head:
        head.queue.submit(["sleep", "9"], {})
        soon(lambda: head.ran == ["job-1"])
        if node_first:
            head.inbox.put(StopAsked("SIGTERM"))
        head.queue.stop("job-1")
        head.inbox.put(StopAsked("SIGTERM"))
        go_on.set()
        soon(lambda: head.outcome is not None)
    assert head.state("job-1") == "stopped"


def test_a_ray_that_ends_while_no_job_runs_is_started_again(job_head: JobHead) -> None:
    job_head.inbox.put(RayEnded(1))
    soon(lambda: job_head.revived == 1)


@pytest.mark.parametrize("damage", ['{"id": "job', ""])
def test_a_damaged_entry_is_left_out_and_its_directory_is_not_used_again(
    tmp_path: Path, damage: str
) -> None:
    with JobHead(tmp_path) as first:
        first.queue.submit(["true"], {})
        soon(lambda: first.state("job-1") == "finished")
    entry = tmp_path / "jobs" / "job-1" / "job.json"
    whole = json.loads(entry.read_text())
    entry.write_text(damage or json.dumps(whole | {"words": []}))
    with JobHead(tmp_path) as second:
        assert second.queue.rows() == []
        assert second.queue.submit(["true"], {})["id"] == "job-2"


ENTRY = {
    "id": "job-1",
    "words": ["true", "--lr", "1"],
    "runtime_env": {"env_vars": {"HUB_TOKEN": "hf_secret"}, "working_dir": "."},
    "submitted": "2026-11-23T10:00:00.000+00:00",
    "state": "failed",
    "exit_code": 70,
    "sentence": "ValueError: broken",
    "ended": "2026-11-23T10:00:09.000+00:00",
    "key": "",
    "stage": "sft",
    "after": "job-0",
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(ENTRY))
@example(json.dumps(ENTRY | {"id": "job-../../x"}).encode())
@example(json.dumps(ENTRY | {"words": "true"}).encode())
@example(json.dumps(ENTRY | {"runtime_env": {"env_vars": {"HUB_TOKEN": 7}}}).encode())
@example(json.dumps(ENTRY).encode())
def test_an_entry_of_any_bytes_and_shape_is_read_or_left_out(
    tmp_path: Path, content: bytes
) -> None:
    entry = tmp_path / "jobs" / "job-1" / "job.json"
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_bytes(content)
    head = read_settings({"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RUN_DIR": str(tmp_path)})
    registry = NodeRegistry(HEAD, 1, "first")
    queue = JobQueue(head, Journal(RunFiles(tmp_path).journal, "head"), Inbox(), registry)
    for row in queue.rows():
        assert json.dumps(row)
        job = queue._jobs[row["id"]]
        assert all(isinstance(word, str) for word in queue.settings_of(job).job)
        assert Path(row["run_dir"]) == entry.parent
    assert queue.submit(["true"], {})["id"] == "job-2"
    shutil.rmtree(tmp_path / "jobs" / "job-2")


@pytest.mark.parametrize(
    ("given", "recipe"), [("builtin", "verl"), ("search-r1", "search-r1"), ("command", "command")]
)
def test_a_guides_command_has_its_recipe_unless_that_of_the_head_says_otherwise(
    tmp_path: Path, given: str, recipe: str
) -> None:
    environ = {
        "ROLLCALL_WAIT_FOR_JOBS": "1",
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_RECIPE": given,
        "ROLLCALL_CHECKPOINTS": "out/{step}",  # of the cluster's other jobs
    }
    registry = NodeRegistry(HEAD, 1, "first")
    journal = Journal(RunFiles(tmp_path).journal, "head")
    queue = JobQueue(read_settings(environ), journal, Inbox(), registry)
    words = [sys.executable, "-m", "verl.trainer.main_ppo", "data.train_batch_size=8"]
    row = queue.submit(words, {"py_executable": sys.executable})
    settings = queue.settings_of(queue._jobs["job-1"])
    assert (row["recipe"], settings.recipe) == (recipe, recipe)
    assert (settings.checkpoints is None) == (recipe != given)


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["no-such-program"], {}, "no-such-program is not a program on this node"),
        (["true", "|", "tee"], {}, "no shell reads it"),
        (["--pretrain", "m"], {"pip": ["a"]}, "the builtin trainer takes no runtime environment"),
        (["--use_wandb", "0123456789abcdef"], {}, "set WANDB_API_KEY on the head"),
        (
            ["python3", "-m", "openrlhf.cli.train_sft", "--use_wandb", "0123456789abcdef"],
            {},
            "set WANDB_API_KEY on the head",
        ),
        (["--pretrain", "/none"], {}, "/none"),
        (["true"], {"working_dir": "/none"}, "working_dir /none of the runtime environment is not"),
        (["true"], {"piip": []}, "did you mean pip?"),
    ],
)
def test_a_submission_that_cannot_run_is_refused_and_leaves_nothing(
    job_head: JobHead, words: list[str], environment: dict[str, object], said: str
) -> None:
    with pytest.raises(SubmissionError) as caught:
        job_head.queue.submit(words, environment)
    assert said in str(caught.value)
    assert not job_head.run.jobs.exists()
    assert job_head.kinds() == []
