"""The supervised stages of the trainer, for the recipe `supervised`."""

from __future__ import annotations

from trainer.config.at_hand import models_of_hub
from trainer.supervised import batches
from trainer.supervised.parse import (
    Command,
    check,
    data_warnings,
    given_texts,
    parse,
    unchecked,
    with_flags,
)

__all__ = [
    "Command",
    "batches",
    "check",
    "data_warnings",
    "given_texts",
    "models_of_hub",
    "parse",
    "unchecked",
    "with_flags",
]
