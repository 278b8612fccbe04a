"""Forward passes of all models over a batch, then the advantages: samples → Experience."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.algorithms import advantages, batching
from trainer.algorithms.advantages import AdvantageInputs
from trainer.cluster.worker_group import Pending
from trainer.config.config import Config
from trainer.types import Experience, FloatArray, Sequences
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Critic, Policy, Reference


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """The forward passes of a step: in parallel, but one after the other on shared GPUs."""

    sequences: Sequences
    log_probs: Pending[list[FloatArray]] | None
    values: Pending[list[FloatArray]] | None
    reference: Pending[list[FloatArray]] | None
    sharing: int = 1
    """Ranks that have the same samples."""

    def gathered(self, ranks: Pending[list[FloatArray]] | None) -> FloatArray | None:
        """Wait for all ranks of a model. Returns their outputs for all samples; None without it."""
        lengths = self.sequences.lengths
        return batching.gather(ranks.result()[:: self.sharing], lengths) if ranks else None


def start_forward(workers: WorkerGroups, sequences: Sequences, config: Config) -> ForwardPasses:
    """Start the forward passes that the step needs, and no others."""
    turns = workers.turns()
    log_probs = reference = values = None  # in the order in which `make_experience` waits for them
    if config.needs_old_log_probs:
        log_probs = turns.call(workers.policy, Policy.log_probs, sequences)
    if workers.reference:
        reference = turns.call(workers.reference, Reference.log_probs, sequences)
    if workers.critic:
        values = turns.call(workers.critic, Critic.values, sequences)
    return ForwardPasses(sequences, log_probs, values, reference, config.ring_attn_size)


def make_experience(
    forward: ForwardPasses,
    rewards: FloatArray,
    config: Config,
    kl_coef: float,
) -> Experience:
    """Wait for the models and estimate advantages, in a step in which the KL has weight `kl_coef`.

    A sample with reward NaN trains nothing.
    """
    known = forward.sequences.where_known(rewards)
    inputs = AdvantageInputs(
        rewards=rewards,
        action_mask=known.action_mask,
        old_log_probs=forward.gathered(forward.log_probs),
        ref_log_probs=forward.gathered(forward.reference),
        values=forward.gathered(forward.values),
        # Normalised rewards have another scale than their parts.
        turn_rewards=None if config.shaping.normalize_reward else known.turn_rewards,
        group_size=config.n_samples_per_prompt,
        kl_coef=0.0 if config.kl.use_loss else kl_coef,
        kl_estimator=config.kl.estimator,
    )
    advantage, returns = advantages.estimate(config.advantage, inputs)
    return Experience(
        sequences=known,
        old_log_probs=inputs.old_log_probs,
        advantages=advantage,
        returns=returns,
        values=inputs.values,
        ref_log_probs=inputs.ref_log_probs,
        kl_coef=kl_coef if config.kl.use_loss else 0.0,
    )
