"""What a completion is worth: sums, and GSM8K's answers."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env.registry import reward_function
from env.rewards import arithmetic, choice, form, gsm8k, mathematics, mathvista, question_answering
from env.rewards.completion import completion_of
from env.types import RewardFunction, RewardRequest, Score
from tests.support.repository import ROOT

EXCERPT = ROOT / "env" / "prepare" / "gsm8k_excerpt"
WHOLE = ROOT.parent / "shared" / "data" / "gsm8k"


def score(reward: RewardFunction, completion: str, label: str | None, prompt: str = "?") -> Score:
    (score,) = reward([RewardRequest(prompt + completion, prompt, label)])
    return score


VERDICTS = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "verdicts.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("verifier", sorted({case["verifier"] for case in VERDICTS}))
def test_labels_and_answers_have_the_verdict_that_a_person_gave(verifier: str) -> None:
    """`null` in the data is a label without an answer: a failure. Upstream's verdicts: oracles."""
    cases = [case for case in VERDICTS if case["verifier"] == verifier]
    assert len(cases) >= 25
    for case in cases:
        got = score(reward_function(verifier), case["completion"], case["label"])
        assert got.ok == (case["reward"] is not None), case
        assert not got.ok or got.reward == pytest.approx(case["reward"]), case


@pytest.mark.parametrize("end", ["", "<eos>", "<eos><pad><pad>", "</s>", "<|im_end|>\n", " "])
@pytest.mark.parametrize("start", ["", "<pad><pad>"])
def test_special_tokens_around_the_text_do_not_count(start: str, end: str) -> None:
    request = RewardRequest(f"{start}12+7=19{end}", "12+7=", "19")
    assert arithmetic.exact([request])[0].reward == 1.0


@pytest.mark.parametrize("tag", ["<|end_of_thought|>", "</search>", "<|tool_call_end|>"])
def test_a_tag_at_the_end_is_the_policys_word(tag: str) -> None:
    assert completion_of(RewardRequest(f"Q: 19{tag}<|im_end|>\n", "Q: ")) == f"19{tag}"


SIGNS = (
    "(",
    "{",
    "\\",
    "-",
    "$",
    "1,",
    "1",
    " ",
    "</s>",
    "<|im_end|>",
    "[PAD] ",
    "\\boxed{",
    "<answer>",
)
READERS: tuple[RewardFunction, ...] = (
    *(arithmetic.exact, choice.score, form.make(), gsm8k.score, mathematics.exact),
    *(mathvista.score, question_answering.exact_match, question_answering.f1),
)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_policy_that_repeats_one_sign_costs_no_second(sign: str) -> None:
    """A pattern that tries each of them again takes minutes, and the training waits."""
    said = sign * (10_000 // len(sign))
    begun = time.process_time()
    for reward in READERS:
        for label, completion in ((said, "7"), ("7", f"{said}x"), ("7", f"7 {said}.")):
            score(reward, completion, label)
    assert time.process_time() - begun < 5.0


@given(st.integers(0, 999), st.text(alphabet="0123456789+=- x", max_size=6))
@example(19, "019")
def test_only_the_right_sum_is_right(label: int, completion: str) -> None:
    got = score(arithmetic.exact, completion, str(label))
    try:
        right = int(completion.strip()) == label and "+" not in completion
    except ValueError:
        right = False
    assert got.reward == got.metrics["acc"] == float(right)


@given(st.integers(0, 10**6), st.integers(-(10**6), 10**6))
def test_partial_credit_never_reaches_half_of_the_right_sum(label: int, answer: int) -> None:
    got = score(arithmetic.partial, str(answer), str(label))
    assert got.reward == 1.0 if answer == label else 0.0 <= got.reward < 0.5
    assert got.metrics["acc"] == float(answer == label)


def test_partial_credit_counts_digits_in_place() -> None:
    assert score(arithmetic.partial, "73", "83").reward == 0.25
    assert score(arithmetic.partial, "5", "105").reward == pytest.approx(0.5 / 3)
    assert score(arithmetic.partial, "nine", "9").reward == 0.0


def test_a_number_of_thousands_of_digits_is_an_answer_as_any_other() -> None:
    assert score(arithmetic.exact, "1" * 5000, "19").reward == 0.0
    assert score(arithmetic.exact, "0" * 5000 + "19", "19").reward == 1.0


@pytest.mark.parametrize("label", [None, "", "nineteen", "1.5"])
def test_a_sum_without_a_right_answer_is_a_failure(label: str | None) -> None:
    got = score(arithmetic.exact, "19", label)
    assert not got.ok
    assert "is not a whole number" in got.error


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so it is\n#### 72", "72"),
        ("####72", "72"),
        ("#### $1,234.50.", "1234.5"),
        ("#### -3", "-3"),
        ("#### -$3", "-3"),
        ("#### $-3", "-3"),
        ("#### 72 clips in all.", "72"),
        ("#### 72.00", "72"),
        ("#### 0.5", "0.5"),
        ("#### .5", "0.5"),
        ("#### 50%", "50"),
        ("#### 5\nno:\n#### 6", "6"),
        ("#### 1,000,000", "1000000"),
        ("#### 72\n- 3 of them are red", "72"),
        ("#### 72\n+5", "72"),
        ("#### 72\r\n/ 2", "72"),
        ("#### 72 \n\n= 24 * 3", "72"),
        ("####\n72\n: 30", "72"),
        ("72", None),
        ("####", None),
        ("#### the answer is 72", None),
        ("#### 1,2", None),
        ("#### 3/4", None),
        ("#### 10:30", None),
        ("#### 10 - 3", None),
        ("#### 1.2.3", None),
        ("#### 7e3", None),
        ("#### ٧", None),
    ],
)
def test_the_number_behind_the_mark_is_the_answer(completion: str, answer: str | None) -> None:
    expected = None if answer is None else Decimal(answer)
    assert gsm8k.final_answer(completion) == expected


