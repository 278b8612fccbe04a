"""Short answers, MathVista's answers, form and length."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env.registry import RewardSpecError, pure_reward, reward_function
from env.rewards import mathvista
from env.rewards import question_answering as qa
from tests.support.scored import score


# From SQuAD's description of its evaluation: case, punctuation, articles and spaces do not count.
@pytest.mark.parametrize(
    ("completion", "label", "exact", "f1"),
    [
        ("The Eiffel Tower!", "eiffel  tower", 1.0, 1.0),
        ("in the Eiffel Tower", "Eiffel Tower", 0.0, 0.8),
        ("tower", "a theatre", 0.0, 0.0),
        ("<answer>Paris</answer>", '["London", "Paris"]', 1.0, 1.0),
        ("Paris", '{"target": ["paris."]}', 1.0, 1.0),
        ("Paris", '{"text": ["paris"], "answer_start": [0]}', 1.0, 1.0),
        ("1912", "1912", 1.0, 1.0),
        ("cat cat", "cat", 0.0, 2 / 3),
        ("", "cat", 0.0, 0.0),
        ("1984", '{"target": 1984}', 1.0, 1.0),
        ("1,984", "[1984]", 1.0, 1.0),
        ("It is 1984.0", '{"answers": {"text": [7, 1984]}}', 0.0, 0.5),
        ("True", '{"target": [true]}', 1.0, 1.0),
        ("false.", "[false, null]", 1.0, 1.0),
        ("35", "[3.5]", 0.0, 0.0),
        ("3.50", "3.5", 1.0, 1.0),
        ("5", "-5", 0.0, 0.0),
        ("1" + "0" * 400, '{"target": 1' + "0" * 400 + "}", 1.0, 1.0),
        ("a", "a", 1.0, 1.0),
        ("The", '["the"]', 1.0, 1.0),
        ("an", "a", 0.0, 0.0),
        ("?!", "?!", 1.0, 1.0),
        ("", "a", 0.0, 0.0),
        ("5年", "5月", 0.0, 0.0),
        ("5月。", "5月。", 1.0, 1.0),
        ("第5", "5", 0.0, 0.0),
        ("5²", "5", 0.0, 0.0),
        ("5°", "5", 1.0, 1.0),
    ],
)
def test_exact_match_and_f1(completion: str, label: str, exact: float, f1: float) -> None:
    assert score("exact-match", completion, label).reward == exact
    got = score("f1", completion, label)
    assert got.reward == pytest.approx(f1)
    assert got.metrics["acc"] == exact


@pytest.mark.parametrize("label", [None, "", " ", "[]", "null", "[null]", "[NaN]", '{"a": "x"}'])
def test_an_answer_without_words_is_a_failure(label: str | None) -> None:
    assert not score("exact-match", "x", label).ok
    assert not score("f1", "x", label).ok


@given(st.text(st.characters(exclude_characters='<>|[]{}"'), min_size=1, max_size=20))
@example("a")
@example("the an")
@example("-.5")
@example("...")
def test_the_text_of_a_label_scores_one_in_exact_match(label: str) -> None:
    for spec in ("exact-match", "f1"):
        got = score(spec, label, label)
        assert not got.ok if label in {"NaN", "nan", "null"} or not label.strip() else got.reward


@given(st.text(max_size=20), st.text(max_size=20))
def test_f1_is_symmetric_and_one_for_the_same_words(a: str, b: str) -> None:
    a, b = qa.normalised(a), qa.normalised(b)
    assert qa.word_f1(a, b) == qa.word_f1(b, a)
    assert 0.0 <= qa.word_f1(a, b) <= 1.0
    assert not a or qa.word_f1(a, a) == 1.0


CHOICES = json.dumps({"answer": "145°", "choices": ["135°", "140°", "145°", "150°"]})


@pytest.mark.parametrize(
    ("completion", "label", "right"),
    [
        ("The answer is (C).", CHOICES, True),
        ("145°", CHOICES, True),
        ("The answer is (D).", CHOICES, False),
        ("<answer>B</answer>", "B", True),
        ("<answer>$C$</answer>", "B", False),
        (r"so \boxed{14}", "14", True),
        (r"so \boxed{14 cm}", "14", True),
        ("The answer is 14.", "14", True),
        ("15", "14", False),
        ("14 - 2", "14", False),
        ("1.24", '{"answer": "1.2", "precision": 1}', True),
        ("1.26", '{"answer": "1.2", "precision": 1}', False),
        ("1.24", "1.2", True),
        ("1.26", "1.2", False),
        ("1.2", '{"answer": "1.2", "precision": NaN}', True),
        ("1.2", '{"answer": "1.2", "precision": 1e300}', True),
        ("1.2", f'{{"answer": "1.2", "precision": 1{"0" * 400}}}', True),
        ("0.5", r"$0.50$", True),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        ("1,000", "1000", True),
        ("-3", "3", False),
        ("Yes", "yes", True),
        ("No", "yes", False),
        ("[0, 7]", "[0, 7]", True),
        ("[1,2]", "[1, 2]", True),
        ("The answer is 1, 2.", "[1,2]", True),
        (r"\boxed{[1.0, 2]}", "[1, 2]", True),
        ("[1, 2]", '{"answer": [1, 2]}', True),
        ("[12]", "[1, 2]", False),
        ("[1, 2]", "[12]", False),
        ("[2, 1]", "[1, 2]", False),
        ("['Red', 'blue']", "[red, Blue]", True),
        ("15", "1.5", False),
        ("x-1", "x+1", False),
        ("$x+1$", "x+1", True),
        ("Left-hand side", "left-hand side.", True),
        ("1" * 6000, "1" * 6000, True),
        ("1" * 5999 + "2", "1" * 6000, False),
        ("-1" + "0" * 400, "-1" + "0" * 399 + "1", False),
        ("", "14", False),
    ],
)
def test_mathvista_s_answers(completion: str, label: str, right: bool) -> None:
    got = score("mathvista", completion, label)
    assert got.ok
    assert got.reward == got.metrics["acc"] == float(right)


@pytest.mark.parametrize(
    "label",
    [
        None,
        "",
        " . ",
        '{"answer": null}',
        '{"answer": NaN}',
        '{"answer": "E", "choices": ["x", "y"]}',
        "{}",
    ],
)
def test_mathvista_s_label_without_an_answer_is_a_failure(label: str | None) -> None:
    assert not score("mathvista", "E", label).ok


@given(st.text("0123456789.,-+[]() =/%$°", min_size=1, max_size=10))
def test_the_text_of_a_label_scores_one_in_mathvista(label: str) -> None:
    for completion in (label, rf"\boxed{{{label}}}"):
        got = score("mathvista", completion, label)
        assert not got.ok or got.reward == 1.0


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_text_raises(completion: str, label: str) -> None:
    for spec in ("choice", "mathvista", "exact-match", "f1", "format", "length", "math-exact"):
        score(spec, completion, label)
    mathvista.read_gold(label)


@pytest.mark.parametrize(
    ("completion", "prompt", "right"),
    [
        ("<think>a</think><answer>b</answer>", "?", True),
        ("<think>a\n</think>\n<answer>b</answer><|im_end|>", "?", True),
        ("a</think><answer>b</answer>", "? <think>\n", True),
        ("a</think><answer>b</answer>", "?", False),
        ("<think>a</think>", "?", False),
        ("<think>a</think> so <answer>b</answer>", "?", False),
        ("<think>a<think></think><answer>b</answer>", "?", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "?", False),
        ("<think>a</think><answer>b</answer> and more", "?", False),
        ("", "?", False),
    ],
)
def test_thoughts_and_answer_are_in_tags(completion: str, prompt: str, right: bool) -> None:
    got = score("format", completion, None, prompt)
    assert got.reward == got.metrics["format"] == float(right)


def test_options_follow_the_name_as_in_a_url() -> None:
    assert score(r"format?pattern=\w+ is \d+\.", "It is 12.").reward == 1.0
    assert score(r"format?pattern=\w+ is \d+\.", "It is twelve.").reward == 0.0
    assert score("length?free=4&most=8", "abcd").reward == 1.0
    assert score("length?free=4&most=8", "abcdef").reward == 0.5
    assert score("length?free=4&most=8", "abcdefghij").metrics == {"characters": 10.0}
    assert pure_reward("length?free=4&most=8") is not None
    assert pure_reward("http://host/get_reward") is None


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("length?longest=4", "the reward 'length' has no option 'longest'; it has: free, most"),
        ("length?fre=4", "it has: free, most. Did you mean 'free'?"),
        ("gsm8k?x=1", "the reward 'gsm8k' has no option 'x'; it has: none"),
        ("length?free=few", "length: free is 'few', where a whole number is wanted"),
        ("length?free=9&most=3", "free is 9 and most is 3 characters"),
        ("format?pattern=(", "pattern '(' is not a regular expression: missing )"),
        ("lenght?free=3", "Did you mean 'length'"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(spec: str, says: str) -> None:
    with pytest.raises(RewardSpecError) as caught:
        reward_function(spec)
    assert says in str(caught.value)
