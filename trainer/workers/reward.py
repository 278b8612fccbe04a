"""The reward models of a run, in a Ray worker."""

from __future__ import annotations

from collections.abc import Sequence

from env.types import RewardRequest, Score
from trainer.algorithms import batching
from trainer.config.layout import Role
from trainer.models.gpu_memory import Peaks
from trainer.models.loading import prepare_process
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings
from trainer.types import Metrics


class RewardActor:
    """Holds all reward models. Several such processes share the samples."""

    def __init__(self, settings: RewardSettings) -> None:
        device = prepare_process(
            deterministic=settings.deterministic, trust_remote_code=settings.trust_remote_code
        )
        self._peaks = Peaks(shares_gpu=settings.shares_gpu)
        self._models = [ScalarRewardModel(name, settings, device) for name in settings.models]

    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        with self._peaks.phase("forward"):
            by_model = [model.score(requests) for model in self._models]
        return [list(scores) for scores in zip(*by_model, strict=True)]

    def peaks(self) -> Metrics:
        return batching.peak_metrics(Role.REWARD, self._peaks.taken())
