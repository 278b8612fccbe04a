"""Which letter of a choice a completion and a label have."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from env.rewards import choice, choice_cues
from env.rewards.answers import final_part
from env.rewards.completion import completion_of
from env.types import RewardRequest
from tests.support.repository import ROOT
from tests.support.scored import score


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B. 12 cm", "B"),
        ("A is too small.\nThe answer is (B).", "B"),
        ("Answer: B", "B"),
        ("the correct option is B because", "B"),
        ("The answer is A. No, the answer is B", "B"),
        (r"so \boxed{B}", "B"),
        (r"so $\boxed{\text{(B)}}$", "B"),
        ("<think>Answer: A</think><answer>B</answer>", "B"),
        ("I take (B)", "B"),
        ("(A) or (B)", None),
        ("The answer is A or B", None),
        ("A dog", None),
        (r"\boxed{12}", None),
        ("the answer is a guess", None),
        ("", None),
    ],
)
def test_one_letter_is_the_choice(completion: str, letter: str | None) -> None:
    assert choice.chosen(completion) == letter
    got = score("choice", completion, "(b)")
    assert (got.reward, got.metrics["format"]) == (float(letter == "B"), float(letter is not None))


STUDY = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "choices.jsonl").read_text().splitlines()
]


def test_at_least_99_of_100_judged_completions_have_the_letter_that_a_reader_sees() -> None:
    def read(case: dict[str, str]) -> str | None:
        return choice.chosen(completion_of(RewardRequest(case["completion"], "", None)))

    assert len(STUDY) > 900
    others = [case for case in STUDY if read(case) != case["letter"]]
    for part in ("set", "style"):
        cases = Counter(case[part] for case in STUDY)
        wrong = Counter(case[part] for case in others)
        assert all(wrong[name] <= max(1, cases[name] // 100) for name in cases), others
    styles = {case["style"] for case in STUDY}
    assert {"qwen", "llama", "deepseek", "gemma", "mistral-gpt"} <= styles


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<reasoning>", "</reasoning>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ],
)
def test_thoughts_are_no_answer_in_the_marks_of_any_family(begin: str, end: str) -> None:
    assert final_part(f"{begin}The answer is A.{end} B") == "B"
    assert choice.chosen(f"{begin}The answer is A.{end} B") == "B"
    assert choice.chosen(f"{begin}The answer is A. But") is None


def test_each_cue_has_a_kind_that_is_explained() -> None:
    rows = [row for rows in choice_cues.CUES.values() for row in rows.splitlines() if row]
    kinds = {row.partition(" ")[0] for row in rows}
    assert kinds <= {*choice_cues.KINDS, "_"}
    assert all(row[1] == " " and "||" not in row for row in rows)


WRAPPED = r"\text{(B)} \boxed{B} $\mathrm{B}$ B b (B) (b) B. $B$ [B] {B} **B** Answer:B"


@pytest.mark.parametrize("label", [*WRAPPED.split(), "B) 12 cm", "B. 12 cm", "The answer is B"])
def test_labels_and_completions_have_one_reader(label: str) -> None:
    assert score("choice", label, label).reward == 1.0
    assert score("choice", "The answer is B.", label).reward == 1.0
    assert score("choice", "The answer is C.", label).reward == 0.0


def test_a_policy_that_repeats_itself_costs_the_choice_no_time() -> None:
    begun = time.process_time()
    repeated = ["The answer is A or ", "(", "A ", "answer ", "so the ", r"\text{", "Answer:\n"]
    for text in [
        *repeated,
        "A, ",
        "if ",
        "选项",
        "not A, ",
        "**",
        "\n",
        "(A) wrong ",
        "<s>",
        "-----",
        "=====",
    ]:
        choice.chosen(text * 10_000)
    assert time.process_time() - begun < 3.0


@pytest.mark.parametrize("label", [None, "", "12", "A dog", "Paris", "AB", "I am unsure", "A or B"])
def test_a_choice_without_a_letter_is_a_failure(label: str | None) -> None:
    got = score("choice", "A", label)
    assert not got.ok
    assert "no letter of a choice" in got.error
