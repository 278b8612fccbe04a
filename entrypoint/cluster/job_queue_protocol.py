"""What the control port asks of the queue of submitted jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from contract.options import did_you_mean
from entrypoint.config.pipeline import Stage


class SubmissionError(Exception):
    """A submission cannot be a job; `faults` has a sentence for each reason."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class JobQueueProtocol(Protocol):
    """Every method may be called from any thread. `submit…` and `stop` wait for storage."""

    def submit(
        self, words: Sequence[str], runtime_env: Mapping[str, Any], key: str = "", name: str = ""
    ) -> dict[str, Any]:
        """Take a job into the queue; return its row. Raises SubmissionError and OSError.

        `name`: the run's name. With the `key` of an earlier job, returns that job's row.
        """
        ...

    def submit_stages(self, stages: Sequence[Stage]) -> list[dict[str, Any]]:
        """Take a pipeline into the queue; return the row of each stage's job, in their order.

        A stage has a new job unless its newest job is of the same key and waits, runs or has
        finished. All stages are taken, or none. Raises SubmissionError and OSError.
        """
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Return all jobs, oldest first."""
        ...

    def row(self, job: str) -> dict[str, Any] | None:
        """Return one job; None if there is none of that id."""
        ...

    def stop(self, job: str) -> None:
        """End a job that is not over: at once, or after it has saved. Raises OSError."""
        ...


def which_job(job: str, names: Iterable[tuple[str, str]]) -> str:
    """Pure: return which job may have been meant by one that is not there, and all that are.

    `names`: the id and the name of each job.
    """
    known = list(names)
    if not known:
        return "there are no jobs yet"
    told = ", ".join(f"{one} ({name})" if name else one for one, name in known)
    every = [one for both in known for one in both if one]
    meant = did_you_mean(job, every)
    return f"{meant} The jobs are {told}" if meant else f"the jobs are {told}"
