"""Pushes a finished run's model to the hub. A push that fails does not fail the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contract.background import in_background
from contract.redaction import redact, secret_texts

PUSH_SECONDS = 3600.0
"""Limit of a push: the run is finished, and nobody should wait for the hub without end."""
TICK_SECONDS = 5.0
"""Time between two signs of life."""


class PushError(Exception):
    """The model is not on the hub; the message says why, without a secret."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A model repository of the hub."""

    name: str
    """OWNER/NAME"""
    private: bool = False
    """Whether it is private if it is made now."""


def push(directory: Path, to: Repository, alive: Callable[[int], bool]) -> str:
    """Upload a directory as one commit, in a repository that is made if it is missing.

    The token is HF_TOKEN, or that of `hf auth login`. Returns the address of the model. Raises
    PushError. `alive` is called every few seconds with a number that grows, and returns whether to
    go on waiting.
    """
    uploading = in_background("hub push", lambda: _upload(directory, to))
    for ticks in range(1, 1 + int(PUSH_SECONDS / TICK_SECONDS)):
        try:
            return uploading.result(TICK_SECONDS)
        except TimeoutError as error:
            if uploading.done():
                raise _why(error) from error
        except Exception as error:
            raise _why(error) from error
        if not alive(ticks):
            raise PushError("the run was asked to stop while the model was pushed")
    raise PushError(f"the model was not there after {PUSH_SECONDS:g} s")


def _upload(directory: Path, to: Repository) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the job's log is not a terminal
    api = HfApi()
    api.create_repo(to.name, private=to.private or None, exist_ok=True)
    message = "Push the model of a finished run"
    commit = api.upload_folder(
        repo_id=to.name,
        folder_path=directory,
        commit_message=message,
        ignore_patterns=["*/*"],  # a model is flat: a directory there is another thing
    )
    return str(commit.repo_url)


def _why(error: Exception) -> PushError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = redact("; ".join(lines), secret_texts(os.environ))
    return PushError(f"{type(error).__name__}: {said}" if said else type(error).__name__)
