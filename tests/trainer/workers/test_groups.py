from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.tiny_run import Tiny
from trainer.workers import groups
from trainer.workers.settings import LearnerSettings


class Recorder:
    """A launcher that starts nothing and remembers the settings that it was given."""

    pools: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.settings: dict[str, LearnerSettings] = {}

    def launch(self, role: str, actor: str, count: int, *settings: Any) -> Any:
        self.settings[role] = settings[0]

    launch_ranks = launch


def test_policy_and_critic_have_optimizers_of_their_own(tiny: Tiny, run_dir: Path) -> None:
    shared = {"l2": 0.1, "max_norm": 2, "min_lr_ratio": 0.3, "lr_warmup_ratio": 0.2}
    only = {"critic.adam.weight_decay": 0.4, "critic.max_norm": 3, "critic.lr_scheduler": "linear"}
    recorder = Recorder()
    groups.assemble(tiny.config(run_dir, **shared, **only), 4, recorder)
    learners = [recorder.settings[role] for role in ("policy", "critic")]
    policy, critic = (learner.optimizer for learner in learners)
    assert (policy.l2, policy.max_norm, policy.lr_scheduler) == (0.1, 2, "cosine_with_min_lr")
    assert (critic.l2, critic.max_norm, critic.lr_scheduler) == (0.4, 3, "linear")
    assert policy.min_lr_ratio == critic.min_lr_ratio == 0.3
    assert policy.lr_warmup_ratio == critic.lr_warmup_ratio == 0.2
    assert [learner.updates for learner in learners] == [4 * 2, 4 * 2]


class Called:
    """A group that remembers after which call each of its calls comes."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.after: list[Any] = []

    def call_ranks_after(self, earlier: Any, method: Any, *args: Any) -> Any:
        self.after.append(earlier)
        return f"{self.role} {method} {args}"


def test_models_on_the_same_gpus_compute_in_turn_and_others_at_once() -> None:
    pools = {"policy": "policy+reference", "reference": "policy+reference", "critic": "critic"}
    policy, reference, critic, reward = map(Called, ("policy", "reference", "critic", "reward"))
    turns: Any = groups.Turns(pools)
    first = turns.call(policy, "log_probs", 1)
    for group in (critic, reference, reward):
        turns.call(group, "scores", 2)
    assert first == "policy log_probs (1,)"
    assert [one.after for one in (policy, critic, reference, reward)] == [
        [None],
        [None],
        [first],
        [None],
    ]


def test_roles_without_gpus_wait_for_no_other() -> None:
    policy, critic = Called("policy"), Called("critic")
    turns: Any = groups.Turns({})
    for group in (policy, critic):
        turns.call(group, "update")
    assert policy.after == critic.after == [None]
