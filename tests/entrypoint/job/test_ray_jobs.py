"""The client of Ray's job API, against a small stand-in for it on loopback.

The job's log does not come from the dashboard: see test_job_log.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from entrypoint.job import ray_jobs
from entrypoint.job.ray_jobs import JobInfo, JobRefusedError, command_line
from entrypoint.net.wait import GaveUpError, InterruptedWaitError, NotYetError
from tests.support.control import TOKEN
from tests.support.fake_ray import FakeRay, client, submit

NO_AGENT = (500, "No available agent to submit job, please try again later.")


def test_a_submission_is_tried_again_until_ray_has_an_agent(ray: FakeRay) -> None:
    ray.refusals = [NO_AGENT, NO_AGENT]
    submit(ray)
    (body,) = ray.submitted
    assert body["submission_id"] == "one"
    assert body["entrypoint"].endswith("&& exec env STEP=7 python train.py")
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


def test_a_stop_is_passed_on_and_does_not_fail_where_ray_is_gone(ray: FakeRay) -> None:
    client(ray.url).stop("one")
    assert ray.stopped == ["one"]
    client("http://127.0.0.1:9").stop("one")


def test_the_command_runs_here_with_its_variables_as_the_very_process_that_was_started() -> None:
    code = "import json, os; print(json.dumps([os.getpid(), os.environ['NOTE'], os.getcwd()]))"
    line = command_line([sys.executable, "-c", code], {"NOTE": "a 'b' $c"})
    shell = subprocess.Popen(["/bin/sh", "-c", line], cwd="/", stdout=subprocess.PIPE, text=True)
    output, _ = shell.communicate(timeout=20)
    assert json.loads(output) == [shell.pid, "a 'b' $c", os.getcwd()]  # noqa: PTH109
