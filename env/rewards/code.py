"""Programs: the code in a completion against the unit tests of the label, in a sandbox."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

from env.rewards import sandbox
from env.rewards.answers import after_thoughts
from env.rewards.code_tests import Tests, Trial, read_tests
from env.rewards.completion import completion_of
from env.rewards.sandbox import End, Limits, SandboxError
from env.types import RewardFunction, RewardRequest, Score

FENCED = re.compile(r"^```[ \t]*([^\s`]*)[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A block's language and its text. Blocks of every language match, so that fences stay in pairs."""
PYTHON = frozenset({"python", "python3", "py"})
MOST_AT_ONCE = 16


def make(
    seconds: float = 5.0,
    wall_seconds: float = 20.0,
    memory_mb: int = 1024,
    processes: int = 16,
    partial_credit: int = 0,
) -> RewardFunction:
    """Return a reward: 1 if the last Python block passes all tests of the label, else 0.

    With `partial_credit` 1 the reward is the share of tests that pass. Raises ValueError for limits
    that no program can keep.
    """
    if min(seconds, wall_seconds, memory_mb, processes) <= 0:
        raise ValueError("limits of code are above 0: seconds, wall_seconds, memory_mb, processes")
    limits = Limits(
        cpu_seconds=seconds,
        wall_seconds=wall_seconds,
        memory_bytes=memory_mb * 2**20,
        processes=processes,
    )
    return partial(_scores, limits, bool(partial_credit))


def code_of(completion: str) -> str | None:
    """Return the last Python block after the thoughts, else the last block without a language.

    None if there is neither. A block without a language behind the code is often its output.
    """
    blocks = FENCED.findall(after_thoughts(completion) + "\n")
    named = [text for language, text in blocks if language.lower() in PYTHON]
    plain = [text for language, text in blocks if not language]
    return next(reversed(named or plain), None)


def _scores(limits: Limits, by_share: bool, requests: Sequence[RewardRequest]) -> list[Score]:
    return list(_threads().map(partial(_score, limits, by_share), requests))


def _score(limits: Limits, by_share: bool, request: RewardRequest) -> Score:
    tests = read_tests(request.label or "")
    if tests is None:
        shown = (request.label or "")[:60]
        return Score.failed(f"no unit tests in the label {shown!r}")
    code = code_of(completion_of(request))
    if code is None:
        return Score.of(0.0, acc=0.0, passed=0.0, format=0.0, timed_out=0.0)
    try:
        passed, timed_out = _tried(tests, code, limits, every=by_share)
    except SandboxError as error:
        return Score.failed(f"the code did not run: {error}")
    share = sum(passed) / len(passed)
    right = float(all(passed))
    return Score.of(
        share if by_share else right, acc=right, passed=share, format=1.0, timed_out=timed_out
    )


def _tried(tests: Tests, code: str, limits: Limits, *, every: bool) -> tuple[list[bool], float]:
    """Return whether each test passed, and 1.0 if a program ran out of time.

    Without `every`, the tests after a failed one count as failed: they are not run.
    """
    trials = tests.trials(code)
    passed: list[bool] = []
    timed_out = 0.0
    for place, trial in enumerate(trials):
        run = sandbox.run(trial.program, trial.stdin, limits)
        passed += trial.passed(run.output) if run.end is End.FINISHED else trial.none
        if run.end is End.TIMED_OUT:
            timed_out = 1.0
        if not every and not all(passed):
            return passed + _failed(trials[place + 1 :]), timed_out
    return passed, timed_out


def _failed(trials: Sequence[Trial]) -> list[bool]:
    return [test for trial in trials for test in trial.none]


@cache
def _threads() -> ThreadPoolExecutor:
    at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    return ThreadPoolExecutor(at_once, thread_name_prefix="code")
