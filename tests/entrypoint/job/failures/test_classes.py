"""The evidence of an attempt gives its class of failure.

The evidence in tests/data/failures is what programs really printed, with its source.
"""

from __future__ import annotations

import builtins
import re
import tomllib
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.launch.log_lines import LONGEST_WORDS, ended_rank
from entrypoint.job.failures import tracebacks
from entrypoint.job.failures.classes import (
    BEFORE_THE_DRIVER,
    OF_CODE,
    OF_OWN_CHECK,
    AttemptResult,
    CodeError,
    Evidence,
    Hung,
    Reason,
    StopRequested,
    WrongStart,
    classify,
    error_of_code,
    explain,
    find_evidence,
)
from entrypoint.job.failures.evidence_log import MOST_RAISED, EvidenceLog
from entrypoint.job.failures.user_modules import looked_up
from entrypoint.run.failure_classes import FAILURES, FailureClass
from tests.support.repository import DATA, ROOT

F = FailureClass
ERRORS_OF_PYTHON = [
    name
    for name, one in vars(builtins).items()
    if isinstance(one, type) and issubclass(one, Exception)
]
ENDS = tomllib.loads((DATA / "last_lines.toml").read_text())["end"]
PRINTED = tomllib.loads((DATA / "tracebacks.toml").read_text())["printed"]
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
    if case.get("error_type") in BEFORE_THE_DRIVER:
        evidence.read_ray_message(message)
    seen = AttemptResult(
        status="FAILED",
        exit_code=case.get("exit_code"),
        error_type=case.get("error_type"),
        message=message,
        last_error=evidence.last_error,
        evidence=evidence.at(step + case.get("steps_later", 0)),
        step=step,
        told_error=evidence.told_error(step),
        told_place=evidence.told_place(),
        told_is_raised_there=evidence.told_is_raised_there(),
    )
    return looked_up(seen)


@pytest.mark.parametrize("case", recorded())
def test_recorded_evidence_gets_its_class(case: dict[str, Any]) -> None:
    result = result_of(case)
    failure = classify(result)
    assert failure == case["expected"], case["source"]
    if "evidence" in case:
        assert case["evidence"] in explain(result, failure).sentence
    if "address" in case:
        told = find_evidence(result, failure)
        assert told is not None
        assert told.address == case["address"]


def test_every_class_that_a_log_can_show_is_met_by_recorded_evidence() -> None:
    cases = [case.values[0] for case in recorded()]
    assert {name for name, row in FAILURES.items() if row.patterns} <= {
        case["expected"] for case in cases
    }
    assert all(case["source"] for case in cases)


def test_the_evidence_of_a_class_is_one_line_without_speaker_and_colours() -> None:
    evidence = EvidenceLog(lambda: 0)
    evidence.read(
        "\x1b[36m(A pid=7, ip=10.0.0.2)\x1b[0m torch.OutOfMemoryError: CUDA out of memory"
    )
    result = AttemptResult(status="FAILED", exit_code=1, evidence=evidence.at(0))
    assert explain(result, F.GPU_OOM).sentence == "torch.OutOfMemoryError: CUDA out of memory"


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
    assert (
        explain(result, F.USAGE).sentence
        == "the saved cursor belongs to other prompts than a.jsonl"
    )


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
    assert explain(result, F.HANG).sentence == "no step for 45 s, after: w1 was out of memory"


def ended_with(log: str) -> AttemptResult:
    evidence = EvidenceLog(lambda: 0)
    for line in ["Running entrypoint for job rollcall-1: cd /job && exec train", *log.splitlines()]:
        evidence.read(line)
    last, told = evidence.last_error, evidence.told_error(0)
    return AttemptResult(status="FAILED", exit_code=3, last_error=last, told_error=told)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end["program"])
def test_the_reason_of_an_end_is_the_programs_error_or_there_is_none(end: dict[str, str]) -> None:
    said = explain(ended_with(end["log"]), F.UNKNOWN).sentence
    last = end["log"].strip().splitlines()[-1]
    no_error = "the job ended with exit code 3 and printed no error; its last line: "
    if "INFO" in last:
        assert said.startswith("the job ended with exit code 3 and printed no")
    else:
        assert said == (end["reason"] or f"{no_error}{last}")


def test_a_job_that_printed_nothing_says_so() -> None:
    assert (
        explain(ended_with(""), F.UNKNOWN).sentence
        == "the job ended with exit code 3 and printed nothing"
    )


