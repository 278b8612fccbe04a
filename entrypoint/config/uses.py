"""What settings are read for: a fault in one that is not needed for it refuses nothing."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from functools import cache

from entrypoint.config.settings import declared

OF_OTHER_PROGRAMS = ("runtime_env", "step_pattern", "checkpoints", "resume_args")
"""Settings of a job that is not the builtin trainer's."""
OF_JOB = ("recipe", "job", "name", "check_code", *OF_OTHER_PROGRAMS)
"""Settings that a node needs only if it has the job: a head."""
TO_ASK = (
    *("ray_worker", "head_pod_id", "head_address", "ray_address", "urls", "control_port", "bind"),
    *("run_dir", "token", "tls", "tls_cert", "tls_key", "tls_ca", "head_timeout"),
)
"""Settings by which a command finds the head, or the run directory, and is let in."""
FACTS_TO_ASK = ("head_address", "node_host")
"""The platform's facts that do the same."""


class Use(Enum):
    START = auto()
    """A node starts; a head has the job, a worker has none."""
    MACHINE = auto()
    """A node, whatever its job is: a worker, or a machine that is examined."""
    ASK = auto()
    """A command asks the head, stops it, or reads the run directory."""

    def needs(self, path: str) -> bool:
        """Return whether a fault of this variable, or flag of the job, counts."""
        if self is Use.ASK:
            return path in names_of(TO_ASK)
        return self is Use.START or not (path.startswith("-") or path in names_of(OF_JOB))

    def needs_fact(self, fact: str) -> bool:
        """Return whether a fault in a fact of the platform counts."""
        return self is not Use.ASK or fact in FACTS_TO_ASK

    def may_mean(self, variables: Iterable[str]) -> bool:
        """Return whether a name that is no setting counts, which is like these variables."""
        return self is not Use.ASK or any(map(self.needs, variables))


@cache
def names_of(fields: tuple[str, ...]) -> frozenset[str]:
    """Return the variables of these fields of Settings."""
    return frozenset(name for field in fields for name in declared()[field].about.names)
