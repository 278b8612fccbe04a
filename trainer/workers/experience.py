"""Forward passes of all models over a step's samples, and what the samples are worth.

The driver divides the samples among the ranks (`divide`), and puts one object a rank into the
object store. What a model computes of each token stays where it is made; ranks of other models
that need it read it from there. The driver gets sums only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainer.algorithms import division
from trainer.algorithms.advantages import Numbers
from trainer.algorithms.division import Part, Plan
from trainer.algorithms.estimates import Outputs, Statistics, Worth
from trainer.cluster.worker_group import Kept, Pieces, WorkerGroup, each
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.types import Completion, FloatArray, IntArray, Sequences
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Critic, Policy, Reference


@dataclass(frozen=True, slots=True)
class Division:
    """The samples of a step, divided among the ranks of all models."""

    plan: Plan
    parts: Mapping[int, Sequence[Part]]
    """Number of data ranks → what stands for the part of each of them."""
    sharing: int = 1
    """Ranks of a model that take the same samples."""

    def part(self, group: WorkerGroup[Any]) -> Part:
        """Return what stands for the part of each rank of a group, in a call of all of them."""
        parts = self.parts[len(group) // self.sharing]
        return each([part for part in parts for _ in range(self.sharing)])

    def items(self, group: WorkerGroup[Any]) -> int:
        """Return the number of chunks that each rank of a group takes."""
        return self.plan.chunks * self.sharing // len(group)

    def outputs(self, group: WorkerGroup[Any], kept: Mapping[str, Kept[FloatArray]]) -> Outputs:
        """Return what stands for all models' outputs of the chunks of each rank of a group."""
        ranks = len(group) // self.sharing
        found = [self._outputs(range(rank, self.plan.chunks, ranks), kept) for rank in range(ranks)]
        return each([one for one in found for _ in range(self.sharing)])

    def _outputs(self, chunks: range, kept: Mapping[str, Kept[FloatArray]]) -> Outputs:
        pieces = {role: of.pieces[:: self.sharing] for role, of in kept.items()}
        return Pieces(
            {role: [of[n % len(of)][n // len(of)] for n in chunks] for role, of in pieces.items()}
        )


def divide(
    workers: WorkerGroups, completions: Sequence[Completion], config: Config, step: int
) -> Division:
    """Store each rank's part of the completions of `step`, for the ranks of all models."""
    groups = [workers.policy, workers.critic, workers.reference]
    sharing = config.ring_attn_size
    ranks = {len(group) // sharing for group in groups if group}
    updates = division.mini_batches(len(completions), config.train, step)
    lengths = np.array([len(completion.tokens) for completion in completions])
    actions = np.array([completion.length for completion in completions])
    plan = division.plan(lengths, actions, updates, ranks)

    def rows(index: IntArray) -> Sequences:
        found = Sequences.collate([completions[row] for row in index])
        # Normalised rewards have another scale than their parts.
        return replace(found, turn_rewards=None) if config.shaping.normalize_reward else found

    parts = {count: division.parts(plan, count, rows) for count in ranks}
    store = workers.policy.store
    stored = {count: [store(part) for part in of] for count, of in parts.items()}
    return Division(plan, stored, sharing)


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """The forward passes of a step: in parallel, but one after the other on shared GPUs."""

    division: Division
    kept: Mapping[str, Kept[FloatArray]]
    """Role → what the model computes. The policy may have none."""


def start_forward(workers: WorkerGroups, found: Division, config: Config) -> ForwardPasses:
    """Start the forward passes that the step needs, and no others."""
    turns, kept = workers.turns(), dict[str, Kept[FloatArray]]()
    if config.needs_old_log_probs:
        policy = workers.policy
        kept[Role.POLICY] = turns.call_keeping(
            policy, found.items(policy), Policy.log_probs, found.part(policy)
        )
    if reference := workers.reference:
        kept[Role.REFERENCE] = turns.call_keeping(
            reference, found.items(reference), Reference.log_probs, found.part(reference)
        )
    if critic := workers.critic:
        kept[Role.CRITIC] = turns.call_keeping(
            critic, found.items(critic), Critic.values, found.part(critic)
        )
    return ForwardPasses(found, kept)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the models are updated on, on the ranks that have it, and its sums."""

    division: Division
    """Of samples with a reward."""
    kept: Mapping[str, Kept[FloatArray]]
    worth: Worth
    statistics: Statistics

    def arguments(self, group: WorkerGroup[Any]) -> tuple[Part, Outputs, Worth]:
        """Return the arguments of `update` for each rank of a group."""
        found = self.division
        return found.part(group), found.outputs(group, self.kept), self.worth


def make_lesson(
    workers: WorkerGroups,
    forward: ForwardPasses,
    scores: Numbers,
    config: Config,
    kl_coef: float,
) -> Lesson:
    """Wait for the models and estimate advantages, in a step in which the KL has weight `kl_coef`.

    `scores` [B]: of `advantages.above_baseline`. A sample with NaN trains nothing.
    """
    for kept in forward.kept.values():
        kept.ended.result()
    settings = config.advantage
    worth = Worth(
        scores=scores,
        settings=settings,
        kl=config.kl,
        kl_coef=kl_coef,
    )
    found, policy = forward.division, workers.policy
    outputs = found.outputs(policy, forward.kept)
    of_ranks = policy.call_ranks(Policy.statistics, found.part(policy), outputs, worth).result()
    whole = Statistics.of_all(of_ranks[:: found.sharing])
    known = replace(found, plan=found.plan.where_known(scores))
    return Lesson(known, forward.kept, replace(worth, moments=whole.advantages), whole)
