"""Settings that a learner gets when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings, TrainSettings
from trainer.models.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How a model is trained."""

    model: ModelSettings
    optimizer: OptimizerSettings
    train: TrainSettings
    updates: int
    """Optimizer steps of the whole run."""
    loss_aggregation: str
    """token, sequence or constant"""
    longest: int
    """Limit of a completion in tokens."""
    gradient_checkpointing: bool
    freeze_visual_encoder: bool = False
    concurrent_models: int = 1
    """Models that train at the same time; on a CPU they share its threads."""
    lora: LoRASettings = field(default_factory=LoRASettings)
    """Rank 0: every parameter is trained."""
    sharding: Sharding = field(default_factory=Sharding)
    sync_port: int = 0
    """TCP port on the policy's first node, where other nodes read its weights; 0: any free port."""

    @property
    def rounds_at_load(self) -> bool:
        """Whether the weights are read in bf16, not in fp32: half the memory, also on the GPU.

        DeepSpeed rounds them in any case. Without ZeRO, and for a moving average, fp32 is needed.
        """
        zero = self.sharding.zero_stage in (1, 2)
        return zero and self.model.mixed_precision and not self.train.enable_ema
