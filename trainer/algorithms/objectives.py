"""Which losses policy and critic are trained with. Torch-free: the driver makes these settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.algorithms.own_functions import OwnFunction
from trainer.config.config import Config
from trainer.config.options.algorithm import CorrectionSettings, KLSettings, LossSettings


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Which loss the policy is trained with."""

    loss: LossSettings = field(default_factory=LossSettings)
    kl: KLSettings = field(default_factory=KLSettings)
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    own: OwnFunction | None = None
    """A user's loss."""

    @classmethod
    def of(cls, config: Config) -> PolicyObjective:
        """Return the objective of a run. Raises UserFormulaError if its file cannot be read."""
        own = OwnFunction.read("--policy_loss_type", config.loss.policy_loss_type)
        return cls(config.loss, config.kl, config.correction, own)


@dataclass(frozen=True, slots=True)
class CriticObjective:
    """Which loss the critic is trained with."""

    loss: LossSettings
    value_head_prefix: str = "score"
    """Name of the value head in a model's files."""
