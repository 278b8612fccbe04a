"""Multiple choice in a new run: `init` writes the rows anew, with their options in the prompt."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from entrypoint.commands import init_answers
from entrypoint.commands.init_answers import OWN, AnswerError, Data, Place

REWARD = "choice"
"""It compares letters."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What is written and told for data whose options no prompt shows."""

    note: str
    name: str
    """The file of rows, in the run's directory."""
    text: str
    """What it holds; "" if it cannot be written."""
    data: Data
    """What the run reads."""


def usual_reward(options: argparse.Namespace) -> str:
    """Return the default of --reward: letters are compared if options get into the prompts."""
    from trainer.config import new_run

    try:
        data = init_answers.data(options.data, options.dir)
        prompts = data.input_key(options.input_key)
        answers = data.label_key(options.label_key, prompts, needed=True)
    except AnswerError:  # it is said, or asked, later
        return OWN
    return REWARD if new_run.has_choices(data.rows, prompts, answers) else OWN


def settle(options: argparse.Namespace, data: Data) -> Choices | None:
    """Return the rows to write, and give the options their columns; None for other data.

    A reward that is the user's, or of another kind, reads the data as they are. Raises AnswerError.
    """
    from trainer.config import new_run

    path, keys = data.place.path, (options.input_key, options.label_key)
    if path is None or not data.rows or not options.label_key:
        return None
    try:
        found = new_run.choices_of(path, *keys, written=options.reward in (OWN, REWARD))
    except (ValueError, OSError) as error:
        raise AnswerError(f"--data {options.data}: {error}") from error
    if found is None:
        return None
    note = f"--data {options.data}: {found.said}"
    if not found.text:
        return Choices(note, "", "", data)
    options.input_key, options.label_key = found.input_key, found.label_key
    name = f"{Path(data.place.name).stem or 'data'}-choices.jsonl"
    note = f"{note}. {name} has each question with its options, and the letter of the right one"
    return Choices(note, name, found.text, Data(Place(name, options.dir), found.first_rows))
