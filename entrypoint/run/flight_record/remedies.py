"""Pure: what a person does about a run that did not finish."""

from __future__ import annotations

from contract.exit_codes import MEANINGS, RESUMES
from entrypoint.run.failure_classes import HUB, REMEDIES, REMEDY_OF_HUB, FailureClass

OVER = "Submitted again, it is a new job."
OVER_STAGE = "If its pipeline is submitted again, this stage resumes."
"""In place of RESUMES for a submitted job that has ended: the cluster does not start it again."""
WORKERS_TOO = "Start its workers again as well, as before."


def remedy(outcome: str, exit_code: int | None, failure: str | None, service: str = "") -> str:
    """Return what to do; "" if there is nothing to do. `failure`: of the last attempt, if any.

    `service`: the one that did not answer; "" if it is not known.
    """
    if outcome == "finished":
        return ""
    if failure is not None and outcome == "failed":
        if service == HUB:
            return REMEDY_OF_HUB
        return REMEDIES.get(failure) or REMEDIES[FailureClass.UNKNOWN]
    remedies: dict[int, str] = {code: meaning.remedy for code, meaning in MEANINGS.items() if code}
    return remedies.get(exit_code or 0, RESUMES)
