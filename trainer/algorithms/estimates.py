"""From rewards and the models' outputs to a rank's experience: in numpy, on the rank itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.algorithms import advantages
from trainer.algorithms.advantages import AdvantageInputs, Moments, Numbers
from trainer.algorithms.division import Part
from trainer.algorithms.kl import KLSums, kl
from trainer.config.layout import Role
from trainer.config.options.algorithm import AdvantageSettings, KLSettings
from trainer.types import Experience, FloatArray

Outputs = Mapping[str, Sequence[FloatArray]]
"""Role → what the model computed for each action of the rank's samples, chunk by chunk.

Of the policy and the reference they are log-probabilities, of the critic values. A role that the
step does not need is missing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the samples of a step are worth: small, and the same for all ranks."""

    scores: Numbers
    """[B] of `advantages.above_baseline`; NaN: the sample trains nothing."""
    settings: AdvantageSettings
    kl: KLSettings
    kl_coef: float
    """Weight of the KL in this step."""
    moments: Moments | None = None
    """Of the advantages of all actions, to whiten them; None: they are not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the driver knows of advantages, returns and KL: sums that add up over ranks."""

    advantages: Moments
    """Before whitening."""
    returns: float
    """Sum over all actions."""
    kl: KLSums | None
    """Of the policy to the reference: of the policy before the step's updates, or of those that
    wrote the completions if that is not computed. None without a reference."""

    @classmethod
    def of_all(cls, ranks: Sequence[Statistics]) -> Statistics:
        of_kl = [rank.kl for rank in ranks if rank.kl]
        tokens, means = sum(one.tokens for one in of_kl), sum(one.means for one in of_kl)
        return cls(
            advantages=Moments.of_all([rank.advantages for rank in ranks]),
            returns=sum(rank.returns for rank in ranks),
            kl=KLSums(tokens, means) if of_kl else None,
        )


def statistics(part: Part, outputs: Outputs, worth: Worth) -> Statistics:
    """Return the sums over the rank's actions."""
    inputs = _inputs(part, outputs, worth)
    estimated, returns = advantages.estimate(worth.settings, inputs)
    known = advantages.of_known(inputs.scores, inputs.actions)
    policy, sums = inputs.old_log_probs, None
    if policy is None:
        policy = part.sequences.rollout_log_probs
    if inputs.ref_log_probs is not None and policy is not None:
        distance = kl(policy, inputs.ref_log_probs, worth.kl.estimator)
        sums = KLSums.of(np.where(known, distance, 0), inputs.actions)
    return Statistics(
        advantages=Moments.of(estimated[known]), returns=float(returns.sum()), kl=sums
    )


def experience(part: Part, outputs: Outputs, worth: Worth) -> Experience:
    """Return what the rank's actions teach."""
    inputs = _inputs(part, outputs, worth)
    estimated, returns = advantages.estimate(worth.settings, inputs)
    if worth.settings.whitens:
        assert worth.moments is not None
        std_norm = not worth.settings.no_std_norm
        estimated = advantages.whiten(estimated, worth.moments, std_norm=std_norm)
    return Experience(
        sequences=part.sequences,
        old_log_probs=_whole(outputs.get(Role.POLICY)),
        advantages=estimated.astype(np.float32),
        returns=returns.astype(np.float32),
        values=_whole(outputs.get(Role.CRITIC)),
        ref_log_probs=_whole(outputs.get(Role.REFERENCE)),
        kl_coef=worth.kl_coef if worth.kl.use_loss else 0.0,
    )


def _inputs(part: Part, outputs: Outputs, worth: Worth) -> AdvantageInputs:
    return AdvantageInputs(
        scores=worth.scores[part.rows],
        actions=part.sequences.actions,
        old_log_probs=_whole(outputs.get(Role.POLICY)),
        ref_log_probs=_whole(outputs.get(Role.REFERENCE)),
        values=_whole(outputs.get(Role.CRITIC)),
        turn_rewards=part.sequences.turn_rewards,
        kl_coef=0.0 if worth.kl.use_loss else worth.kl_coef,
        kl_estimator=worth.kl.estimator,
    )


def _whole(chunks: Sequence[FloatArray] | None) -> FloatArray | None:
    if chunks is None:
        return None
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
