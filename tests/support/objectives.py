"""Objectives of the policy, from settings by their flags' names."""

from __future__ import annotations

from typing import Any

from trainer.algorithms.objectives import PolicyObjective
from trainer.config.options.algorithm import CorrectionSettings, KLSettings, LossSettings


def policy_objective(
    *, correction: CorrectionSettings | None = None, kl: KLSettings | None = None, **loss: Any
) -> PolicyObjective:
    return PolicyObjective(
        LossSettings(**loss), kl or KLSettings(), correction or CorrectionSettings()
    )
