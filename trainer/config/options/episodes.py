"""Flags: environments and the limits of their episodes."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer.config.schema import EPISODES, flag


@dataclass(frozen=True, slots=True)
class Arguments:
    """Keyword arguments of an environment. Raises ValueError if the text is not a JSON object."""

    text: str = "{}"
    DESCRIBED: ClassVar[str] = 'a JSON object of keyword arguments such as {"topk": 3}'

    def __post_init__(self) -> None:
        if not isinstance(json.loads(self.text), dict):
            raise ValueError(self.text)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """Episodes of several turns. Unfinished ones of a checkpoint continue under the same flags."""

    environment: str = flag(
        "",
        group=EPISODES,
        help="episodes of several turns: a registered name, FILE.py:CLASS, or verifiers:NAME",
    )
    environment_args: Arguments = flag(
        Arguments(), group=EPISODES, help="keyword arguments of the environment, as a JSON object"
    )
    agent_func_path: str = flag(
        "",
        group=EPISODES,
        dotted="train.agent_func_path",
        help="OpenRLHF's agent: a .py file with the class AgentExecutor",
    )
    max_turns: int = flag(10, group=EPISODES, at_least=1, help="replies of an episode")
    max_obs_length: int = flag(
        1024,
        group=EPISODES,
        unit="tokens",
        at_least=1,
        help="longest text of the environment after one reply; the rest is cut off",
    )
    max_episode_seconds: float = flag(
        600.0,
        group=EPISODES,
        unit="seconds",
        above=0,
        help="time of all calls of an episode's environment; engines do not count",
    )
    environment_failure: str = flag(
        "retry",
        group=EPISODES,
        choices=("retry", "drop", "fail"),
        help="what a failed environment means: begin again, leave the episode out, end the run",
    )