OF_RAYS_LOGGER = "2026-11-29 12:26:56,018\tINFO job_manager.py:587 -- Runtime env is setting up."


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("", "printed nothing"),
        ("2026-11-29 12:26:56 INFO done", "its last line: 2026-11-29 12:26:56 INFO done"),
    ],
)
def test_a_line_of_rays_loggers_is_no_word_of_the_job(own: str, said: str) -> None:
    message = f"Job entrypoint command failed with exit code 3, last logs:\n{own}\n{OF_RAYS_LOGGER}"
    result = AttemptResult(status="FAILED", exit_code=3, message=message)
    assert explain(result, F.UNKNOWN).sentence.endswith(said)


def test_an_error_two_steps_ago_has_not_ended_the_job() -> None:
    evidence = EvidenceLog(lambda: 3)
    evidence.read("ValueError: broken")
    assert evidence.told_error(4) == "ValueError: broken"
    assert evidence.told_error(5) == ""


IN_LIBRARIES = """
  File "/usr/lib/python3.11/runpy.py", line 88, in _run_code
    exec(code, run_globals)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call
    return self._call_impl(*args, **kwargs)
"""
OF_THE_DRIVER = f"""
Traceback (most recent call last):
  File "/job/train.py", line 7, in <module>
    main()
  File "/job/model.py", line 12, in forward
    raise ValueError("expected hidden size 64"){IN_LIBRARIES}
ValueError: expected hidden size 64
"""
OF_AN_ACTOR = f"""
Traceback (most recent call last):
  File "/job/train.py", line 7, in <module>
    ray.get(actor.step.remote()){IN_LIBRARIES}
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Actor.step()\x1b[39m (pid=7, ip=10.0.0.2)
  File "/job/model.py", line 12, in step
    raise ValueError("expected hidden size 64")
ValueError: expected hidden size 64
"""
OF_A_RANK = "".join(f"[rank3]: {line}\n" for line in OF_THE_DRIVER.strip().splitlines())
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
OF_RAY_ALONE = OF_AN_ACTOR.replace(
    "/job/model.py", "/opt/venv/lib/python3.11/site-packages/vllm/worker.py"
)


@pytest.mark.parametrize(
    ("log", "place"),
    [
        (OF_THE_DRIVER, "/job/model.py:12"),
        (OF_AN_ACTOR, "/job/model.py:12"),
        (OF_RAY_ALONE, "/job/train.py:7"),
        ('  File "job.py", line 3\n    def f(:\n          ^\nSyntaxError: no', "job.py:3"),
        (f"Traceback (most recent call last):{IN_LIBRARIES}ValueError: wrong", ""),
        (f"{OF_THE_DRIVER}the step is left out\ntrain.py: error: no data is left", ""),
        (
            f'{tracebacks.HEADER}:\n  File "{tracebacks.__file__}", line 1\nKeyError: 1',
            "",
        ),
        (OF_A_RANK.replace("ValueError: expected", f"{OUT_OF_MEMORY}: "), "/job/model.py:12"),
    ],
)
def test_an_error_has_the_innermost_place_in_the_users_own_code(log: str, place: str) -> None:
    evidence = EvidenceLog(lambda: 0)
    for line in log.strip("\n").splitlines():
        evidence.read(line)
    result = AttemptResult(
        status="FAILED",
        exit_code=1,
        last_error=evidence.last_error,
        told_error=evidence.told_error(0),
        told_place=evidence.told_place(),
        told_is_raised_there=evidence.told_is_raised_there(),
        evidence=evidence.at(0),
    )
    assert explain(result, classify(result)).place == place


def test_two_actors_that_print_their_tracebacks_at_once_keep_their_own_places() -> None:
    evidence = EvidenceLog(lambda: 0)
    lines = OF_THE_DRIVER.replace("ValueError: expected", f"{OUT_OF_MEMORY}: ").splitlines()
    for line in lines:
        evidence.read(f"(A pid=1, ip=10.0.0.1) {line}")
        evidence.read(f"(B pid=2, ip=10.0.0.2) {line.replace('model.py', 'other.py')}")
    assert [found.place for found in evidence.at(0)] == ["/job/model.py:12"]


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: str(printed["program"]))
def test_the_cause_and_its_place_are_found_in_each_form_of_a_traceback(
    printed: dict[str, Any],
) -> None:
    result = result_of(printed)
    failure = classify(result)
    reason = explain(result, failure)
    assert (reason.sentence, reason.place) == (printed["error"], printed["place"])
    of_code = bool(error_of_code(reason, failure).place)
    assert failure is (F.CODE if of_code else F.UNKNOWN)


