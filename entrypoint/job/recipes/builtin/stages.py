"""The supervised stages of the trainer, for the recipe `supervised`."""

from __future__ import annotations

from trainer.supervised import batches
from trainer.supervised.parse import (
    Command,
    check,
    given_texts,
    parse,
    unchecked,
    with_flags,
)

__all__ = ["Command", "batches", "check", "given_texts", "parse", "unchecked", "with_flags"]
