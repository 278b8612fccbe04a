"""What a check answers, and what its documentation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """A check's answer, from best to worst. `skip` says nothing."""

    SKIP = "skip"
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found."""

    verdict: Verdict
    evidence: str
    """What was measured, with its unit."""
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
    passes: bool = False
    """Whether the fault may pass by itself, so that another start may succeed."""
    ends_with_start: bool = False
    """Whether the node's start ends what was found, so that a node at work does not have it."""


def worst(findings: Sequence[Finding]) -> Finding:
    """One finding for several GPUs or ports: the worst verdict, with the evidence for it."""
    verdict = max((finding.verdict for finding in findings), key=SEVERITY.__getitem__)
    decisive = [finding for finding in findings if finding.verdict is verdict]
    remedies = dict.fromkeys(finding.remedy for finding in decisive if finding.remedy)
    evidence = "; ".join(finding.evidence for finding in decisive)
    ends = all(finding.ends_with_start for finding in decisive)
    return Finding(verdict, evidence, "; ".join(remedies), ends_with_start=ends)
