"""Which lines of a job's log are evidence of a class of failure."""

from __future__ import annotations

from entrypoint.job.failures import evidence_log
from entrypoint.job.failures.evidence_log import EvidenceLog
from entrypoint.run.failure_classes import FailureClass as F


def test_the_first_line_of_a_class_is_kept_until_it_is_outlived() -> None:
    steps = iter((3, 4, 9))
    evidence = EvidenceLog(lambda: next(steps))
    evidence.read("OSError: [Errno 28] No space left on device: 'a'")
    evidence.read("OSError: [Errno 28] No space left on device: 'b'")
    assert [one.line[-3:] for one in evidence.at(4)] == ["'a'"]
    evidence.read("OSError: [Errno 28] No space left on device: 'c'")
    assert [one.line[-3:] for one in evidence.at(9)] == ["'c'"]


def test_a_recipes_own_hint_goes_before_the_common_signs() -> None:
    evidence = EvidenceLog(lambda: 0, lambda line: F.SERVICE if "reward" in line else None)
    evidence.read("reward model: CUDA out of memory")
    assert [one.failure for one in evidence.at(0)] == [F.SERVICE]


def test_ordinary_lines_are_no_signs() -> None:
    evidence = EvidenceLog(lambda: 0)
    for line in ("step 12 reward 0.4", "Loading checkpoint shards: 100%", "", "NCCL INFO Using 8"):
        evidence.read(line)
    assert evidence.at(0) == ()


def test_a_line_without_a_space_is_judged_at_once_however_long_it_is() -> None:
    """Its search took minutes, in which the head answered nobody."""
    evidence = EvidenceLog(lambda: 0)
    evidence.read("a" * 10**6)
    assert evidence.last_error == "a" * evidence_log.LONGEST_LINE
