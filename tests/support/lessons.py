"""What the driver knows of a step, made without models."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.support.local_workers import Done
from tests.support.ragged import part_of
from trainer.algorithms import estimates
from trainer.algorithms.estimates import Worth
from trainer.cluster.worker_group import Kept
from trainer.config.config import Config
from trainer.types import FloatArray, Sequences
from trainer.workers.experience import Division, Lesson


def lesson_of(sequences: Sequences, outputs: Mapping[str, FloatArray], config: Config) -> Lesson:
    """Return the lesson of one rank whose models' outputs [N] are these, by role."""
    part = part_of(sequences)
    worth = Worth(
        scores=np.zeros(len(sequences)),
        settings=config.advantage,
        kl=config.kl,
        kl_coef=config.kl.init_coef,
    )
    told = estimates.statistics(part, {role: [of] for role, of in outputs.items()}, worth)
    kept = {role: Kept(Done([None]), [[of]]) for role, of in outputs.items()}
    return Lesson(Division(part.plan, {1: [part]}), kept, worth, told)
