"""The public Python API; docs/python.md describes it. Importing it imports nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.options import ConfigError
    from env.episodes.environment import Environment
    from env.episodes.types import Episode, Reply, Task, Turn
    from env.types import RewardFunction, RewardRequest, Score
    from trainer.metrics.callbacks import (
        Callback,
        CallbackError,
        CheckpointEnd,
        EvaluationEnd,
        StepEnd,
    )
    from trainer.training.api import Result, RunError, train

__all__ = [
    "Callback",
    "CallbackError",
    "CheckpointEnd",
    "ConfigError",
    "Environment",
    "Episode",
    "EvaluationEnd",
    "Reply",
    "Result",
    "RewardFunction",
    "RewardRequest",
    "RunError",
    "Score",
    "StepEnd",
    "Task",
    "Turn",
    "train",
]

_MODULES = {
    "contract.options": ("ConfigError",),
    "env.episodes.environment": ("Environment",),
    "env.episodes.types": ("Episode", "Reply", "Task", "Turn"),
    "env.types": ("RewardFunction", "RewardRequest", "Score"),
    "trainer.metrics.callbacks": (
        *("Callback", "CallbackError", "CheckpointEnd", "EvaluationEnd", "StepEnd"),
    ),
    "trainer.training.api": ("Result", "RunError", "train"),
}
"""Where each name is: it is imported when it is asked for, as launchers import this package too."""


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'trainer' has no attribute '{name}'")
