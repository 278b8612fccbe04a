"""The files that `init` writes for a run on any platform, with places for the run's own values."""

from __future__ import annotations

import json
from collections.abc import Sequence

RUN = """\
# A run of Rollcall. `rollcall plan --config run.yaml` shows what it would do, and starts nothing.
# docs/flags.md has every flag; a flag of the command line beats this file.

pretrain: {model}
prompt_data: {data}
input_key: {input_key}
{label}apply_chat_template: {chat:<5}   # {why}
remote_rm_url: {reward}

advantage_estimator: group_norm   # GRPO: the samples of a prompt are compared with each other
n_samples_per_prompt: {samples}
rollout_batch_size: {prompts:<4}          # prompts of a step
train_batch_size: {batch:<4}            # samples of an update: two updates in each step
prompt_max_len: {length:<4}              # tokens
generate_max_len: {length:<4}            # tokens
actor_learning_rate: 1e-6
init_kl_coef: 0.001
use_kl_loss: true
kl_estimator: k3

save_steps: 20
"""
REWARD = '''\
"""The reward of this run: a number for each completion.

`rollcall plan --config run.yaml` tries it on the first rows of the data; test_reward.py tests it.
"""

from __future__ import annotations

import re
from typing import Any

NUMBER = re.compile(r"[-+]?\\d+(\\.\\d+)?")


def score(completion: str, answer: Any) -> float:
    """Return 1 if the completion ends with the row's answer, else 0. Change this to your task.

    If the answer is a number, the last number of the completion counts. Of an answer with its
    working, as GSM8K's, what follows `####` counts.
    """
    wanted = words_of(str(answer).rpartition("####")[2])
    said = words_of(completion)
    if len(wanted) == 1 and NUMBER.fullmatch(wanted[0]):
        said = [word for word in said if NUMBER.fullmatch(word)]
    return float(bool(wanted) and said[-len(wanted) :] == wanted)


def words_of(text: str) -> list[str]:
    """Return the words in small letters, without punctuation, Markdown and LaTeX's box."""
    text = re.sub(r"(?<=\\d),(?=\\d\\d\\d)", "", text)  # 1,000 is 1000
    text = re.sub(r"\\\\(boxed|text)\\b|=", " ", text.lower())
    ends = r"^([^\\w+-]|_)+|([^\\w%]|_)+$"
    words = [re.sub(ends, "", word) for word in text.split()]
    return [word for word in words if word] or text.split()


def reward(completions: list[Any], {column}: list[Any], **columns: Any) -> list[float]:
    """Return the reward of each completion.

    The column `{column}` of the data has a value for each of them, and `columns` has the others.
    A completion is a text; with a chat template it is a list with one message.
    """
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    {before}return [score(text, answer) for text, answer in zip(texts, {answers}, strict=True)]
'''
TEST = '''\
"""`python -m pytest test_reward.py` tests the reward."""

from reward import reward, score


def test_the_rows_answer_scores_one_and_another_zero():
    assert score("It is 42", "42") == 1.0
    assert score("It is 41", "42") == 0.0
    assert score("It is 142", "42") == 0.0


def test_the_form_of_the_answer_does_not_count():
    for said in ("The answer is 42.", "**42**", "$\\\\boxed{42}$", "It is 42 apples", "x = 42"):
        assert score(said, "42") == 1.0
    assert score("It is 1,000.", "1000") == 1.0
    assert score("It is Paris!", "Paris") == 1.0
    assert score("Paris or Rome", "Paris") == 0.0


def test_of_a_worked_answer_the_end_counts():
    assert score("It is 42", "40 + 2 = 42\\n#### 42") == 1.0


def test_each_completion_of_a_batch_has_its_own_reward():
    chat = [{"role": "assistant", "content": "7"}]
    assert reward(["42", chat], ["42", "8"]) == [1.0, 0.0]
'''


def reward_of(column: str, parts: Sequence[str]) -> str:
    """Return reward.py. The answers are in `column`, or behind names in its objects."""
    if not parts:
        return REWARD.format(column=column, before="", answers=column)
    behind = "".join(f"[{json.dumps(name)}]" for name in parts)
    before = f"answers = [one{behind} for one in {column}]\n    "
    return REWARD.format(column=column, before=before, answers="answers")


def test_of(parts: Sequence[str]) -> str:
    """Return test_reward.py, whose answers are behind the same names."""
    values: list[object] = ["42", "8"]
    for name in reversed(parts):
        values = [{name: value} for value in values]
    return TEST.replace('["42", "8"])', f"{json.dumps(values)})")
