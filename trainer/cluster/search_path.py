"""Where the workers of a Ray job look for modules."""

from __future__ import annotations

from typing import Any


def job_config() -> Any:
    """For `ray.init`: Ray puts the driver's directory first on the workers' search path, and there
    a user's folder `trainer` or `env` would take the place of this product's.

    Ray leaves it out of a job that comes through its client, whose directory is on another machine.
    """
    from ray.job_config import JobConfig

    return JobConfig(_client_job=True)