@pytest.mark.parametrize("label", [None, "", "many", "#### many", "#### 1 or 2", "#### 3/4", "1,2"])
def test_an_unreadable_solution_is_a_failure_and_an_unreadable_completion_is_wrong(
    label: str | None,
) -> None:
    failed = score(gsm8k.score, "#### 7", label)
    assert not failed.ok
    assert "no number in the label" in failed.error
    wrong = score(gsm8k.score, "I do not know", "#### 7")
    assert wrong.ok
    assert (wrong.reward, wrong.metrics["format"]) == (0.0, 0.0)


@given(st.decimals(-(10**9), 10**9, places=2), st.text(max_size=30))
def test_any_number_is_found_again_in_any_spelling(value: Decimal, before: str) -> None:
    for spelling in (f"{value}", f"{value:,}", f"${value:,}.", f" {value}\nThe end"):
        assert gsm8k.final_answer(f"{before}#### {spelling}") == value
    assert gsm8k.gold_answer(f"{before}#### {value:,}") == value
    assert gsm8k.gold_answer(str(value)) == value


def test_numbers_of_hundreds_of_digits_are_compared_to_the_last_digit() -> None:
    for sign in ("", "-"):
        label = f"#### {sign}{10**400 + 7}"
        assert score(gsm8k.score, label, label).reward == 1.0
        assert score(gsm8k.score, f"#### {sign}{10**400 + 8}", label).reward == 0.0


@given(st.text(max_size=60))
def test_no_completion_raises(completion: str) -> None:
    for text in (completion, f"#### {completion}"):
        assert score(gsm8k.score, text, "7").ok
        assert score(arithmetic.exact, text, "7").ok


def solutions(directory: Path, split: str) -> list[tuple[str, str]]:
    rows = map(json.loads, (directory / f"{split}.jsonl").read_text().splitlines())
    return [(row["question"], row["answer"]) for row in rows]


@pytest.mark.parametrize("directory", [EXCERPT, WHOLE], ids=["excerpt", "whole"])
def test_every_solution_of_gsm8k_scores_one_and_its_neighbour_zero(directory: Path) -> None:
    if not directory.exists():
        pytest.skip(f"{directory} is absent: only the excerpt is checked")
    splits = [solutions(directory, split) for split in ("train", "test")]
    assert [len(rows) for rows in splits] == ([16, 6] if directory == EXCERPT else [7473, 1319])
    for question, solution in itertools.chain(*splits):
        number = solution.rpartition("#### ")[2]
        gold = gsm8k.gold_answer(solution)
        assert gold == int(number.replace(",", ""))
        assert score(gsm8k.score, solution, number, question).reward == 1.0
        assert score(gsm8k.score, f"#### {gold + 1}", solution, question).reward == 0.0


def planted(solution: str) -> Iterator[str]:
    """Wrong solutions that look like the right one."""
    steps, _, number = solution.rpartition("#### ")
    value = int(number.replace(",", ""))
    yield f"{steps}#### {value * 10}"
    yield f"{steps}#### {-value or 1}"
    yield f"{steps}#### {value}.5"
    yield f"{steps}#### {value} / 2"
    yield f"{steps}#### the answer is {number}"
    yield f"{solution}\n#### {value + 2}"
    yield steps
    if (turned := number[::-1]) != number and turned.isdecimal():
        yield f"{steps}#### {turned}"


@pytest.mark.parametrize("directory", [EXCERPT, WHOLE], ids=["excerpt", "whole"])
def test_planted_wrong_solutions_of_gsm8k_score_zero(directory: Path) -> None:
    if not directory.exists():
        pytest.skip(f"{directory} is absent: only the excerpt is checked")
    rows = solutions(directory, "test")[:150]
    wrong = [(text, solution) for _, solution in rows for text in planted(solution)]
    assert len(wrong) >= (1000 if directory == WHOLE else 40)
    for text, solution in wrong:
        got = score(gsm8k.score, text, solution)
        assert got.ok
        assert got.reward == 0.0, text
