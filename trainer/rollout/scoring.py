"""Rewards in the background: completions that are written are scored while others are written.

A thread for each call, which ends with the process: a call that waits for a server keeps nobody
from leaving. Who cannot be called several times at once (a function of a user's, say) gets
everything that has come meanwhile in its next call.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Thread

from env.types import RewardFunction, Score
from trainer.rollout import rewards
from trainer.rollout.rollout_state import PromptGroup


class Scoring:
    def __init__(self, reward: RewardFunction) -> None:
        self._reward = reward
        self._at_once: int = getattr(reward, "concurrency", 1)
        self._waiting: list[PromptGroup] = []
        self._calls: dict[Future[list[Score]], list[PromptGroup]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._calls)

    def give(self, groups: list[PromptGroup]) -> None:
        """Groups that are written; each is scored in one call."""
        self._waiting += groups

    def work(self) -> list[PromptGroup]:
        """Groups whose scores have come.

        Raises what the reward function raised; its groups wait to be scored again.
        """
        if self._waiting and len(self._calls) < self._at_once:
            groups, self._waiting = self._waiting, []
            written = [(group.prompt, c) for group in groups for c in group.written]
            self._calls[_begun(lambda: rewards.scores(self._reward, written))] = groups
        done = [call for call in self._calls if call.done()]
        return [group for call in done for group in self._scored(call)]

    def wait(self, seconds: float) -> None:
        """Until a call is over, at most so long."""
        wait(self._calls, seconds, FIRST_COMPLETED)

    def _scored(self, call: Future[list[Score]]) -> list[PromptGroup]:
        groups = self._calls.pop(call)
        if call.exception():
            self._waiting += groups  # no one else has them, and the run may go on
        scores = iter(call.result())
        for group in groups:
            group.scores = [next(scores) for _ in group.completions]
        return groups


def _begun(call: Callable[[], list[Score]]) -> Future[list[Score]]:
    outcome: Future[list[Score]] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="reward", daemon=True).start()
    return outcome
