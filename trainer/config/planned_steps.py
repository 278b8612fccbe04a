"""How many steps a run has, as far as its data on this disk tell. Torch-free."""

from __future__ import annotations

import time
from itertools import islice

from contract.durations import counted
from contract.files.os_errors import why_absent
from env.data.rows import PromptError, read_rows
from trainer.config.config import Config

COUNT_SECONDS = 2.0
"""Longest time in which rows are counted."""


def of(config: Config) -> tuple[int | None, str]:
    """Return the steps of the run and what they come from; None and why if that is not known."""
    most, episodes = config.train.max_steps, config.train.num_episodes
    if most is not None and episodes is None:
        return most, "--max_steps"
    limit = f", at most {most}" if most is not None else ""
    if isinstance(rows := _rows(config), str):
        return None, f"{rows}{limit}"
    epochs = f"{counted(episodes or 1, 'epoch')} of {counted(rows, 'prompt')}"
    why = f"{epochs}, {config.rollout_batch_size} a step{limit}"
    if config.prompt_overlong == "drop":
        why += "; fewer if long prompts are dropped"
    return config.total_steps(rows), why


def _rows(config: Config) -> int | str:
    """Return the number of prompts of an epoch, or why it is not known."""
    given = config.prompt_data
    if given is None or any(not path.is_absolute() or why_absent(path) for path in given.paths):
        return "the data are not on this machine"
    if config.prompt_data_probs and len(given.names) > 1:
        return "the data are mixed by --prompt_data_probs"
    ends, found = time.monotonic() + COUNT_SECONDS, 0
    for path in given.paths:
        rows = read_rows(path, (config.input_key,), split=config.prompt_split)
        try:
            for _ in islice(rows, config.max_samples):
                found += 1
                if found % 1000 == 0 and time.monotonic() > ends:
                    return f"the data have more than {found} prompts"
        except (PromptError, OSError, ImportError):
            return "the data cannot be read here"
    return found
