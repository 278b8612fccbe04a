"""What is wrong with the file of a user's loss or estimator. Torch-free; it is read and not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from contract.options import Fault, MissingFile
from env.environments import environment_file_check
from env.user_code import FUNCTION
from trainer.config.config import Config


def flag_of(flag: str, spec: str) -> str:
    """Return a flag with its value, as messages name it; "" for a value of the table."""
    found = FUNCTION.fullmatch(spec)
    return f"{flag} {Path(found['file']).absolute()}:{found['name']}" if found else ""


def faults(config: Config) -> Iterator[Fault]:
    """Yield what is wrong with FILE.py:NAME of --policy_loss_type and --advantage_estimator."""
    for flag, spec, arguments in (
        ("--policy_loss_type", config.loss.policy_loss_type, ("tokens", "bounds")),
        ("--advantage_estimator", config.advantage.estimator, ("completions",)),
    ):
        if not FUNCTION.fullmatch(spec):
            continue
        found = environment_file_check.function(spec, arguments)
        if found.missing:
            remedy = "Give a .py file that the driver's node sees"
            yield MissingFile(flag, str(found.path), found.missing, remedy)
        elif found.fault:
            yield Fault(flag, spec, found.fault, found.remedy)
