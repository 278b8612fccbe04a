"""From what a user writes after `--remote_rm_url` to a reward function."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from pathlib import Path

from env.client import RemoteReward, RewardRejected, RewardUnreachable
from env.rewards import arithmetic, gsm8k
from env.rewards.guard import guard
from env.rewards.python_file import RewardFileError, load_reward_file
from env.types import RewardFunction

__all__ = ["REWARDS", "RewardRejected", "RewardSpecError", "RewardUnreachable", "reward_function"]

REWARDS: dict[str, RewardFunction] = {
    "arithmetic": arithmetic.exact,
    "arithmetic-partial": arithmetic.partial,
    "gsm8k": gsm8k.score,
}


logger = logging.getLogger(__name__)


class RewardSpecError(ValueError):
    """Not the name of a reward; the message says what would be."""


def reward_function(
    spec: str,
    *,
    timeout: float = 30.0,
    deadline: float = 600.0,
    tell: Callable[[str], None] = logger.warning,
) -> RewardFunction:
    """The reward function that `spec` names.

    `spec`: one URL or several with commas between, the path of a `.py` file with
    `reward_func(queries, prompts, labels)`, or a name in REWARDS. `timeout`, `deadline` (seconds,
    a try and all tries together) and `tell` (what is waited for, in a sentence) hold for URLs.
    Raises RewardSpecError.
    """
    spec = spec.strip()
    try:
        if "://" in spec:
            urls = [url.strip() for url in spec.split(",") if url.strip()]
            return RemoteReward(urls, timeout=timeout, deadline=deadline, tell=tell)
        if spec.endswith(".py"):
            return guard(load_reward_file(Path(spec)))
    except (RewardFileError, ValueError) as error:
        raise RewardSpecError(str(error)) from error
    if spec in REWARDS:
        return REWARDS[spec]
    raise RewardSpecError(_unknown(spec))


def _unknown(spec: str) -> str:
    if "/" in spec or ":" in spec:
        return f"'{spec}' is no URL and no .py file; did you mean 'http://{spec}'?"
    near = difflib.get_close_matches(spec, REWARDS, n=1)
    advice = f"; did you mean '{near[0]}'?" if near else ""
    names = ", ".join(REWARDS)
    return f"'{spec}' is no URL, no .py file and none of the rewards {names}{advice}"
