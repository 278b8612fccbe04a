"""Evidence to class, class and history to decision: both are pure tables.

The evidence is in tests/data/failures: what programs really printed, with where it is from.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from contract.run_dir import ExitCode
from entrypoint.job.failures import log_patterns
from entrypoint.job.failures.classes import (
    BESIDE_THE_DRIVER,
    AttemptResult,
    Evidence,
    FailureClass,
    Hung,
    StopRequested,
    WrongStart,
    classify,
    describe,
    find_evidence,
)
from entrypoint.job.failures.log_patterns import PATTERNS, EvidenceLog, failure_in
from entrypoint.job.failures.policy import History, Replace, RestartBudget, Resume, Stop, decide
from entrypoint.machine.xid import ACTIONS, CATALOGUE, XidAction, action
from tests.support.repository import DATA

F = FailureClass
RECORDED = sorted((DATA / "failures").glob("*.toml"))


def recorded() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in RECORDED
        for case in tomllib.loads(path.read_text())["case"]
    ]


def result_of(case: dict[str, Any]) -> AttemptResult:
    """As the supervisor sees it, line by line."""
    step = case.get("step", 0)
    evidence = EvidenceLog(lambda: step)
    for line in case["log"].splitlines():
        evidence.read(line)
    for node, kills in case.get("oom_kills", {}).items():
        evidence.add_oom_kills(node, kills)
    message = case.get("message", case["log"])
    if case.get("error_type") in BESIDE_THE_DRIVER:
        evidence.read_ray_message(message)
    return AttemptResult(
        status="FAILED",
        exit_code=case.get("exit_code"),
        error_type=case.get("error_type"),
        message=message,
        last_error=evidence.last_error,
        evidence=evidence.at(step + case.get("steps_later", 0)),
        step=step,
    )


@pytest.mark.parametrize("case", recorded())
def test_recorded_evidence_gets_its_class(case: dict[str, Any]) -> None:
    result = result_of(case)
    failure = classify(result)
    assert failure == case["expected"], case["source"]
    if "evidence" in case:
        assert case["evidence"] in describe(result, failure)
    if "address" in case:
        told = find_evidence(result, failure)
        assert told is not None
        assert told.address == case["address"]


def test_every_class_that_a_log_can_show_is_met_by_recorded_evidence() -> None:
    cases = [case.values[0] for case in recorded()]
    assert set(PATTERNS) <= {case["expected"] for case in cases}
    assert all(case["source"] for case in cases)


def test_the_evidence_of_a_class_is_one_line_without_speaker_and_colours() -> None:
    evidence = EvidenceLog(lambda: 0)
    evidence.read(
        "\x1b[36m(A pid=7, ip=10.0.0.2)\x1b[0m torch.OutOfMemoryError: CUDA out of memory"
    )
    result = AttemptResult(status="FAILED", exit_code=1, evidence=evidence.at(0))
    assert describe(result, F.GPU_OOM) == "torch.OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[36m(PolicyActor pid=7, ip=10.0.0.2)\x1b[0m FileNotFoundError: relayed",
        "\x1b[33m(raylet)\x1b[0m [2026-11-23 04:00:00,001 E 7 7] node_manager.cc:1: died",
        "2026-11-23 04:00:00,123\tWARNING worker.py:2062 -- A worker died",
        "2026-11-23 04:00:00,123\tERROR worker.py:421 -- Unhandled error",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: 1 leaked",
        "  warnings.warn('resource_tracker: 1 leaked'",
        "[W1123 04:00:00.1 ProcessGroupNCCL.cpp:1479] destroy_process_group() was not called",
        "warning: --flash_attn has no effect on a CPU",
        "WARNING 11-23 04:00:00 [engine.py:1] slow",
        "wandb: Synced 5 files",
        "\x1b[2K\x1b[1A",
        "",
    ],
)
def test_what_is_said_after_a_drivers_error_is_not_taken_for_it(line: str) -> None:
    evidence = EvidenceLog(lambda: 0)
    evidence.read("\x1b[31mthe saved cursor belongs to other prompts than a.jsonl\x1b[0m")
    evidence.read(line)
    result = AttemptResult(
        status="FAILED",
        exit_code=ExitCode.USAGE,
        message=line,
        last_error=evidence.last_error,
        evidence=evidence.at(0),
    )
    assert classify(result) is F.USAGE
    assert describe(result, F.USAGE) == "the saved cursor belongs to other prompts than a.jsonl"


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
    for line in ("step 12 reward 0.4", "Loading checkpoint shards: 100%", "", "NCCL INFO Using 8"):
        assert failure_in(line) is None


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (AttemptResult(status="SUCCEEDED", exit_code=0), F.FINISHED),
        (AttemptResult(status="STOPPED", cause=StopRequested("SIGTERM")), F.PREEMPTED),
        (AttemptResult(status="STOPPED", cause=Hung("no step for 700 s")), F.HANG),
        # Nobody waits for a GPU that is gone.
        (
            AttemptResult(
                status="STOPPED", cause=Hung("none"), evidence=(Evidence(F.GPU_FAULT, "a"),)
            ),
            F.GPU_FAULT,
        ),
        (
            AttemptResult(
                status="STOPPED", cause=Hung("none"), evidence=(Evidence(F.HOST_OOM, "a"),)
            ),
            F.HANG,
        ),
        (AttemptResult(status="STOPPED", cause=WrongStart("it began at 1")), F.WRONG_START),
        (AttemptResult(status="FAILED", exit_code=ExitCode.USAGE), F.USAGE),
        (AttemptResult(status="FAILED", exit_code=1, lost_nodes=("b is silent",)), F.NODE_LOST),
        (
            AttemptResult(
                status="FAILED",
                exit_code=1,
                evidence=(Evidence(F.NODE_LOST, "a"), Evidence(F.GPU_OOM, "b")),
            ),
            F.GPU_OOM,
        ),
        (AttemptResult(status="LOST"), F.NODE_LOST),
        # A node that went away takes imports and collectives down with it: it explains more.
        (
            AttemptResult(
                status="FAILED",
                exit_code=1,
                evidence=(Evidence(F.USAGE, "a"), Evidence(F.COLLECTIVE, "b")),
                lost_nodes=("b",),
            ),
            F.NODE_LOST,
        ),
    ],
)
def test_every_result_has_one_class(result: AttemptResult, failure: F) -> None:
    assert classify(result) is failure


def test_the_evidence_of_a_hang_names_what_was_seen_before_it() -> None:
    seen = Evidence(F.UNKNOWN, "died"), Evidence(F.HOST_OOM, "w1 was out of memory")
    result = AttemptResult(status="STOPPED", cause=Hung("no step for 45 s"), evidence=seen)
    assert describe(result, F.HANG) == "no step for 45 s, after: w1 was out of memory"


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (31, XidAction.RESTART_PROGRAM),
        (119, XidAction.RESET_GPU),
        (79, XidAction.REBOOT_HOST),
        (151, XidAction.RESTART_VM),
        (48, XidAction.LOOK_FURTHER),
        (63, XidAction.IGNORE),
        (9999, XidAction.LOOK_FURTHER),
    ],
)
def test_an_xid_asks_for_what_the_catalogue_says(number: int, wanted: XidAction) -> None:
    assert action(f"kernel: NVRM: Xid (PCI:0000:1a:00): {number}, pid=1122, words") is wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("0x1 (GPU Reset Required)", XidAction.RESET_GPU),
        ("0x2 (Node Reboot Required)", XidAction.REBOOT_HOST),
        ("0x2 (OS Reboot)", XidAction.REBOOT_HOST),
        ("0x4 (Drain and Reset)", XidAction.RESET_GPU),
        ("0x3 (Drain P2P)", XidAction.LOOK_FURTHER),
        ("0x0 (None)", XidAction.IGNORE),
    ],
)
def test_xid_154_names_its_action(words: str, wanted: XidAction) -> None:
    line = (
        f"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to {words}"
    )
    assert action(line) is wanted


def test_the_xid_catalogue_gives_each_number_one_action() -> None:
    assert len(ACTIONS) == sum(map(len, CATALOGUE.values()))
    assert action("Xid is a word") is None


def history(
    attempts_without_progress: int = 0, same_class: int = 1, max_restarts: int = 3
) -> History:
    return History(attempts_without_progress, same_class, max_restarts)


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
    assert isinstance(decision, Stop)
    assert decision.exit_code == code


@pytest.mark.parametrize(
    "failure", [F.NODE_LOST, F.UNKNOWN, F.SERVICE, F.HANG, F.COLLECTIVE, F.GPU_FAULT, F.STORAGE]
)
def test_progress_renews_the_budget_however_many_failures_there_were(failure: F) -> None:
    decision = decide(failure, history(attempts_without_progress=0, same_class=99), from_step=7)
    assert isinstance(decision, Resume)
    assert "from step 7" in decision.sentence


HELD = "or a later one that the nodes hold in memory"


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


def test_restarts_without_progress_end_when_the_budget_is_spent() -> None:
    assert isinstance(decide(F.UNKNOWN, history(attempts_without_progress=3), 0), Resume)
    decision = decide(F.UNKNOWN, history(attempts_without_progress=4), 0)
    assert isinstance(decision, Stop)
    assert decision.exit_code == ExitCode.JOB_FAILED
    assert "ROLLCALL_MAX_RESTARTS" in decision.sentence


def test_no_restart_at_all_where_none_is_allowed() -> None:
    assert isinstance(
        decide(F.UNKNOWN, history(attempts_without_progress=1, max_restarts=0), 0), Stop
    )


def test_out_of_memory_resumes_once_with_advice_then_stops() -> None:
    first = decide(F.GPU_OOM, history(attempts_without_progress=1), 3)
    assert isinstance(first, Resume)
    assert "--micro_train_batch_size" in first.sentence
    second = decide(F.GPU_OOM, history(attempts_without_progress=0, same_class=2), 3)
    assert isinstance(second, Stop)


def test_a_lost_node_is_not_backed_off_from_since_the_roll_is_waited_for_anyway() -> None:
    decision = decide(F.NODE_LOST, history(attempts_without_progress=2), 3)
    assert isinstance(decision, Resume)
    assert not decision.delayed


def test_a_worker_whose_gpu_failed_is_replaced_and_an_unknown_one_is_not_guessed() -> None:
    decision = decide(F.GPU_FAULT, history(attempts_without_progress=1), 3, node="worker-2")
    assert isinstance(decision, Replace)
    assert decision.worker == "worker-2"
    assert isinstance(decide(F.GPU_FAULT, history(attempts_without_progress=1), 3), Resume)


def test_storage_beyond_the_budget_ends_with_73() -> None:
    beyond = decide(F.STORAGE, history(attempts_without_progress=4), 3)
    assert isinstance(beyond, Stop)
    assert beyond.exit_code == ExitCode.RUN_DIR


def test_a_line_without_a_space_is_judged_at_once_however_long_it_is() -> None:
    """Its search took minutes, in which the head answered nobody."""
    assert log_patterns.own_error("a" * 10**6) == "a" * log_patterns.LONGEST_LINE
