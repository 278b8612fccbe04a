"""Takes the W&B key off the job's command line, which `ps` shows to everyone."""

from __future__ import annotations

from collections.abc import Sequence

from contract.options import FALSE, TRUE
from entrypoint.config.variables import Secret

FLAGS = ("--use_wandb", "--logger.wandb.key")
SWITCHES = frozenset({"", *TRUE, *FALSE})
ON = "yes"


def flag_in(job: Sequence[str]) -> str:
    """Return the flag by which the arguments give the key."""
    given = (argument.partition("=")[0] for argument in job)
    return next((flag for flag in given if flag in FLAGS), FLAGS[0])


def is_meant(job: Sequence[str]) -> bool:
    """Return whether a job's words speak of W&B, as `--use_wandb` and `--report_to wandb` do."""
    return any("wandb" in word.lower() for word in job)


def taken_from(job: Sequence[str]) -> tuple[tuple[str, ...], Secret | None]:
    """Return the arguments without the key, logging still asked for; and the key."""
    arguments, key = list(job), None
    for place, argument in enumerate(job):
        flag, equals, value = argument.partition("=")
        if flag not in FLAGS:
            continue
        if not equals:
            value = job[place + 1] if place + 1 < len(job) else ""
        if value.lower() in SWITCHES or value.startswith("-"):
            continue
        key = Secret(value)
        if equals:
            arguments[place] = f"{flag}={ON}"
        else:
            arguments[place + 1] = ON
    return tuple(arguments), key
