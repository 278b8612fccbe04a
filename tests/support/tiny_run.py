"""A tiny run in this process: real models, real files, no Ray."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.journal import read_events
from contract.options import ConfigError
from env.episodes.attempts import without_reward
from env.types import RewardFunction, RewardRequest, Score
from tests.support.local_workers import LocalLauncher
from trainer.checkpoint.writer import RunState
from trainer.cluster.stop import StopRequest
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.metrics.callbacks import Callback
from trainer.rollout import episode_setup
from trainer.rollout import prompts as data
from trainer.training import loop
from trainer.training.inputs import TrainingInputs
from trainer.workers import groups

GRPO: dict[str, Any] = {"advantage_estimator": "group_norm", "init_kl_coef": 0}


@dataclass(frozen=True)
class Tiny:
    """A model of some thousand parameters and prompts for it."""

    model: Path
    prompts: Path
    held_out: Path

    def needed(self, run: Path) -> dict[str, Any]:
        """The flags that every run needs."""
        return {
            "pretrain": self.model,
            "prompt_data": self.prompts,
            "input_key": "prompt",
            "label_key": "answer",
            "remote_rm_url": "arithmetic",
            "run_dir": run,
        }

    def config(self, run: Path, **flags: Any) -> Config:
        """A valid small configuration; `flags` replace or add (True: a flag without value)."""
        values = {
            **self.needed(run),
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 2,
            "train_batch_size": 4,
            "micro_train_batch_size": 2,
            "micro_rollout_batch_size": 4,
            "generate_max_len": 3,
            "max_steps": 4,
            "seed": 1,
            "actor_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            **flags,
        }
        return parse(to_argv(values))


def to_argv(flags: dict[str, Any]) -> list[str]:
    argv: list[str] = []
    for name, value in flags.items():
        values = value if isinstance(value, tuple) else (value,)
        if value is not None:
            argv += [f"--{name}"] if value is True else [f"--{name}", *map(str, values)]
    return argv


def faults_of(**flags: object) -> dict[str, str]:
    """Flag → what is wrong with its value, or without it. Fails if nothing is."""
    with pytest.raises(ConfigError) as caught:
        parse(to_argv(dict(flags)))
    return {fault.path: str(fault) for fault in caught.value.faults}


def share_of(character: str) -> RewardFunction:
    """A bandit's reward: the share of one character in the completion."""

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(r.response.count(character) / max(1, len(r.response))) for r in requests]

    return reward


class StopAfter:
    """A request to stop that comes while so many calls of the reward function were made."""

    def __init__(self, calls: int) -> None:
        self.stop = StopRequest()
        self._left = calls

    def reward(self, requests: Sequence[RewardRequest]) -> list[Score]:
        self._left -= 1
        self.stop.requested |= self._left <= 0
        return share_of("1")(requests)


def dying_at(call: int) -> RewardFunction:
    """Raises RuntimeError at its call of that number, from 1: as if the driver died there."""
    calls = itertools.count(1)

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        if next(calls) == call:
            raise RuntimeError("the driver dies")
        return share_of("1")(requests)

    return reward


def train(
    config: Config,
    reward: RewardFunction | None = None,
    stop: StopRequest | None = None,
    peers: Any = None,
    callbacks: Sequence[Callback] = (),
) -> RunState:
    """`peers`: None, or what stands for `Replicator` without Ray."""
    config.files.root.mkdir(parents=True, exist_ok=True)
    prompts = data.load(config)
    workers = groups.assemble(config, config.total_steps(len(prompts.stream)), LocalLauncher())
    episodes = episode_setup.of_flags(config)
    own = without_reward if episodes and not config.reward_spec else share_of("1")
    inputs = TrainingInputs(prompts, reward or own, episodes, tuple(callbacks))
    return loop.train(config, workers, inputs, stop or StopRequest(), peers)


def rollouts_have_ended() -> None:
    """Wait for the thread in which they run beside the loop: something is raised there."""
    for thread in threading.enumerate():
        if thread.name == "rollouts":
            thread.join(10)


def events(config: Config, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(config.files.journal) if event["kind"] == kind]


def metric_rows(config: Config) -> list[dict[str, Any]]:
    return [json.loads(line) for line in config.files.metrics.read_text().splitlines()]


def of_the_samples(metrics: dict[str, float]) -> dict[str, float]:
    """Without how much memory the process has held, which is not a function of the samples."""
    return {name: value for name, value in metrics.items() if not name.endswith("_memory_gb")}
