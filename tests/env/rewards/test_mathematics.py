"""Mathematics: formulas, boxes, labels that nobody can read, and answers that take for ever."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from env.rewards import math_processes, mathematics
from env.rewards.answers import final_part, last_boxed
from env.rewards.math_processes import LostProcessError, MathProcess, MathProcesses, Question
from env.types import RewardFunction, RewardRequest, Score
from tests.support.repository import ROOT

# Verdicts from math-verify 0.9.0's own tests, for the kinds of answers that the reward reads.
CASES = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "math_verify_cases.jsonl").read_text().splitlines()
]
# Labels of those cases whose verdict is another one here: a comma parts numbers, a list is no
# tuple, and `1 - 1/e` is not `1 + 1/e`.
DIFFERENT = {
    ("1,22", "1.22"),
    ("0,111", "0.111"),
    ("$(1,3)$", "${1,3}$"),
    ("$p=5,q=2;p=7,q=2$", "$(5,2),(7,2)$"),
    (r"$1 - \frac{1}{\mathrm{e}}$", r"$1 + \frac{1}{\mathrm{e}}$"),
    (r"\\boxed{W(n) = 1 \\text{ and } W(n) = -1", "W(x)=1orW(x)=-1"),
}


def score(reward: RewardFunction, completion: str, label: str | None) -> Score:
    (score,) = reward([RewardRequest(f"Q: {completion}<|im_end|>", "Q: ", label)])
    return score


def disagreements(cases: list[dict[str, object]]) -> list[object]:
    found: list[object] = []
    for places in {case.get("places", 6) for case in cases}:
        some = [case for case in cases if case.get("places", 6) == places]
        reward = mathematics.anywhere(int(str(places)))
        scores = reward([RewardRequest(f"Q{c['completion']}", "Q", str(c["label"])) for c in some])
        for case, got in zip(some, scores, strict=True):
            differs = (case["label"], case["completion"]) in DIFFERENT
            if not got.ok or got.reward != float(bool(case["right"]) != differs):
                found.append((case, got))
    return found


def test_some_published_cases_of_math_verify_have_their_verdicts() -> None:
    assert disagreements(CASES[::25]) == []


@pytest.mark.faults
def test_all_published_cases_of_math_verify_have_their_verdicts() -> None:
    assert len(CASES) == 261
    assert disagreements(CASES) == []


@pytest.mark.parametrize(
    ("completion", "label", "right", "has_box"),
    [
        (r"so \boxed{\dfrac12}", r"\frac{1}{2}", True, True),
        (r"so \boxed{0.5}", "1/2", True, True),
        (r"\boxed{3} and no, \boxed{4}", "4", True, True),
        (r"\boxed{4} and no, \boxed{3}", "4", False, True),
        (r"\boxed{\text{Tuesday}}", "Tuesday", True, True),
        (r"\boxed{yaTuesd}", "Tuesday", False, True),
        (r"\boxed{x+1+x}", "2x+1", True, True),
        (r"\boxed{4}", r"Two and two make $\boxed{4}$.", True, True),
        (r"so it is 4", "4", False, False),
        (r"\boxed{4", "4", False, False),
        (r"<think>\boxed{4}</think> five", "4", False, False),
        ("", "4", False, False),
    ],
)
def test_math_wants_the_answer_in_the_last_box(
    completion: str, label: str, right: bool, has_box: bool
) -> None:
    got = score(mathematics.boxed(), completion, label)
    assert (got.reward, got.metrics["acc"]) == (float(right), float(right))
    assert got.metrics["format"] == float(has_box)


@pytest.mark.parametrize(
    "label", [None, "", "  ", r"\frac{1}{", "???", '{"ground_truth": "4"}', "{"]
)
def test_a_label_without_mathematics_is_a_failure_whatever_the_completion_says(
    label: str | None,
) -> None:
    for completion in (rf"\boxed{{{label}}}", "4"):
        got = score(mathematics.anywhere(), completion, label)
        assert not got.ok
        assert "no mathematics in the label" in got.error


@pytest.mark.parametrize("huge", [r"10^{10^{10}}", "10^{-10^{10}}", "1e400", "9" * 400])
def test_a_huge_or_tiny_number_is_wrong_at_once(huge: str) -> None:
    got = score(mathematics.boxed(), rf"\boxed{{{huge}}}", "5")
    assert (got.ok, got.reward, got.metrics["gave_up"]) == (True, 0.0, 0.0)
    assert score(mathematics.boxed(), rf"\boxed{{{huge}}}", huge).reward == 1.0


@pytest.mark.slow
def test_an_answer_that_takes_for_ever_is_wrong_and_a_label_that_does_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(math_processes, "CPU_SECONDS", 0.7)
    forever = "9^{9^{9^{9}}}"
    reward = mathematics.anywhere()
    wrong = score(reward, rf"\boxed{{{forever}}}", "4")
    assert (wrong.reward, wrong.metrics["gave_up"]) == (0.0, 1.0)
    failed = score(reward, r"\boxed{4}", "1+" * 20_000 + "1")
    assert not failed.ok
    assert score(reward, r"\boxed{4}", "4").reward == 1.0, "another process does the next ones"


def test_many_threads_may_ask_at_once() -> None:
    reward = mathematics.anywhere()
    with ThreadPoolExecutor(8) as threads:
        got = threads.map(lambda n: score(reward, f"${n}$", str(n - n % 2)).reward, range(32))
        assert list(got) == [1.0, 0.0] * 16


@pytest.mark.slow
def test_a_process_that_does_not_answer_in_time_or_is_gone_is_a_failure_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = MathProcesses(1)
    process = MathProcess()
    processes._free.get()
    processes._free.put(process)
    with monkeypatch.context() as patched:
        patched.setattr(math_processes, "WALL_SECONDS", 0.0)
        (lost,) = processes.compare([Question("4", "$4$", 6)])
    assert isinstance(lost, LostProcessError)
    assert not process.alive
    (found,) = processes.compare([Question("4", "$4$", 6)])
    assert not isinstance(found, LostProcessError)
    assert found.right
    processes.close()


@pytest.mark.parametrize(
    ("completion", "label", "right"),
    [
        (r"\boxed{\dfrac{1}{2}}", r"\frac12", True),
        (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"( 3,\frac{\pi}{2})", True),
        (r"\boxed{\text{east}}", "east", True),
        (r"\boxed{10,080}", "10080", True),
        (r"\boxed{1,2}", "12", False),
        (r"\boxed{0,111}", "0111", False),
        (r"\boxed{(3,500)}", "(3500)", False),
        (r"\boxed{1{,}234{,}567}", r"1,\!234,\!567", True),
        (r"\boxed{90^\circ}", "90", True),
        (r"\boxed{0.5}", r"\frac12", False),
        ("4", "4", False),
    ],
)
def test_math_exact_compares_texts_in_one_spelling(
    completion: str, label: str, right: bool
) -> None:
    assert score(mathematics.exact, completion, label).reward == float(right)
    assert not score(mathematics.exact, completion, "").ok


def test_the_answer_is_after_the_thoughts_in_the_last_tag() -> None:
    assert final_part("<think>1</think><answer> 2 </answer>") == "2"
    assert final_part("<answer>1</answer> or <answer>2</answer>") == "2"
    assert final_part("<think><answer>1</answer></think> 2") == "2"
    assert final_part("no tags") == "no tags"
    assert last_boxed(r"\boxed{\frac{1}{\{2\}}} \boxed{3") == r"\frac{1}{\{2\}}"
    assert last_boxed(r"\boxed 3") is None
    assert last_boxed(r"\boxed{1 + \fbox{2}} }{") == "2"
    assert last_boxed("\\\\boxed{5}") == "5", "a backslash too many, as from JSON in JSON"


def test_a_policy_that_repeats_a_box_costs_no_time() -> None:
    begun = time.process_time()
    assert last_boxed(r"\boxed{7}" + r"\boxed{" * 20_000) == "7"
    assert time.process_time() - begun < 2.0
