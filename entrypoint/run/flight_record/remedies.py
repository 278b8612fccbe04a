"""Pure: what a person does about a run that did not finish."""

from __future__ import annotations

from collections.abc import Mapping

from contract.exit_codes import ExitCode

GOES_ON = "Started again with its run directory, it resumes from its newest checkpoint, if any."
OVER = (
    "If its pipeline is submitted again, a stage resumes; another job that is submitted again is "
    "a new job."
)
"""In place of GOES_ON for a submitted job that has ended: the cluster does not start it again."""
BY_CLASS: Mapping[str, str] = {
    "usage": "Correct the job's command or settings, and start it again.",
    "wrong_start": "Have the job resume from the checkpoint that Rollcall names.",
    "gpu_oom": f"Change what the first line says. {GOES_ON}",
    "host_oom": f"Change what the first line says. {GOES_ON}",
    "gpu_fault": f"Have the GPU examined, or start without its node. {GOES_ON}",
    "node_lost": f"Look at the lost node and its network. {GOES_ON}",
    "collective": f"Look at the network between the nodes: rollcall doctor. {GOES_ON}",
    "service": f"Look at the service and its log. {GOES_ON}",
    "hang": "Read the file stacks-attempt-N.txt beside the log: it says where each process was. "
    f"Raise ROLLCALL_HANG_TIMEOUT if the job was only slow. {GOES_ON}",
    "storage": f"Look at the run directory's storage: it is full, read-only or away. {GOES_ON}",
    "unknown": f"Read the log, and repair the cause. {GOES_ON}",
}
"""Class of the failure that has ended the run → what to do."""
BY_EXIT_CODE: Mapping[int, str] = {
    ExitCode.USAGE: BY_CLASS["usage"],
    ExitCode.UNREACHABLE: "Start the missing nodes, or look at the network and the services. "
    + GOES_ON,
    ExitCode.RUN_DIR: BY_CLASS["storage"],
    ExitCode.RETRY: "Start it again with the same run directory. If it ends so again, read the log "
    "that the first line names, and the head's.",
    ExitCode.UNFIT: f"Replace the node that is not fit; rollcall doctor says why. {GOES_ON}",
    ExitCode.STOPPED: GOES_ON,
}
"""Exit code of a run that no attempt has ended → what to do."""


def remedy(outcome: str, exit_code: int | None, failure: str | None) -> str:
    """Return what to do; "" if there is nothing to do. `failure`: of the last attempt, if any."""
    if outcome == "finished":
        return ""
    if failure is not None and outcome == "failed":
        return BY_CLASS.get(failure, BY_CLASS["unknown"])
    return BY_EXIT_CODE.get(exit_code or 0, GOES_ON)