def test_an_error_that_peers_share_does_not_hide_the_collective_that_failed() -> None:
    lost = "RuntimeError: NCCL communicator was aborted on rank 1."
    watchdog = (
        "[rank0]:[E1128 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout"
    )
    log = f"[rank1]: {tracebacks.HEADER}:\n[rank1]: {lost}\n{watchdog}"
    assert classify(result_of({"log": log, "exit_code": 1})) is F.COLLECTIVE


@pytest.mark.parametrize(
    ("sentence", "is_code"),
    [
        ("KeyError: 'answer'", True),
        ("ValueError: expected hidden size 64", True),
        ("TypeError: unhashable type: 'list'", True),
        ("ConnectionError: the hub is away", False),
        ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1", False),
        ("json.decoder.JSONDecodeError: Expecting value", False),
        ("OSError: [Errno 116] Stale file handle", False),
        ("AssertionError", False),
    ],
)
def test_which_errors_the_code_itself_repeats(sentence: str, *, is_code: bool) -> None:
    found = error_of_code(Reason(sentence, "data.py:3"), F.CODE)
    assert (found.place, bool(found.what)) == (("data.py:3", True) if is_code else ("", False))
    assert error_of_code(Reason(sentence), F.UNKNOWN) == CodeError(sentence if is_code else "")
    assert error_of_code(Reason(sentence), F.SERVICE) == CodeError()


OF_A_CHECK = """
Traceback (most recent call last):
  File "/job/train.py", line 7, in <module>
    main()
  File "/job/model.py", line 12, in step
    raise RuntimeError("boom")
RuntimeError: boom
"""
IN_TORCH = """
  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 9, in _init
    raise RuntimeError("boom")
RuntimeError: boom"""
AFTER_ANOTHER = """
Traceback (most recent call last):
  File "/job/model.py", line 10, in step
    requests.post(url)
requests.exceptions.ConnectionError: refused

The above exception was the direct cause of the following exception:
"""
ENDS_A_RANK = "".join(f"[rank0]: {line}\n" for line in OF_A_CHECK.strip().splitlines())


@pytest.mark.parametrize(
    ("log", "is_code"),
    [
        (OF_A_CHECK, True),
        (ENDS_A_RANK, True),
        (OF_AN_ACTOR.replace("ValueError", "RuntimeError"), True),
        (OF_A_CHECK.replace("RuntimeError", "Exception"), True),
        (OF_A_CHECK.replace('raise RuntimeError("boom")', "raise errors.RuntimeError"), True),
        (
            OF_A_CHECK.replace("RuntimeError: boom", "AssertionError").replace(
                'raise RuntimeError("boom")', "assert rows > 0\n           ^^^^^^^^"
            ),
            True,
        ),
        # Torch has raised it: at the user's line, in its own file, or for another process.
        (OF_A_CHECK.replace('raise RuntimeError("boom")', "y = x @ w"), False),
        (OF_A_CHECK.replace('    raise RuntimeError("boom")\n', ""), False),
        (OF_A_CHECK.replace("\nRuntimeError: boom", IN_TORCH), False),
        (OF_A_CHECK.replace('raise RuntimeError("boom")', "raise error"), False),
        # Something else is the cause.
        (AFTER_ANOTHER + OF_A_CHECK, False),
        (OF_A_CHECK.replace("boom", "the reward server answered 503"), False),
        # An OSError of the code alone, and exceptions that the user defines.
        (OF_A_CHECK.replace("RuntimeError", "OSError"), True),
        (OF_A_CHECK.replace("RuntimeError", "RewardTableError"), True),
        (OF_A_CHECK.replace("RuntimeError: ", "model.RewardTableError: "), True),
        (OF_A_CHECK.replace("RuntimeError: ", "OSError: [Errno 11] "), False),
        (
            OF_A_CHECK.replace("RuntimeError: boom", "OSError: no space left on device"),
            False,
        ),
        (OF_A_CHECK.replace("RuntimeError", "ConnectionError"), False),
        (OF_A_CHECK.replace("RuntimeError", "JudgeServerGoneError"), False),
        (OF_A_CHECK.replace("RuntimeError: ", "httpx.ReadError: "), False),
    ],
)
def test_an_error_that_the_users_own_line_raises_is_of_the_code(log: str, *, is_code: bool) -> None:
    result = result_of({"log": log, "exit_code": 1})
    failure = classify(result)
    assert failure is (F.CODE if is_code else F.UNKNOWN)
    assert error_of_code(explain(result, failure), failure).place == (
        "/job/model.py:12" if is_code else ""
    )


