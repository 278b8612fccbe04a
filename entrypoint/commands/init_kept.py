"""A run that `init` has written already: its files are kept, and a platform's are added."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from entrypoint.commands import init_answers
from entrypoint.commands.init_answers import OWN, AnswerError, Place
from entrypoint.commands.init_platforms import NO_PLATFORM, PLATFORMS

RUN_FILE = "run.yaml"
OF_THE_RUN = (RUN_FILE, "reward.py", "test_reward.py")
OWN_REWARD = "reward.py:reward"
FLAGS = {
    "model": "pretrain",
    "data": "prompt_data",
    "reward": "remote_rm_url",
    "input_key": "input_key",
    "label_key": "label_key",
}
"""Option of `init` → the flag in run.yaml that says it."""
OPTIONAL = ("input_key", "label_key")


def files(directory: Path) -> Iterator[Path]:
    """Yield the files of the run that are there."""
    yield from (path for name in OF_THE_RUN if (path := directory / name).exists())


def settle(options: argparse.Namespace) -> None:
    """Give the options the values that run.yaml has.

    Raises AnswerError for an option that says another, and for a file that lacks one.
    """
    file = options.dir / RUN_FILE
    for name, value in _values(file).items():
        flag = f"--{name.replace('_', '-')}"
        given = getattr(options, name)
        if given is not None and _spelled(name, given, options.dir) != value:
            raise AnswerError(
                f"{flag} {given}: {file} is kept, and says {value or 'none'}. Change it there, or "
                f"leave {flag} out"
            )
        setattr(options, name, value if name in OPTIONAL else _from_run(value, options))


def _values(file: Path) -> dict[str, str]:
    """Return the options' values in run.yaml. Raises AnswerError."""
    values = init_answers.flags_in(file, FLAGS.values())
    for name, flag in FLAGS.items():
        if not values[flag] and name not in OPTIONAL:
            raise AnswerError(
                f"{file}: it has no {flag}, which the platform's files need. Write it there"
            )
    return {name: values[flag] for name, flag in FLAGS.items()}


def _from_run(path: str, options: argparse.Namespace) -> str:
    """Return a whole path of this machine as seen from the run's directory: it is copied.

    What lies on the nodes' storage has the same path on each node.
    """
    platform = PLATFORMS.get(options.platform, PLATFORMS[NO_PLATFORM])
    file, python, name = path.partition(".py")
    whole = Path(file + python)
    on_nodes = {Path(options.shared or platform.storage), Path(platform.storage)}
    if not whole.is_absolute() or not whole.exists() or on_nodes & {whole, *whole.parents}:
        return path
    return os.path.relpath(whole, options.dir.absolute()) + name


def _spelled(name: str, given: str, directory: Path) -> str:
    """Return how run.yaml spells an option's value. Raises AnswerError."""
    if name == "reward":
        if given == OWN:
            return OWN_REWARD
        place = init_answers.reward_file(given, directory)
        return place.spelled + given.removeprefix(place.name) if place else given
    return Place(given, directory).spelled if name in ("model", "data") else given
