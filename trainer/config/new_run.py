"""What a run that is not written yet can know of its data and its reward. Torch-free."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from contract.durations import counted
from env.data import choices
from env.data.columns import ANSWER_COLUMNS, PROMPT_COLUMNS, known_columns, known_template
from env.data.rows import PromptError, Row, column_of, is_chat, read_rows
from env.registry import Kind, parts
from env.rewards.python_file import NAME
from env.user_code import FUNCTION
from trainer.config.architecture import positions
from trainer.config.config import Config
from trainer.config.data_sets import HUB_NAME
from trainer.config.label_check import unseen_options
from trainer.config.model_files import known_shape
from trainer.config.parse import DESCRIPTION, PROG, read
from trainer.config.read_flags import aliases
from trainer.config.schema import flags_of
from trainer.config.validate import may_be_on_hub

ROWS = 4
"""Rows of the data that are looked at."""
MANY = 256
"""Rows whose prompts are measured."""
CHARACTERS = 4
"""Of a token, about."""
WRONG = ("distractor", "incorrect", "wrong")
"""Begin names of columns of wrong answers, in small letters."""

__all__ = [
    "ANSWER_COLUMNS",
    "PROMPT_COLUMNS",
    "Choices",
    "choices_of",
    "defined_fault",
    "first_rows",
    "flags_in",
    "has_choices",
    "is_chat",
    "is_hub_name",
    "is_share_gpt",
    "known_columns",
    "known_template",
    "long_prompts",
    "may_be_on_hub",
    "own_file",
    "room",
    "unseen_passage",
    "unseen_wrong_answers",
    "value_at",
]


def room(model: str) -> int | None:
    """Return the tokens that a model reads; None if its files, or its cache, do not say."""
    found = positions(known_shape(model))
    return found if isinstance(found, int) and found > 1 else None


def first_rows(data: Path) -> Sequence[Mapping[str, Any]]:
    """Return the first rows with all their columns. Raises ValueError and ImportError."""
    rows = [row.fields for row in islice(read_rows(data, (), whole=True), ROWS)]
    if not rows:
        raise ValueError(f"{data}: it has no rows")
    return rows


@dataclass(frozen=True, slots=True)
class Choices:
    """Multiple choice: the rows that are written with their options in the prompt."""

    said: str
    """What is told of them."""
    text: str = ""
    """JSON Lines; "" if they cannot be written."""
    input_key: str = choices.PROMPT
    label_key: str = choices.ANSWER

    @property
    def first_rows(self) -> Sequence[Mapping[str, Any]]:
        return [json.loads(line) for line in self.text.split("\n", ROWS)[:ROWS] if line]


def has_choices(rows: Sequence[Mapping[str, Any]], input_key: str, label_key: str) -> bool:
    """Return whether rows have options that their prompts lack, and can get."""
    is_unseen = bool(choices.unseen(rows, input_key, label_key))
    return is_unseen and choices.converted(rows, input_key, label_key) is not None


def choices_of(data: Path, input_key: str, label_key: str, *, written: bool) -> Choices | None:
    """Return the rows with their options in the prompt; None if they have none, or show them.

    `written`: whether the rows may be others than the data's. Raises ValueError.
    """
    first = first_rows(data)
    column = choices.unseen(first, input_key, label_key)
    if not column:
        return None
    rows = (row.fields for row in read_rows(data, (), whole=True))
    found = choices.converted(rows, input_key, label_key) if written else None
    if found is None:
        return Choices(unseen_options(column))
    text = "".join(json.dumps(row) + "\n" for row in found.rows)
    said = f"the options are in the column `{column}`, which no prompt shows"
    if about := choices.passage(first[0], input_key):
        said += f"; each prompt begins with the column `{about[0]}`"
    said += "" if found.first is None else f"; the answer {found.first} names the first one"
    if found.left_out:
        rest = counted(found.left_out, "row")
        said += f"; {rest} without options, or without a right one, left out"
    return Choices(said, text)


def unseen_passage(rows: Sequence[Mapping[str, Any]], input_key: str) -> str:
    """Return what is said of a column that questions are about, and prompts lack; "" for none."""
    about = choices.passage(rows[0], input_key) if rows else None
    if about is None:
        return ""
    return (
        f"the column `{about[0]}` is not in the prompt: the model does not see it. If questions "
        "are about it, write it into the column of the prompts"
    )


def unseen_wrong_answers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what is said of columns of wrong answers, as SciQ's; "" for none."""
    names = [name for name in (rows[0] if rows else ()) if name.lower().startswith(WRONG)]
    if not names:
        return ""
    return (
        f"the wrong answers in {', '.join(map(repr, names))} are left out: the model does not see "
        "them. For multiple choice, write all answers into a column `choices`"
    )


