"""Changes to rewards before advantages: length penalties and running normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.config.options.algorithm import ShapingSettings
from trainer.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class LengthPenalties:
    """Penalties of long and truncated completions."""

    longest: int
    """Maximum tokens of a completion."""
    settings: ShapingSettings

    def apply(self, rewards: FloatArray, lengths: IntArray, finished: BoolArray) -> FloatArray:
        """Return [B] rewards of completions of `lengths` tokens; NaN stays NaN.

        Soft overlong punishment (DAPO, Yu et al. 2025, equation 13): the last `buffer` tokens of
        the limit cost up to `factor`. Then a truncated completion's reward is multiplied by the
        coefficient, or replaced by it if it is negative (ProRL, Liu et al. 2025, as in OpenRLHF).
        """
        shaped = rewards.astype(np.float32)
        if (buffer := self.settings.overlong_buffer_len) is not None:
            excess = np.clip(lengths - (self.longest - buffer), 0, buffer) / buffer
            shaped = shaped - (excess * self.settings.overlong_penalty_factor).astype(np.float32)
        if (coefficient := self.settings.stop_properly_penalty_coef) is not None:
            if coefficient < 0:
                truncated = np.where(np.isnan(shaped), np.nan, coefficient)
            else:
                truncated = shaped * coefficient
            shaped = np.where(finished, shaped, truncated).astype(np.float32)
        return shaped


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of all rewards of the run."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def including(self, rewards: NDArray[np.floating]) -> RunningMoments:
        """Return the moments with the known `rewards` added (Chan et al. 1979, equation 2.1)."""
        known = rewards[~np.isnan(rewards)].astype(np.float64)
        if not known.size:
            return self
        count = self.count + known.size
        shift = float(known.mean()) - self.mean
        squares = float(((known - known.mean()) ** 2).sum())
        return RunningMoments(
            count,
            self.mean + shift * known.size / count,
            self.squares + squares + shift**2 * self.count * known.size / count,
        )

    def normalise(self, rewards: FloatArray) -> FloatArray:
        """Return (r − mean) / std, with ddof 1; r − mean if std is zero."""
        deviation = math.sqrt(self.squares / max(1, self.count - 1)) or 1.0
        normal: FloatArray = ((rewards - self.mean) / deviation).astype(np.float32)
        return normal
