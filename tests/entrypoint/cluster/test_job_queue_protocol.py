"""What is said of a job that is not there."""

from __future__ import annotations

import pytest

from entrypoint.cluster.job_queue_protocol import which_job

JOBS = [("job-1", "sft"), ("job-2", "")]


@pytest.mark.parametrize(
    ("job", "jobs", "said"),
    [
        ("jbo-2", JOBS, "did you mean job-2? The jobs are job-1 (sft), job-2"),
        ("stf", JOBS, "did you mean sft? The jobs are job-1 (sft), job-2"),
        ("nosuch", JOBS, "the jobs are job-1 (sft), job-2"),
        ("job-1", [], "there are no jobs yet"),
    ],
)
def test_a_job_that_is_not_there_has_a_near_name_or_the_names_of_all(
    job: str, jobs: list[tuple[str, str]], said: str
) -> None:
    assert which_job(job, jobs) == said
