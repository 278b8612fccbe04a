"""Rows of multiple choice: where their options are, and which one is right."""

from __future__ import annotations

from typing import Any

import pytest

from env.data.choices import ASKED, converted, unseen

TEXTS = ["a car", "an apple", "a stone"]
ASKED_OF = f"Which?\nA. a car\nB. an apple\nC. a stone\n{ASKED}"


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (TEXTS, "B"),
        (TEXTS, "(b)"),
        (TEXTS, 1),
        (TEXTS, "1"),
        (TEXTS, "an apple"),
        ({"text": TEXTS, "label": ["A", "B", "C"]}, "B"),
        ({"text": TEXTS, "label": ["1", "2", "3"]}, "2"),
        ({"A": "a car", "B": "an apple", "C": "a stone"}, "B"),
        ([{"label": label, "text": text} for label, text in zip("ABC", TEXTS, strict=True)], "B"),
        (["A) a car", "B)an apple", "C) a stone"], "B"),
    ],
)
def test_options_and_answers_of_each_form_become_letters(options: Any, answer: Any) -> None:
    row = {"question": "Which?", "Choices": options, "answer": answer}
    assert unseen([row], "question", "answer") == "Choices"
    assert unseen([row], "question", None) == "Choices"
    found = converted([row], "question", "answer")
    assert found is not None
    assert found.rows == [{"prompt": ASKED_OF, "answer": "B"}]


@pytest.mark.parametrize(
    ("answers", "letters", "left_out"),
    [
        ([0, 2, 1], "ACB", 0),
        ([1, 3, 2], "ACB", 0),
        (["1", "3"], "AC", 0),
        ([1, 1], "BB", 0),
        ([0, 3, -1, None, True, "", "D"], "A", 6),
    ],
)
def test_numbers_count_from_0_or_from_1_by_all_rows(
    answers: list[Any], letters: str, left_out: int
) -> None:
    rows = [{"question": "Which?", "options": TEXTS, "answer": answer} for answer in answers]
    found = converted(rows, "question", "answer")
    assert found is not None
    assert "".join(row["answer"] for row in found.rows) == letters
    assert found.left_out == left_out


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Which: a car, an apple, a stone?", "options": TEXTS, "answer": "B"},
        {"question": [{"role": "user", "content": " ".join(TEXTS)}], "options": TEXTS, "answer": 1},
        {"question": "Which?", "options": TEXTS, "answer": "a cloud"},
        {"question": "Which?", "options": {"temperature": 1}, "answer": "A"},
        {"question": "Which?", "options": "A, B", "answer": "A"},
        {"question": "Which?", "options": ["a car", None], "answer": "A"},
        {"question": "Which?", "options": [], "answer": 0},
        {"question": "Which?", "options": {}, "answer": 0},
    ],
)
def test_other_rows_are_no_multiple_choice_or_show_their_options(row: dict[str, Any]) -> None:
    assert unseen([row], "question", "answer") == ""


@pytest.mark.parametrize(
    ("row", "answer", "prompt"),
    [
        (  # RACE
            {
                "article": "An apple is red.\n",
                "question": "Which?",
                "options": TEXTS,
                "answer": "B",
            },
            "B",
            f"An apple is red.\n\n{ASKED_OF}",
        ),
        (  # MMLU
            {"subject": "botany", "question": "Which?", "choices": TEXTS, "answer": 0},
            "A",
            ASKED_OF,
        ),
        (  # ARC, and a passage that the question begins with
            {
                "context": "Look.",
                "question": "Look. Which?",
                "choices": {"text": TEXTS, "label": ["1", "2", "3"]},
                "answer": "3",
            },
            "C",
            f"Look. {ASKED_OF}",
        ),
        (  # HellaSwag
            {"ctx_a": "Wh", "question": "Which?", "endings": TEXTS, "answer": "2"},
            "C",
            ASKED_OF,
        ),
    ],
)
def test_rows_of_public_data_have_passage_question_and_options_in_the_prompt(
    row: dict[str, Any], answer: str, prompt: str
) -> None:
    assert unseen([row], "question", "answer")
    found = converted([row], "question", "answer")
    assert found is not None
    assert found.rows == [{"prompt": prompt, "answer": answer}]


def test_a_question_with_an_image_stays_as_it_is() -> None:
    row = {"question": "Which?", "options": TEXTS, "answer": "B", "image": "a.png"}
    assert converted([row], "question", "answer") is None
