"""The limits of an attention's reach, made tiny for a trial.

A trial of a few tokens says nothing about a window of thousands. So the limits that a model's
configuration names become a few tokens, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

REACH = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "attention_chunk_size",
    "floor_scale",
)
"""transformers' names, in configurations and in modules: windows, chunks, and the positions at
which Llama 4's attention changes its temperature."""
TINY = 2
"""Tokens."""


@contextmanager
def tiny_limits(model: nn.Module, reached: int | None = None) -> Iterator[None]:
    """Make each limit of `model` TINY in the block, or only those below `reached` tokens."""
    config: Any = model.config
    with ExitStack() as held:
        for name in REACH:
            limit = getattr(config.get_text_config(), name, None)
            if not isinstance(limit, int) or limit <= TINY or (reached and limit >= reached):
                continue
            for owner in (config.get_text_config(), *model.modules()):
                own = vars(owner).get(name)
                if isinstance(own, int):  # some modules count the token itself, too
                    held.callback(setattr, owner, name, own)
                    setattr(owner, name, max(1, TINY + own - limit))
        yield
