"""What the supervisor does after a failure: resume, replace a worker, or stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.exit_codes import ExitCode
from entrypoint.job.failures.classes import CodeError
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.failures.policy import (
    OWN_START,
    History,
    Replace,
    RestartBudget,
    Resume,
    decide,
)
from entrypoint.run.failure_classes import FailureClass as F

HELD = "or a later one that the nodes hold in memory"


def history(
    attempts_without_progress: int = 0,
    same_class: int = 1,
    max_restarts: int = 3,
    *,
    saves_itself: bool = False,
) -> History:
    counts = attempts_without_progress, same_class, max_restarts
    return History(*counts, saves_itself=saves_itself)


def test_the_track_counts_attempts_without_a_step_and_ends_of_one_class_in_a_row() -> None:
    budget = RestartBudget(max_restarts=3)
    seen = [
        budget.after(failure, progressed=progressed)
        for failure, progressed in (
            (F.UNKNOWN, False),
            (F.UNKNOWN, False),
            (F.GPU_OOM, True),
            (F.GPU_OOM, False),
        )
    ]
    assert [(one.attempts_without_progress, one.same_class) for one in seen] == [
        (1, 1),
        (2, 2),
        (0, 1),
        (1, 2),
    ]


def test_the_same_error_of_the_code_twice_in_a_row_ends_the_run() -> None:
    budget, bug = RestartBudget(max_restarts=3), CodeError("KeyError", "data.py:7")
    first = budget.after(F.CODE, bug, progressed=True)
    assert isinstance(decide(F.CODE, first, from_step=4), Resume)
    other = budget.after(F.CODE, CodeError("KeyError", "data.py:9"), progressed=False)
    assert isinstance(decide(F.CODE, other, from_step=4), Resume)
    again = budget.after(F.CODE, CodeError("KeyError", "data.py:9"), progressed=True)
    decision = decide(F.CODE, again, from_step=4)
    assert isinstance(decision, Outcome), "new steps between do not correct the line"
    assert decision.exit_code == ExitCode.JOB_FAILED
    assert "same error twice in a row, at data.py:9" in decision.sentence


@pytest.mark.parametrize(
    ("between", "progressed"),
    [(CodeError(), False), (CodeError("KeyError: 'x'"), True)],
)
def test_another_end_or_a_new_step_between_two_errors_of_no_known_line_gives_another_try(
    between: CodeError, *, progressed: bool
) -> None:
    budget, bug = RestartBudget(max_restarts=3), CodeError("KeyError: 'x'")
    budget.after(F.UNKNOWN, bug, progressed=False)
    last = budget.after(F.UNKNOWN, between, progressed=progressed)
    if not progressed:
        last = budget.after(F.UNKNOWN, bug, progressed=False)
    assert isinstance(decide(F.UNKNOWN, last, from_step=4), Resume)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (F.FINISHED, ExitCode.FINISHED),
        (F.PREEMPTED, ExitCode.STOPPED),
        (F.USAGE, ExitCode.USAGE),
        (F.WRONG_START, ExitCode.JOB_FAILED),
    ],
)
def test_what_another_try_cannot_change_stops_at_once(failure: F, code: ExitCode) -> None:
    decision = decide(failure, history(), from_step=5)
    assert isinstance(decision, Outcome)
    assert decision.exit_code == code


@pytest.mark.parametrize(
    "failure", [F.NODE_LOST, F.UNKNOWN, F.SERVICE, F.HANG, F.COLLECTIVE, F.GPU_FAULT, F.STORAGE]
)
def test_progress_renews_the_budget_however_many_failures_there_were(failure: F) -> None:
    decision = decide(failure, history(attempts_without_progress=0, same_class=99), from_step=7)
    assert isinstance(decision, Resume)
    assert "from step 7" in decision.sentence


@pytest.mark.parametrize(
    ("on_disk", "in_memory", "told"),
    [
        (0, 0, "the job died: starting again from the beginning"),
        (40, 0, "the job died: resuming from step 40"),
        (40, 42, f"the job died: resuming from step 42 {HELD}, else step 40"),
        (0, 2, f"the job died: resuming from step 2 {HELD}, else the beginning"),
        (45, 44, "the job died: resuming from step 45"),
    ],
)
def test_the_sentence_tells_of_the_newest_of_what_disk_and_memory_hold(
    on_disk: int, in_memory: int, told: str
) -> None:
    assert decide(F.UNKNOWN, history(), on_disk, in_memory=in_memory).sentence == told


@pytest.mark.parametrize(
    ("failure", "told", "from_step"),
    [
        (F.UNKNOWN, f"the job died: {OWN_START}", 0),
        (F.GPU_OOM, f"out of memory (gpu_oom): {OWN_START} once", 0),
        (F.PREEMPTED, "what the job has saved is not known", 0),
        (F.UNKNOWN, "the job died: resuming from step 40", 40),
    ],
)
def test_from_where_a_job_goes_on_that_alone_knows_its_checkpoints(
    failure: F, told: str, from_step: int
) -> None:
    assert decide(failure, history(saves_itself=True), from_step).sentence == told


def test_restarts_without_progress_end_when_the_budget_is_spent() -> None:
    assert isinstance(decide(F.UNKNOWN, history(attempts_without_progress=3), 0), Resume)
    decision = decide(F.UNKNOWN, history(attempts_without_progress=4), 0)
    assert isinstance(decision, Outcome)
    assert decision.exit_code == ExitCode.JOB_FAILED
    assert "ROLLCALL_MAX_RESTARTS" in decision.sentence


def test_no_restart_at_all_where_none_is_allowed() -> None:
    assert isinstance(
        decide(F.UNKNOWN, history(attempts_without_progress=1, max_restarts=0), 0), Outcome
    )


def test_out_of_memory_resumes_once_and_stops_if_that_brings_no_new_step() -> None:
    first = decide(F.GPU_OOM, history(attempts_without_progress=1), 3)
    assert isinstance(first, Resume)
    assert first.sentence == "out of memory (gpu_oom): resuming from step 3 once"
    later = decide(F.GPU_OOM, history(attempts_without_progress=0, same_class=2), 900)
    assert isinstance(later, Resume)
    second = decide(F.GPU_OOM, history(attempts_without_progress=1, same_class=2), 3)
    assert isinstance(second, Outcome)
    assert second.sentence == "out of memory (gpu_oom), twice in a row without a new step"


def test_what_takes_a_nodes_memory_beside_the_job_has_seconds_to_end() -> None:
    decision = decide(F.HOST_OOM, history(attempts_without_progress=0), 3)
    assert isinstance(decision, Resume)
    assert decision.first_pause >= 10


def test_a_lost_node_is_not_backed_off_from_since_the_roll_is_waited_for_anyway() -> None:
    decision = decide(F.NODE_LOST, history(attempts_without_progress=2), 3)
    assert isinstance(decision, Resume)
    assert not decision.first_pause


def test_a_worker_whose_gpu_failed_is_replaced_and_an_unknown_one_is_not_guessed() -> None:
    decision = decide(F.GPU_FAULT, history(attempts_without_progress=1), 3, node="worker-2")
    assert isinstance(decision, Replace)
    assert decision.worker == "worker-2"
    assert isinstance(decide(F.GPU_FAULT, history(attempts_without_progress=1), 3), Resume)


def test_storage_beyond_the_budget_ends_with_73() -> None:
    beyond = decide(F.STORAGE, history(attempts_without_progress=4), 3)
    assert isinstance(beyond, Outcome)
    assert beyond.exit_code == ExitCode.RUN_DIR


def test_a_hub_that_does_not_answer_is_tried_once_more_and_later() -> None:
    first = replace(history(1), lacks_hub=True)
    decision = decide(F.SERVICE, first, from_step=0)
    assert isinstance(decision, Resume)
    assert decision.first_pause == 15
    assert "once, in 15 s" in decision.sentence
    again = decide(F.SERVICE, replace(history(2, same_class=2), lacks_hub=True), from_step=0)
    assert isinstance(again, Outcome)
    assert again.exit_code == ExitCode.JOB_FAILED
    assert again.sentence.startswith("the hub did not answer, twice in a row")
    other = decide(F.SERVICE, history(2, same_class=2), from_step=0)
    assert isinstance(other, Resume), "a reward server may need longer"
