"""How many nodes a translated command needs: the head waits for the others."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import layout
from trainer.config.config import Config
from trainer.config.parse import DESCRIPTION, PROG, read
from trainer.config.read_flags import aliases
from trainer.config.translate.rows import Command

THEIRS = ("trainer.nnodes", "num_machines", "nnodes", "num_nodes")
"""Flags of verl, of accelerate and of torchrun that say the number of nodes."""
FLAG = "actor_num_nodes"


def workers(words: Sequence[str]) -> int | str:
    """Return how many workers the head waits for, or a sentence if the GPUs of a node decide it.

    `words`: the translated command.
    """
    reading = read(Config, list(words), PROG, DESCRIPTION)
    config = layout.settled(reading.config, reading.given)
    if config.colocate_all_models:
        return config.actor_num_nodes - 1
    return (
        f"the roles need {layout.of(config).slots} GPUs: EXPECTED_WORKERS is the number of their "
        "nodes without the head, 0 for one node"
    )


def is_open(command: Command) -> bool:
    """Return whether the number of nodes is given, and is no number: a variable of the shell."""
    given = {**command.launcher, **command.given}
    known = aliases(Config)
    return any(
        not text.isdecimal()
        for name, texts in given.items()
        if name in THEIRS or known.get(name) == (FLAG,)
        for text in texts
    )
