"""OpenRLHF's remote reward protocol: its two bodies, written and read.

request   {"query": [...], "prompts": [...], "labels": [...]}
answer    {"rewards": [...], "scores": [...], "extra_logs": {name: [...]}, "errors": [...]}

`scores`, which OpenRLHF filters prompts by, are the metric `acc`. Most servers repeat the rewards
there.

Ours alone: a reward may be null, which says that scoring failed, with its reason in `errors`.
OpenRLHF-M's `format_rewards` and `acc_rewards` are the metrics `format` and `acc`. Its client makes
a tensor of every value of the answer: `write_plain_answer` has nothing but lists of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from env.types import RewardRequest, Score, brief, finite, no_number

LEGACY_METRICS = {"format_rewards": "format", "acc_rewards": "acc"}


class RequestError(ValueError):
    """A body that is not a request; the message names the field."""


class AnswerError(ValueError):
    """An answer that is not a list of rewards for these completions."""


class UnscoredError(RuntimeError):
    """Rewards of which one is failed, for a client that knows no failed rewards."""


def write_request(requests: Sequence[RewardRequest]) -> dict[str, Any]:
    return {
        "query": [request.query for request in requests],
        "prompts": [request.prompt for request in requests],
        "labels": [request.label for request in requests],
    }


def read_request(body: bytes) -> list[RewardRequest]:
    """The completions to score. Raises RequestError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("the body is not a JSON object with 'query', 'prompts' and 'labels'")
    queries = _texts(fields, "query")
    prompts = _texts(fields, "prompts", len(queries))
    labels = _labels(fields, len(queries))
    return [RewardRequest(*item) for item in zip(queries, prompts, labels, strict=True)]


def write_answer(scores: Sequence[Score]) -> dict[str, Any]:
    """The answer to a request; a score without a finite reward becomes null with its reason."""
    rewards = [finite(score.reward) if score.ok else None for score in scores]
    metrics = {
        name: [finite(score.metrics.get(name)) for score in scores]
        for name in sorted({name for score in scores for name in score.metrics})
    }
    answer = {
        "rewards": rewards,
        "scores": metrics.get("acc", rewards),
        "extra_logs": metrics,
        "errors": [
            None if reward is not None else score.error or f"the reward is {brief(score.reward)}"
            for reward, score in zip(rewards, scores, strict=True)
        ],
    }
    legacy = {old: metrics[name] for old, name in LEGACY_METRICS.items() if name in metrics}
    return answer | legacy


def write_plain_answer(scores: Sequence[Score]) -> dict[str, list[float]]:
    """The answer for OpenRLHF-M's client. Raises UnscoredError: it knows no failed reward."""
    answer = write_answer(scores)
    failed = [error for error in answer["errors"] if error is not None]
    if failed:
        raise UnscoredError(f"{len(failed)} of {len(scores)} completions failed: {failed[0]}")
    names = ("rewards", *(name for name in LEGACY_METRICS if None not in answer.get(name, [None])))
    return {name: answer[name] for name in names}


def read_answer(answer: object, count: int) -> list[Score]:
    """`count` scores, in order: from the dictionary, or from a bare list of rewards.

    Raises AnswerError for another number of rewards and for a reward that is not a finite number.
    """
    fields = answer if isinstance(answer, Mapping) else {"rewards": answer}
    rewards = _column(fields.get("rewards"))
    if not isinstance(rewards, list):
        given = brief(fields.get("rewards", answer))
        is_none = fields.get("rewards", answer) is None
        begin = "is a `return` missing? Each" if is_none else "each"
        raise AnswerError(
            f"no list of rewards in {given}: {begin} completion needs a number in a list"
        )
    if len(rewards) != count:
        raise AnswerError(f"{_counted(len(rewards), 'reward')} for {_counted(count, 'completion')}")
    metrics = _metrics(fields, count)
    errors = fields.get("errors")
    errors = errors if isinstance(errors, list) and len(errors) == count else [None] * count
    return [_score(*item) for item in zip(rewards, metrics, errors, strict=True)]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _score(reward: object, metrics: Mapping[str, float], error: object) -> Score:
    if reward is None:
        return Score.failed(str(error or "the reward is null, with no reason given"))
    if (number := finite(reward)) is None:
        raise AnswerError(f"the reward {brief(reward)} {no_number(reward)}")
    return Score.of(number, **metrics)


def _metrics(fields: Mapping[str, Any], count: int) -> list[dict[str, float]]:
    """What is logged for each completion. A value that is not a number is left out: logs only."""
    logs = fields.get("extra_logs")
    named = dict(logs) if isinstance(logs, Mapping) else {}
    named |= {name: fields[old] for old, name in LEGACY_METRICS.items() if old in fields}
    if _column(fields.get("scores")) not in (None, _column(fields.get("rewards"))):
        named["acc"] = fields["scores"]
    rows: list[dict[str, float]] = [{} for _ in range(count)]
    for name, given in named.items():
        values = _column(given)
        if isinstance(values, list) and len(values) == count:
            for row, value in zip(rows, values, strict=True):
                if (number := finite(value)) is not None:
                    row[str(name)] = number
    return rows


def _column(values: object) -> object:
    """Return the numbers of a column [B, 1], such as a model's logits, as a list [B]."""
    if isinstance(values, list) and all(isinstance(v, list) and len(v) == 1 for v in values):
        return [value[0] for value in values]
    return values


def _texts(fields: Mapping[str, Any], name: str, count: int | None = None) -> list[str]:
    values = _values(fields, name, count)
    for position, value in enumerate(values):
        if not isinstance(value, str):
            raise RequestError(f"'{name}'[{position}] is {brief(value)}, where a text is wanted")
    return values


def _labels(fields: Mapping[str, Any], count: int) -> list[str | None]:
    if fields.get("labels") is None:
        return [None] * count
    labels = _values(fields, "labels", count)
    return [label if isinstance(label, str | None) else json.dumps(label) for label in labels]


def _values(fields: Mapping[str, Any], name: str, count: int | None) -> list[Any]:
    if name not in fields:
        raise RequestError(f"'{name}' is missing")
    values = fields[name]
    if not isinstance(values, list):
        raise RequestError(f"'{name}' is {brief(values)}, where a list is wanted")
    if count is not None and len(values) != count:
        raise RequestError(f"'{name}' has {len(values)} items, 'query' has {count}")
    return values