def of_ranks(log: str, node: str, error: str, *, has_torch: bool = False) -> str:
    """As the launch of ranks prints it: rank 1 fails, and a rank of torch after it.

    `has_torch`: the ranks have a process group, and torch names them in each line of an error.
    """
    before, of_peer = ("[rank1]: ", "[rank0]: ") if has_torch else ("", "")
    of_rank = "".join(f"(rank 1) {before}{line}\n" for line in log.strip().splitlines())
    of_gloo = "[/pytorch/gloo/transport/tcp/pair.cc:553] " if has_torch else ""
    lost = f"RuntimeError: {of_gloo}Connection closed by peer [192.0.2.2]:53121"
    of_other = f"{tracebacks.HEADER}:{IN_LIBRARIES}{lost}"
    at_peer = "\n".join(f"{of_peer}{line}" for line in of_other.splitlines())
    words = error[:LONGEST_WORDS]
    end = f"{ended_rank('rank 1', node, 1)}: {words} (log: /nfs/store/attempt-1-rank-1.log)"
    return f"{of_rank}{at_peer}\n{end}"


@pytest.mark.parametrize("has_torch", [False, True])
@pytest.mark.parametrize(
    "error", ["KeyError: 'label'", "RuntimeError: boom", "ValueError: [" + "1, " * 200]
)
def test_the_end_of_a_rank_has_the_place_of_the_error_that_it_repeats(
    error: str, *, has_torch: bool
) -> None:
    log = OF_A_CHECK.replace("RuntimeError: boom", error)
    results = [
        result_of({"log": of_ranks(log, node, error, has_torch=has_torch), "exit_code": 70})
        for node in ("w1", "head")
    ]
    assert [classify(result) for result in results] == [F.CODE, F.CODE]
    reasons = [explain(result, F.CODE) for result in results]
    assert reasons[0].sentence.startswith("rank 1 on w1 ended with exit code 1: ")
    one, other = (error_of_code(reason, F.CODE) for reason in reasons)
    assert one == other, "on whatever node"
    assert one.place == "/job/model.py:12"


@pytest.mark.parametrize(("others", "failure"), [(2, F.CODE), (MOST_RAISED, F.UNKNOWN)])
def test_the_newest_errors_alone_are_remembered(others: int, failure: F) -> None:
    between = "".join(OF_A_CHECK.replace("boom", f"caught {row}") for row in range(others))
    end = f"{ended_rank('rank 0', 'head', 1)}: RuntimeError: boom (log: a.log)"
    result = result_of({"log": f"{OF_A_CHECK}{between}{end}", "exit_code": 70})
    assert classify(result) is failure


def test_a_rank_that_a_signal_has_ended_did_not_end_by_its_last_error() -> None:
    log = of_ranks(OF_A_CHECK, "w1", "RuntimeError: boom")
    killed = log.replace("ended with exit code 1", "was ended by SIGKILL")
    assert classify(result_of({"log": killed, "exit_code": 70})) is F.UNKNOWN


def test_the_page_names_each_error_that_counts_as_the_codes() -> None:
    _, _, page = (ROOT / "docs/recovery.md").read_text().partition("**Errors of your code**")
    of_code, _, checks = page.partition("**Errors of the network")[0].partition("- **Errors that")
    for text, pattern in ((of_code, OF_CODE), (checks, OF_OWN_CHECK)):
        named = set(re.findall(r"`(\w+)`", text))
        assert named == {one for one in ERRORS_OF_PYTHON if pattern.fullmatch(one)}


def test_an_error_at_one_line_is_the_same_for_another_row() -> None:
    one, other = (
        error_of_code(Reason(f"KeyError: 'row {row}'", place), F.CODE)
        for row, place in ((17, "data.py:3"), (40, "data.py:3"))
    )
    assert one == other
    assert error_of_code(Reason("KeyError: 'row 17'"), F.UNKNOWN).what == "KeyError: 'row 17'"


def test_an_error_is_the_same_wherever_its_object_lies_in_memory() -> None:
    one, other = (
        error_of_code(Reason(f"TypeError: <f at {at}> is not iterable"), F.UNKNOWN)
        for at in ("0x7f01", "0x7fab")
    )
    assert one == other
