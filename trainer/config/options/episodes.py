"""Flags: environments and the limits of their episodes."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Group
from trainer.config.values import Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """Episodes of several turns. Unfinished ones of a checkpoint continue under the same flags."""

    environment: str = Group.EPISODES.flag(
        "", "episodes of several turns: a registered name, FILE.py:CLASS, or verifiers:NAME"
    )
    environment_args: Arguments = Group.EPISODES.flag(
        Arguments(), "keyword arguments of the environment, as a JSON object"
    )
    agent_func_path: str = Group.EPISODES.flag(
        "",
        "OpenRLHF's agent: a .py file with the class AgentExecutor",
        dotted="train.agent_func_path",
    )
    max_turns: int = Group.EPISODES.flag(10, "replies of an episode", at_least=1)
    max_obs_length: int = Group.EPISODES.flag(
        1024,
        "longest text of the environment after one reply; the rest is cut off",
        unit="tokens",
        at_least=1,
    )
    max_episode_seconds: float = Group.EPISODES.flag(
        600.0,
        "time of all calls of an episode's environment; engines do not count",
        unit="seconds",
        above=0,
    )
    environment_failure: str = Group.EPISODES.flag(
        "retry",
        "what a failed environment means: begin again, leave the episode out, end the run",
        choices=("retry", "drop", "fail"),
    )
