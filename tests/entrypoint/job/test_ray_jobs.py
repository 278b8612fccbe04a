"""The client of Ray's job API, against a small stand-in for it on loopback.

The job's log does not come from the dashboard: see test_job_log.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from entrypoint.job import ray_jobs
from entrypoint.job.ray_jobs import JobInfo, JobRefusedError, command_line
from entrypoint.job.recipes.base import JobCommand
from entrypoint.net.wait import GaveUpError, InterruptedWaitError, NotYetError
from tests.support.control import TOKEN
from tests.support.fake_ray import NEVER, FakeRay, client, submit

NO_AGENT = (500, "No available agent to submit job, please try again later.")


def test_a_submission_is_tried_again_until_ray_has_an_agent(ray: FakeRay) -> None:
    ray.refusals = [NO_AGENT, NO_AGENT]
    submit(ray)
    (body,) = ray.submitted
    assert body["submission_id"] == "one"
    assert body["entrypoint"].endswith("/variables/one && exec python train.py")
    assert ray.tokens == {f"Bearer {TOKEN}"}


def test_a_submission_whose_answer_was_lost_is_not_made_twice(ray: FakeRay) -> None:
    ray.refusals = [(500, "Traceback ...\nValueError: Job with submission_id one already exists.")]
    submit(ray)
    assert ray.submitted == []


def test_what_ray_refuses_is_not_tried_again(ray: FakeRay) -> None:
    ray.refusals = [(400, "Traceback ...\nTypeError: entrypoint must be a string\n")]
    with pytest.raises(JobRefusedError, match=r"^TypeError: entrypoint must be a string$"):
        submit(ray)
    assert ray.submitted == []


def test_a_submission_is_given_up_in_time(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "SUBMIT_TIMEOUT_SECONDS", 0.3)
    ray.refusals = [NO_AGENT] * 100
    with pytest.raises(GaveUpError, match="No available agent"):
        submit(ray)


def test_a_stop_ends_the_tries(ray: FakeRay) -> None:
    ray.refusals = [NO_AGENT] * 100
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(InterruptedWaitError):
        submit(ray, stop)


def test_the_end_of_a_job_is_known_with_its_exit_code(ray: FakeRay) -> None:
    jobs = client(ray.url)
    assert jobs.info("one") == JobInfo("RUNNING")
    assert not jobs.info("one").ended
    ray.status = "FAILED"
    assert jobs.info("one") == JobInfo("FAILED", driver_exit_code=3)
    assert jobs.info("one").ended


def test_a_ray_that_does_not_know_the_job_or_does_not_answer_says_nothing_of_its_end(
    ray: FakeRay,
) -> None:
    with pytest.raises(NotYetError):
        client(ray.url).info("unknown")
    with pytest.raises(NotYetError):
        client("http://127.0.0.1:9").info("one")


def test_a_stop_is_passed_on_and_does_not_fail_where_ray_is_gone(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(ray.url).stop("one")
    assert ray.stopped == ["one"]
    monkeypatch.setattr(ray_jobs, "STOP_TIMEOUT_SECONDS", 1.0)
    client("http://127.0.0.1:9").stop("one")


@pytest.mark.parametrize("in_file", [False, True])
def test_the_command_runs_here_with_its_variables_as_the_very_process_that_was_started(
    in_file: bool, ray: FakeRay, tmp_path: Path
) -> None:
    code = "import json, os; print(json.dumps([os.getpid(), os.environ['NOTE'], os.getcwd()]))"
    command = JobCommand((sys.executable, "-c", code), {"NOTE": "a 'b' $c"})
    line = command_line(command.argv, command.env, Path.cwd())
    if in_file:
        client(ray.url, tmp_path / "ray").submit("one", command, NEVER)
        line = json.loads(json.dumps(ray.submitted[0]))["entrypoint"]
        (file,) = (tmp_path / "variables").iterdir()
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert "a 'b'" not in line
    shell = subprocess.Popen(["/bin/sh", "-c", line], cwd="/", stdout=subprocess.PIPE, text=True)
    output, _ = shell.communicate(timeout=20)
    assert json.loads(output) == [shell.pid, "a 'b' $c", os.getcwd()]  # noqa: PTH109


def test_a_working_directory_is_brought_to_each_new_ray_once_and_is_where_the_job_starts(
    ray: FakeRay, tmp_path: Path
) -> None:
    package = tmp_path / f"_ray_pkg_{'a' * 64}.zip"
    package.write_bytes(b"PK")
    environment = {"working_dir": str(package), "env_vars": {"LEVEL": "2"}}
    command = JobCommand(("python", "train.py"), {"STEP": "7"}, environment)
    for submission in ("one", "two"):
        client(ray.url, tmp_path / "ray").submit(submission, command, NEVER)
    assert ray.packages == {package.name: b"PK"}
    assert ray.brought == [package.name]
    body = json.loads(json.dumps(ray.submitted[0]))
    file = tmp_path / "variables" / "one"
    assert body["entrypoint"] == f". {file} && rm {file} && exec python train.py"
    assert body["runtime_env"] == {
        "working_dir": f"gcs://{package.name}",
        "env_vars": {"LEVEL": "2"},
    }
    ray.packages.clear()  # as of a Ray that was restarted
    client(ray.url, tmp_path / "ray").submit("three", command, NEVER)
    assert len(ray.brought) == 2


def test_a_job_whose_archive_is_gone_is_refused(ray: FakeRay, tmp_path: Path) -> None:
    gone = {"working_dir": str(tmp_path / "gone.zip")}
    with pytest.raises(JobRefusedError, match=r"gone\.zip: No such file"):
        client(ray.url).submit("one", JobCommand(("true",), runtime_env=gone), NEVER)


def test_packages_alone_leave_the_job_in_the_nodes_directory(ray: FakeRay) -> None:
    command = JobCommand(("true",), runtime_env={"pip": ["einops"]})
    client(ray.url).submit("one", command, NEVER)
    assert ray.submitted[0]["runtime_env"] == {"pip": ["einops"]}
    assert ray.submitted[0]["entrypoint"] == f"cd {Path.cwd()} && exec true"