def long_prompts(data: Path, input_key: str, tokens: int) -> str:
    """Return what is said of prompts that seem to have more tokens; "" for none."""
    try:
        rows = [row.fields for row in islice(read_rows(data, (), whole=True), MANY)]
    except (ValueError, OSError):  # the plan names the row
        return ""
    sizes = [len(_text_of(value_at(row, input_key))) for row in rows]
    if not (count := sum(size > CHARACTERS * tokens for size in sizes)):
        return ""
    return (
        f"{count} of the first {counted(len(rows), 'prompt')} may be longer than {tokens} tokens, "
        f"at {CHARACTERS} characters a token, and lose their beginning. The longest has "
        f"{max(sizes)} characters: raise prompt_max_len in run.yaml"
    )


def _text_of(prompt: object) -> str:
    if not is_chat(prompt):
        return prompt if isinstance(prompt, str) else ""
    assert isinstance(prompt, list)
    return "".join(str(message.get("content") or "") for message in prompt)


def is_share_gpt(value: object) -> bool:
    """Return whether a value is a list of turns that say from whom they are, as ShareGPT's."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and {"from", "value"} <= set(one) for one in value)
    )


def value_at(row: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    """Return what a row has under a column's name or a dotted path; `otherwise` without one."""
    if column_of(key, row) is None:
        return otherwise
    try:
        return Row("", row).value(key)
    except PromptError:
        return otherwise


def is_hub_name(name: str) -> bool:
    """Return whether a name can be that of a data set on the hub."""
    return HUB_NAME.fullmatch(name) is not None


def own_file(reward: str) -> tuple[str, str] | None:
    """Return file and function of a reward that is a user's code; None for any other.

    Raises ValueError for what is no reward.
    """
    if Kind.CODE not in parts(reward).values():
        return None
    named = FUNCTION.fullmatch(reward)
    return (named["file"], named["name"]) if named else (reward, NAME)


def defined_fault(file: Path, name: str) -> str:
    """Return why a file defines no function of a name, without running it; "" if it does."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{file}: not readable as Python: {error}"
    names = list(_top_names(tree))
    if name in names or "*" in names:
        return ""
    defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    has = f"it defines {', '.join(defined)}" if defined else "it defines no function"
    return f"{file} defines no function {name}; {has}: give FILE.py:NAME"


def _top_names(tree: ast.Module) -> Sequence[str]:
    """Return the names that a module's statements may bind."""
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.append(node.name)
            case ast.Name(ctx=ast.Store()):
                names.append(node.id)
            case ast.alias():
                names.append(node.asname or node.name)
    return names


def flags_in(file: Path, names: Collection[str]) -> Mapping[str, str]:
    """Return flags of a file as it writes them, else their defaults; "" for none.

    Raises ValueError if the file cannot be read.
    """
    reading = read(Config, ["--config", str(file)], PROG, DESCRIPTION)
    if reading.unread:
        raise ValueError("\n".join(map(str, reading.faults)))
    known, declared = aliases(Config), flags_of(Config)
    given = {known[spelling]: text for spelling, text in reading.texts.items()}
    return {
        name: given.get((name,), str(declared[name].value_in(reading.config) or ""))
        for name in names
    }
