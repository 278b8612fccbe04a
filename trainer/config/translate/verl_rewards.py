"""Conversions of verl's rewards: by the data's path, a user's function, a reward model."""

from __future__ import annotations

import re

from trainer.config.translate.rows import (
    Answer,
    Remarked,
    Row,
    Values,
    absent,
    items,
    needless,
    number,
    shown,
)

DAPO_REWARD = "math-verify"
"""Answers to the prompts of DAPO's data end in `Answer: 34`, without a box."""
NOT_NEGATIVE = "the rewards of DAPO's data are 0 and 1, and in verl -1 and 1"
OWN_REWARD = ("custom_reward_function", "reward.custom_reward_function")
"""Where releases of verl have path and name of a user's own function."""


def overlong_penalty(prefix: str) -> tuple[Row, ...]:
    """Return the rows of a penalty that verl takes by the switch beside its numbers."""

    def convert(value: str, values: Values) -> Answer:
        on = values.on(f"{prefix}.enable")
        return number(value, values) if on else needless(f"{prefix}.enable is off")

    def factor(value: str, values: Values) -> Answer:
        halved = reward(values.text("data.train_files"), values) == DAPO_REWARD
        converted = convert(shown(float(value) / 2) if halved else value, values)
        if not halved or not isinstance(converted, str):
            return converted
        return Remarked(converted, f"it is {converted} here: {NOT_NEGATIVE}")

    return (
        Row(f"{prefix}.len", "overlong_buffer_len", by=convert, old=True, note="with enable"),
        Row(f"{prefix}.penalty_factor", "overlong_penalty_factor", by=factor, old=True,
            note="with enable; half of it for DAPO's data, whose rewards are -1 and 1 in verl"),
    )  # fmt: skip


def reward_manager(value: str, values: Values) -> Answer:
    if value in ("naive", "dapo", "batch", "prime"):
        return needless("--remote_rm_url is the reward, and --overlong_buffer_len the penalty")
    return absent("--remote_rm_url is the reward")


def reward(value: str, values: Values) -> Answer:
    """Return the reward of the data set, which verl takes from each row's data_source."""
    if any(values.has(f"{key}.path") for key in OWN_REWARD) or reward_model(values):
        return needless("the reward is named by itself")
    if found := _reward_of(value):
        by_name = f"the reward is {found}, by the path's name"
        return Remarked(found, f"{by_name}; verl takes it from each row's data_source")
    return absent("verl takes the reward from each row's data_source: give --remote_rm_url")


def _reward_of(files: str) -> str:
    """Return the one reward of data sets by their paths; "" if the paths do not tell."""
    rewards = {_reward_by_name(name.lower()) for name in items(files)}
    return rewards.pop() if len(rewards) == 1 else ""


def _reward_by_name(name: str) -> str:
    """Return the reward of a data set by its path; "" if the path does not tell."""
    named = (DAPO_REWARD, "dapo|aime"), ("gsm8k", "gsm8k"), ("math", "math")
    for reward, words in (*named, ("exact-match", "nq|hotpotqa")):
        if re.search(rf"(?<![a-z])(?:{words})(?![a-z])", name):
            return reward
    return ""


def reward_model(values: Values) -> str:
    if not (values.on("reward_model.enable") or values.on("reward.reward_model.enable")):
        return ""
    return values.text("reward_model.model.path") or values.text("reward.reward_model.model_path")


def model_path(value: str, values: Values) -> Answer:
    return value if reward_model(values) else needless("reward_model.enable is off")


def model_switch(value: str, values: Values) -> Answer:
    if not Values(it=value).on("it"):
        return needless("no reward model, in both")
    return reward_model(values) or absent("give the reward model's path as --reward_pretrain")


def own_reward(value: str, values: Values) -> Answer:
    """Return a user's own function as FILE.py:NAME, which runs as it is."""
    file = value.removeprefix("file://")
    if not file.endswith(".py"):
        return absent(f"{value} is no .py file: give --remote_rm_url FILE.py:NAME")
    names = (values.text(f"{key}.name") for key in OWN_REWARD)
    return f"{file}:{next(filter(None, names), 'compute_score')}"


def own_name(value: str, values: Values) -> Answer:
    """Return the reward whose function has this name; its file is another key's."""
    paths = (values.text(f"{key}.path") for key in OWN_REWARD if values.has(f"{key}.path"))
    path = next(paths, "")
    return own_reward(path, values) if path else needless("without a path it names no function")
