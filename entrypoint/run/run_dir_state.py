"""The state of a run that no head tells, from its directory, in the shape of the head's state."""

from __future__ import annotations

from typing import Any

from contract import lease
from contract.journal import timestamp
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.run import lost_head, run_attempts, run_facts
from entrypoint.run.attempt_ends import HEAD_LOST
from entrypoint.run.flight_record import run_end
from entrypoint.run.run_list import state_of


def read(run: RunFiles, job: str | None = None) -> dict[str, Any]:
    """Return the state without what only a head knows, such as the nodes.

    `job`: by what the page asks for this run. `phase` is `ended`, or the run's state. Raises
    OSError.
    """
    end = run_end.read(run)
    state, sentence = state_of(run)
    attempts = run_attempts.read(run.journal, Progress.read(run.progress), trains=False)
    return {
        "is_live": False,
        "phase": "ended" if end else state,
        "sentence": sentence,
        "job": job,
        **attempts.as_dict(),
        "awaits_worker": state == HEAD_LOST and _awaits_worker(run),
        "outcome": end and end.told(),
        "run": run_facts.read(run),
        "flags": run_facts.flags(run),
        "has_samples": run.samples.exists(),
        "may_stop": False,
        "at": timestamp(),
    }


def _awaits_worker(run: RunFiles) -> bool:
    """Return whether a worker is to take the place of the run's head, which is lost."""
    cluster = lost_head.cluster_of(run)
    silence = lease.silence(cluster.leases)
    return silence is not None and lost_head.is_awaited(lost_head.failover(cluster), silence)
