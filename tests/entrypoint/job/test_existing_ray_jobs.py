"""The client of a Ray that exists already, against a small stand-in for its job API."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.existing_ray_jobs import ExistingRayJobs
from entrypoint.job.recipes.base import JobCommand
from entrypoint.net.wait import GaveUpError, InterruptedWaitError, NotYetError
from tests.support.control import TOKEN
from tests.support.fake_ray import NEVER, FakeRay

OURS = {
    "ROLLCALL_RUN_DIR": "/shared/run",
    "RAY_JOB_STOP_WAIT_TIME_S": "60",
    "PYTHONUNBUFFERED": "1",
}


def jobs_of(url: str) -> ExistingRayJobs:
    environ = {
        "ROLLCALL_RAY_ADDRESS": url,
        "ROLLCALL_RUN_DIR": "/shared/run",
        "ROLLCALL_NODE_NAME": "supervisor",
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_GRACE_SECONDS": "60",
    }
    return ExistingRayJobs(url, TOKEN, read_settings(environ))


@pytest.fixture
def jobs(ray: FakeRay) -> ExistingRayJobs:
    return jobs_of(ray.url)


def submitted(ray: FakeRay, jobs: ExistingRayJobs, runtime_env: Mapping[str, Any]) -> Any:
    jobs.submit("one", JobCommand(("train",), {}, runtime_env), NEVER)
    return ray.submitted[-1]["runtime_env"]


def test_a_job_has_the_variables_that_a_ray_of_rollcall_would_have(
    ray: FakeRay, jobs: ExistingRayJobs
) -> None:
    assert submitted(ray, jobs, {}) == {"env_vars": OURS}


def test_a_jobs_own_runtime_environment_stays_and_its_variables_win(
    ray: FakeRay, jobs: ExistingRayJobs
) -> None:
    given = {
        "pip": ["einops"],
        "working_dir": "file:///shared/run/packages/one.zip",
        "env_vars": {"STEP": "7", "PYTHONUNBUFFERED": "0"},
    }
    variables = {**OURS, "STEP": "7", "PYTHONUNBUFFERED": "0"}
    assert submitted(ray, jobs, given) == {**given, "env_vars": variables}
    assert ray.packages == {}


def test_a_working_directory_that_rays_nodes_do_not_see_is_given_to_ray(
    ray: FakeRay, jobs: ExistingRayJobs, tmp_path: Path
) -> None:
    package = tmp_path / f"_ray_pkg_{'0' * 64}.zip"
    package.write_bytes(b"the archive")
    environment = submitted(ray, jobs, {"working_dir": str(package)})
    assert environment == {"working_dir": f"gcs://{package.name}", "env_vars": OURS}
    assert ray.packages == {package.name: b"the archive"}


def test_at_its_end_the_client_stops_what_still_runs(ray: FakeRay, jobs: ExistingRayJobs) -> None:
    for name in ("one", "two"):
        jobs.submit(name, JobCommand(("train",)), NEVER)
    ray.status = "FAILED"
    assert jobs.info("one").ended
    jobs.end_own()
    assert ray.stopped == ["two"]


def test_the_jobs_of_an_earlier_head_end_before_the_first_attempt_and_no_others(
    ray: FakeRay, jobs: ExistingRayJobs
) -> None:
    ray.statuses = {"one": "FAILED", "two": "RUNNING", "three": "RUNNING", None: "RUNNING"}
    jobs.end_earlier(["one", "two", "four", ""], NEVER)
    assert ray.stopped == ["two"]


def test_a_job_of_an_earlier_head_that_does_not_end_is_named(
    ray: FakeRay, jobs: ExistingRayJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.job.existing_ray_jobs.LATE_SECONDS", -59.8)
    monkeypatch.setattr(jobs, "stop", lambda _: None)
    ray.statuses = {"two": "RUNNING"}
    with pytest.raises(GaveUpError, match="two still runs"):
        jobs.end_earlier(["two"], NEVER)


def test_a_ray_that_does_not_answer_is_asked_for_earlier_jobs_again() -> None:
    with pytest.raises(NotYetError):
        jobs_of("http://127.0.0.1:9").end_earlier(["one"], NEVER)


def test_a_short_job_returns_its_end_and_its_output(ray: FakeRay, jobs: ExistingRayJobs) -> None:
    ray.status, ray.output = "SUCCEEDED", "a line\nanother\n"
    info, output = jobs.output_of("nodes", ("python", "-c", "pass"), 10, NEVER)
    assert (info.status, output) == ("SUCCEEDED", "a line\nanother\n")
    assert ray.submitted[-1]["entrypoint"].endswith("exec python -c pass")
    assert ray.stopped == []


def test_a_short_job_that_takes_too_long_or_is_not_wanted_any_more_is_stopped(
    ray: FakeRay, jobs: ExistingRayJobs
) -> None:
    with pytest.raises(GaveUpError, match="the job is RUNNING"):
        jobs.output_of("late", ("sleep", "99"), 0.2, NEVER)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(InterruptedWaitError):
        jobs.output_of("unwanted", ("sleep", "99"), 30, stop)
    assert ray.stopped == ["late", "unwanted"]
