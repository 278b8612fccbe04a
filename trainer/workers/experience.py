"""What the models say about a batch: log-probabilities, values, reference; then advantages."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.algorithms import advantages, batching
from trainer.algorithms.advantages import AdvantageInputs, Estimator
from trainer.cluster.worker_group import Pending
from trainer.config.config import Config
from trainer.types import Experience, FloatArray, Sequences
from trainer.workers.groups import Team
from trainer.workers.protocols import Critic, Policy, Reference


@dataclass(frozen=True, slots=True)
class Estimates:
    """Forward passes under way, on all models at once."""

    sequences: Sequences
    log_probs: Pending[list[FloatArray]] | None
    values: Pending[list[FloatArray]] | None
    reference: Pending[list[FloatArray]] | None

    def whole(self, parts: Pending[list[FloatArray]] | None) -> FloatArray | None:
        """Wait for what all ranks of a model say of their samples."""
        lengths = self.sequences.lengths
        return batching.gather(parts.result(), lengths) if parts else None


def start(team: Team, sequences: Sequences, config: Config) -> Estimates:
    """Ask each model for what the step needs of it, and no model for anything else."""
    return Estimates(
        sequences,
        team.policy.call_ranks(Policy.log_probs, sequences) if config.needs_old_log_probs else None,
        team.critic.call_ranks(Critic.values, sequences) if team.critic else None,
        team.reference.call_ranks(Reference.log_probs, sequences) if team.reference else None,
    )


def finish(
    estimates: Estimates,
    rewards: FloatArray,
    estimator: Estimator,
    *,
    loss_kl_coef: float = 0.0,
) -> Experience:
    """Wait for the models and estimate advantages for samples with these rewards (NaN: none)."""
    known = estimates.sequences.where_known(rewards)
    inputs = AdvantageInputs(
        rewards=rewards,
        action_mask=known.actions,
        old_log_probs=estimates.whole(estimates.log_probs),
        ref_log_probs=estimates.whole(estimates.reference),
        values=estimates.whole(estimates.values),
    )
    advantage, returns = advantages.estimate(estimator, inputs)
    return Experience(
        sequences=known,
        old_log_probs=inputs.old_log_probs,
        advantages=advantage,
        returns=returns,
        values=inputs.values,
        ref_log_probs=inputs.ref_log_probs,
        kl_coef=loss_kl_coef,
    )


def estimator_of(config: Config, kl_coef: float) -> Estimator:
    """As the flags say, at a step at which the KL weighs `kl_coef`."""
    return Estimator(
        name=config.advantage_estimator,
        group_size=config.n_samples_per_prompt,
        gamma=config.gamma,
        lambd=config.lambd,
        kl_coef=0.0 if config.use_kl_loss else kl_coef,
        kl_estimator=config.kl_estimator,
        reward_range=config.reward_clip_range,
        std_norm=not config.no_advantage_std_norm,
    )
