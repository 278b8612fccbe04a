"""TrainSettings from the changes that a test makes to settings of a learner."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainer.config.options.training import TrainSettings


def take_train_settings(values: dict[str, Any]) -> TrainSettings:
    """Take the fields of TrainSettings out of `values`."""
    names = [field.name for field in fields(TrainSettings) if field.name in values]
    return TrainSettings(**{name: values.pop(name) for name in names})
