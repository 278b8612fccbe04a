"""verl's reward functions as they are: `compute_score(data_source, solution_str, ground_truth, …)`.

Also those of its batch manager, which get lists: `(data_sources, solution_strs, …)`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from env import coroutines
from env.http.protocol import AnswerError
from env.rewards.python_file import plain
from env.types import RewardRequest, Score, brief, finite, no_number
from env.user_code import OF_VERL_BATCH, Raised, check_signature

SCORE = "score"
"""The reward in a dictionary that a function returns."""

logger = logging.getLogger("env.rewards.guard")


@dataclass(frozen=True, slots=True)
class VerlReward:
    """A RewardFunction of a function of verl's kind."""

    code: Callable[..., Any]

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        asked = [_arguments(request) for request in requests]
        if not asked:
            return []
        if OF_VERL_BATCH in inspect.signature(self.code).parameters:
            answers = self._of_all({f"{n}s": [one[n] for one in asked] for n in asked[0]})
        else:
            answers = self._each([self._taken(one) for one in asked])
        if len(answers) != len(asked):
            raise AnswerError(f"it gave {brief(answers)} for {len(asked)} completions")
        return [self._score(one) for one in answers]

    def _of_all(self, lists: Mapping[str, Any]) -> Sequence[Any]:
        """Return what a function of a batch gives. Raises AnswerError if that is no list."""
        answer = self.code(**self._taken(lists))
        given = coroutines.run(_of(answer)) if inspect.isawaitable(answer) else answer
        each = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(each, list | tuple):
            raise AnswerError(f"it gave {brief(given)}, where a list of scores is wanted")
        return each

    def _taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those arguments that the function has parameters for. Raises SignatureError."""
        parameters = inspect.signature(self.code).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        taken = {name: arguments[name] for name in arguments if takes_all or name in parameters}
        check_signature(self.code, (), taken)
        return taken

    def _each(self, arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return what the function gives for each, or what it raises; an async one runs at once."""
        answers: list[Any] = []
        for one in arguments:
            try:
                answers.append(self.code(**one))
            except (Exception, SystemExit) as error:
                answers.append(error)
        if any(map(inspect.isawaitable, answers)):
            return coroutines.run(_all_of(answers))
        return answers

    def _score(self, answer: Any) -> Score:
        """Return a score, also of a dictionary. Raises AnswerError for what is no number."""
        if isinstance(answer, BaseException):
            logger.error("The reward function failed on a completion.", exc_info=answer)
            reason = f"the reward function raised {type(answer).__name__}: {answer}"
            return Score.failed(reason, Raised.of(answer, self.code))
        named = answer if isinstance(answer, Mapping) else {SCORE: answer}
        if SCORE not in named:
            raise AnswerError(f"no '{SCORE}' in {brief(answer)}: verl's functions give it")
        given = named[SCORE]
        value, metrics = plain(given), {name: plain(one) for name, one in named.items()}
        if value is None:
            is_none = given is None
            said = Score.failed(f"the reward is {brief(given)}")
            return replace(said, not_finite=not is_none)
        if (number := finite(value)) is None:
            raise AnswerError(f"the reward {brief(given)} {no_number(given)}")
        kept = {name: finite(one) for name, one in metrics.items() if name != SCORE}
        return Score.of(number, **{str(n): one for n, one in kept.items() if one is not None})


def _arguments(request: RewardRequest) -> dict[str, Any]:
    """Return what verl asks about a completion: what its data have in these columns.

    Of data without `reward_model.ground_truth`, the label is the ground truth.
    """
    row = request.columns
    named, extra = row.get("reward_model"), row.get("extra_info")
    has_truth = isinstance(named, Mapping) and "ground_truth" in named
    own = dict(extra) if isinstance(extra, Mapping) else {}
    return {
        "data_source": row.get("data_source", ""),
        "solution_str": request.response,
        "ground_truth": named["ground_truth"] if has_truth and named else request.label,
        "extra_info": {"num_turns": None, "rollout_reward_scores": {}} | own,
    }


async def _of(answer: Awaitable[Any]) -> Any:
    return await answer


async def _all_of(answers: Sequence[Any]) -> list[Any]:
    """Return what is awaited, all at once, and what was there; exceptions as they are."""
    awaited = [one for one in answers if inspect.isawaitable(one)]
    ended = iter(await asyncio.gather(*awaited, return_exceptions=True))
    return [next(ended) if inspect.isawaitable(one) else one for one in answers]
