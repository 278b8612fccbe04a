"""Evidence to class, class and history to decision: both are pure tables."""

import pytest

from entrypoint.failures import Ending, FailureClass, classify, sign
from entrypoint.restart import History, Resume, Stop, decide
from trainer.contract import ExitCode

F = FailureClass


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
            " total capacity of 79.10 GiB of which 1.20 GiB is free.",
            F.GPU_OOM,
        ),
        ("OSError: [Errno 28] No space left on device", F.STORAGE),
        ("OSError: [Errno 116] Stale file handle: '/checkpoints'", F.STORAGE),
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this"
            " task.",
            F.NODE_LOST,
        ),
        (
            "[rank3]:[E1121 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation"
            " timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE) ran for 600029 milliseconds before"
            " timing out.",
            F.COLLECTIVE,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", F.COLLECTIVE),
        ("NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", F.GPU_FAULT),
        ("ModuleNotFoundError: No module named 'openrlhf'", F.USAGE),
        ("train.py: error: unrecognized arguments: --lerning_rate", F.USAGE),
        (
            "ray.exceptions.ActorDiedError: The actor died because of an error raised in its"
            " creation task, ray::_Host.__init__() (pid=14276, ip=127.0.0.3)",
            None,
        ),
        ("step 12 reward 0.4", None),
    ],
)
def test_a_log_line_points_to_its_class(line: str, failure: F | None) -> None:
    assert sign(line) is failure


@pytest.mark.parametrize(
    ("ending", "failure"),
    [
        (Ending(status="SUCCEEDED", exit_code=0), F.FINISHED),
        (Ending(status="STOPPED", stop_asked=True), F.PREEMPTED),
        (Ending(status="STOPPED", hung_seconds=700.0), F.HANG),
        (Ending(status="FAILED", exit_code=ExitCode.USAGE), F.USAGE),
        (Ending(status="FAILED", exit_code=ExitCode.UNREACHABLE), F.SERVICE),
        (Ending(status="FAILED", exit_code=ExitCode.STOPPED), F.PREEMPTED),
        (Ending(status="FAILED", error_type="RUNTIME_ENV_SETUP_FAILURE"), F.USAGE),
        (Ending(status="FAILED", exit_code=-9), F.UNKNOWN),
        (Ending(status="FAILED", exit_code=1, lost_nodes=("b is silent",)), F.NODE_LOST),
        (Ending(status="FAILED", exit_code=1, hints=(F.NODE_LOST, F.GPU_OOM)), F.GPU_OOM),
        (Ending(status="LOST"), F.NODE_LOST),
        (Ending(status="FAILED", exit_code=1, hints=(F.USAGE,)), F.USAGE),
        # A node that went away takes imports down with it: the node explains more.
        (
            Ending(status="FAILED", exit_code=1, hints=(F.USAGE,), lost_nodes=("b",)),
            F.NODE_LOST,
        ),
    ],
)
def test_every_ending_has_one_class(ending: Ending, failure: F) -> None:
    assert classify(ending) is failure


def history(fruitless: int = 0, same_class: int = 1, max_restarts: int = 3) -> History:
    return History(fruitless, same_class, max_restarts)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (F.FINISHED, ExitCode.FINISHED),
        (F.PREEMPTED, ExitCode.STOPPED),
        (F.USAGE, ExitCode.USAGE),
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
    decision = decide(failure, history(fruitless=0, same_class=99), from_step=7)
    assert isinstance(decision, Resume)
    assert "from step 7" in decision.sentence


def test_restarts_without_progress_end_when_the_budget_is_spent() -> None:
    assert isinstance(decide(F.UNKNOWN, history(fruitless=3), 0), Resume)
    decision = decide(F.UNKNOWN, history(fruitless=4), 0)
    assert isinstance(decision, Stop)
    assert decision.exit_code == ExitCode.JOB_FAILED
    assert "ROLLCALL_MAX_RESTARTS" in decision.sentence


def test_no_restart_at_all_where_none_is_allowed() -> None:
    assert isinstance(decide(F.UNKNOWN, history(fruitless=1, max_restarts=0), 0), Stop)


def test_out_of_memory_resumes_once_with_advice_then_stops() -> None:
    first = decide(F.GPU_OOM, history(fruitless=1), 3)
    assert isinstance(first, Resume)
    assert "--micro_train_batch_size" in first.sentence
    second = decide(F.GPU_OOM, history(fruitless=0, same_class=2), 3)
    assert isinstance(second, Stop)


def test_a_lost_node_is_not_backed_off_from_since_the_roll_is_waited_for_anyway() -> None:
    decision = decide(F.NODE_LOST, history(fruitless=2), 3)
    assert isinstance(decision, Resume)
    assert not decision.delayed
