"""verl's own reward files run as they are: known by their parameters, one completion or a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from env.registry import given_in_python, reward_function
from env.types import RewardRequest

ROW: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "reward_model": {"style": "rule", "ground_truth": ["2", "two"]},
    "extra_info": {"index": 7},
}


def asked(completion: str, label: str | None = None, **columns: Any) -> RewardRequest:
    return RewardRequest(f"1+1={completion}", "1+1=", label, columns=columns)


def written(directory: Path, code: str) -> str:
    (directory / "verls.py").write_text(code)
    return f"{directory}/verls.py:compute_score"


SAME = "(solution_str in ground_truth) / (1 + extra_info['index'])"


@pytest.mark.parametrize(
    "code",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert data_source == 'openai/gsm8k'\n"
        "    assert extra_info['num_turns'] is None and extra_info['rollout_reward_scores'] == {}\n"
        f"    return {SAME}\n",
        f"def compute_score(solution_str, ground_truth, **others):\n"
        f"    extra_info = others['extra_info']\n    return {{'score': {SAME}}}\n",
        "async def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        f"    return {SAME}\n",
        "import numpy\n"
        "def compute_score(data_sources, solution_strs, ground_truths, extra_infos):\n"
        "    return numpy.array([(one in truth) / (1 + extra['index']) for one, truth, extra in\n"
        "                        zip(solution_strs, ground_truths, extra_infos, strict=True)])\n",
        "async def compute_score(solution_strs, ground_truths, **others):\n"
        "    return [{'score': (one in truth) / (1 + extra['index'])} for one, truth, extra in\n"
        "            zip(solution_strs, ground_truths, others['extra_infos'], strict=True)]\n",
    ],
)
def test_a_function_of_verl_s_kind_gets_verl_s_columns(tmp_path: Path, code: str) -> None:
    reward = reward_function(written(tmp_path, code))
    scores = reward([asked("2", **ROW), asked("3", **ROW), asked("two", **ROW)])
    assert [score.reward for score in scores] == [0.125, 0, 0.125]
    assert not reward([])


def test_other_data_have_a_label_and_other_parameters_are_left_out(tmp_path: Path) -> None:
    code = "def compute_score(solution_str, ground_truth, method='strict', extra_info=None):\n"
    code += "    return float(solution_str == ground_truth and method == 'strict')\n"
    scores = reward_function(written(tmp_path, code))([asked("2", "2"), asked("3", "2")])
    assert [score.reward for score in scores] == [1, 0]


def test_a_dictionary_has_metrics_and_only_numbers_are_kept(tmp_path: Path) -> None:
    def compute_score(solution_str: str, ground_truth: str) -> dict[str, Any]:
        return {"score": -1, "acc": solution_str == ground_truth, "pred": solution_str}

    with given_in_python(compute_score) as spec:
        (score,) = reward_function(spec)([asked("2", "2")])
    assert (score.reward, score.metrics) == (-1, {"acc": 1.0})
    assert score.accuracy == 1


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_exception_fails_its_completion_alone(tmp_path: Path, kind: str) -> None:
    code = f"{kind} compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    code += "    return 1 / int(solution_str)\n"
    half, zero, text = reward_function(written(tmp_path, code))(
        [asked("2"), asked("0"), asked("two")]
    )
    assert half.reward == 0.5
    assert "ZeroDivisionError" in zero.error
    assert zero.raised is not None
    assert zero.raised.line == 2
    assert "invalid literal" in text.error


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("'1.0'", "is a text (str): give a number"),
        ("{'acc': 1.0}", "no 'score' in {'acc': 1.0}"),
        ("None", "the reward is None"),
        ("float('nan')", "the reward is nan"),
    ],
)
def test_what_is_no_number_is_no_score(tmp_path: Path, returned: str, says: str) -> None:
    code = f"def compute_score(solution_str):\n    return {returned}\n"
    (score,) = reward_function(written(tmp_path, code))([asked("2")])
    assert not score.ok
    assert says in score.error


def test_a_batch_of_another_length_and_a_missing_argument_are_said(tmp_path: Path) -> None:
    short = written(tmp_path, "def compute_score(solution_strs):\n    return [1.0]\n")
    scores = reward_function(short)([asked("2"), asked("3")])
    assert not reward_function(short)([])
    assert "it gave [1.0] for 2 completions" in scores[0].error
    wrong = written(tmp_path, "def compute_score(solution_str, tokenizer):\n    return 1.0\n")
    (score,) = reward_function(wrong)([asked("2")])
    assert "needs `tokenizer`" in score.error
