"""TRL's reward functions as they are: `(completions, **columns)`, a number for each completion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from env import coroutines
from env.http.protocol import read_answer
from env.rewards.python_file import plain, with_reasons
from env.types import RewardRequest, Score
from env.user_code import check_signature

Function = Callable[..., Any]
NO_COLUMNS = frozenset(("prompt", "completion", "completion_ids"))
"""Columns that TRL does not pass on: it has arguments of its own for them."""


@dataclass(frozen=True, slots=True)
class TrlReward:
    """A RewardFunction of a function of TRL's kind."""

    code: Function

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        asked = Asked.of(requests)
        arguments = asked.arguments()
        check_signature(self.code, (), arguments)
        answer = self.code(**arguments)
        return asked.scores(coroutines.run(_of(answer)) if inspect.isawaitable(answer) else answer)


@dataclass(slots=True)
class Asked:
    """What a function is asked about a batch, and what it logs meanwhile."""

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    columns: list[Mapping[str, Any]]
    """The row of each completion."""
    logged: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: Sequence[RewardRequest]) -> Asked:
        """Return texts for prompts that are texts, and messages for chats."""
        return cls(
            [r.prompt if r.messages is None else list(r.messages) for r in requests],
            [_completion(r) for r in requests],
            [[int(token) for token in r.completion_ids] for r in requests],
            [r.columns for r in requests],
        )

    def arguments(self) -> dict[str, Any]:
        """Return the function's keyword arguments: TRL's own, and every column of the rows."""
        names = {name for row in self.columns for name in row} - NO_COLUMNS
        return {
            **{name: [row.get(name) for row in self.columns] for name in sorted(names)},
            "prompts": self.prompts,
            "completions": self.completions,
            "completion_ids": self.completion_ids,
            "log_extra": self._log_extra,
            "log_metric": self._log_metric,
        }

    def scores(self, answer: Any) -> list[Score]:
        """Return a score for each reward. None means that the function does not judge it.

        Raises AnswerError for another number of rewards.
        """
        fields = {"rewards": plain(answer), "extra_logs": plain(self.logged)}
        return [*with_reasons(answer, read_answer(fields, len(self.prompts)))]

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        self.logged[column] = list(values)

    def _log_metric(self, name: str, value: float) -> None:
        self.logged[name] = [value] * len(self.prompts)


def _completion(request: RewardRequest) -> Any:
    if request.messages is None:
        return request.response
    return [{"role": "assistant", "content": request.response}]


async def _of(answer: Any) -> Any:
    return await answer
