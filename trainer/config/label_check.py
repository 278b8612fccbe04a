"""What the first prompts of the data show before anything is started. Torch-free."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from contract.durations import counted
from contract.files.os_errors import with_errno
from contract.options import ended
from env.data import choices
from env.data.rows import TRAIN, PromptError, read_rows
from env.types import Prompt, RewardFunction, RewardRequest
from env.user_code import Raised, same_fault

if TYPE_CHECKING:
    from trainer.config.config import Config

SCORED = 4
"""Prompts that are scored."""
LABELS_SECONDS = 10.0
"""Longest time for all labels: formulas take milliseconds each."""
AT_ONCE = 64
"""Labels of one call."""


class Unscored(str):
    """Why no row can be scored, in a sentence."""

    __slots__ = ("raised",)

    raised: Raised | None
    """The exception that a user's function raised for each row."""

    def __new__(cls, sentence: str, raised: Raised | None) -> Self:
        fault = super().__new__(cls, sentence)
        fault.raised = raised
        return fault


def unscored(
    config: Config, reward: RewardFunction, data: object, prompts: Sequence[Prompt]
) -> Unscored | None:
    """Return a sentence if none of the first rows can be scored; None if one can.

    `data`: names the prompts. The completion is the label itself, as far as anyone knows the
    likeliest to be understood.
    """
    first = prompts[:SCORED]
    scores = reward([_with_its_label(prompt) for prompt in first])
    if any(score.ok for score in scores):
        return None
    raised = None
    if scores[0].raised:  # by one call for all: one row may be why
        alone = [score for prompt in first for score in reward([_with_its_label(prompt)])]
        raised = same_fault([score.raised for score in alone])
    return Unscored(
        f"{config.reward_flag} can score none of the first {counted(len(first), 'row')} of "
        f"{data}: {scores[0].error}",
        raised,
    )


def unreadable(
    config: Config, reward: RewardFunction, data: object, prompts: Sequence[Prompt]
) -> str | None:
    """Return a sentence that names the rows whose labels cannot be read; None if all can.

    `data`: names the prompts. Each label is looked at once, as long as there is time.
    """
    deadline = time.monotonic() + LABELS_SECONDS
    rows: dict[str | None, Prompt] = {}
    for prompt in prompts:
        rows.setdefault(prompt.label, prompt)
    each, errors = list(rows.values()), dict[str | None, str]()
    for begin in range(0, len(each), AT_ONCE):
        some = each[begin : begin + AT_ONCE]
        scores = reward([_with_its_label(prompt) for prompt in some])
        errors |= {p.label: s.error for p, s in zip(some, scores, strict=True) if not s.ok}
        if time.monotonic() > deadline:
            break
    if not errors:
        return None
    count = sum(prompt.label in errors for prompt in prompts)
    label, error = next(iter(errors.items()))
    return (
        f"{config.reward_flag} cannot score {count} of {len(prompts)} rows of {data}; the first is "
        f"row {rows[label].index + 1}: {error}"
    )


def _with_its_label(prompt: Prompt) -> RewardRequest:
    text = prompt.text + (prompt.label or "")
    return RewardRequest(text, prompt.text, prompt.label, prompt.messages, prompt.columns)


def blamed_on_labels(config: Config, fault: str, label: str | None) -> str:
    """What `unscored` says, with what would be right. `label`: the first."""
    key = config.label_key
    return f"--label_key{f' {key}' if key else ''}: {fault}. {_remedy(key, label)}"


def parts(label: str | None) -> Sequence[str]:
    """The names in a label that is a JSON object: rewards read one of them, hardly the whole."""
    try:
        inner = json.loads(label or "")
    except ValueError:
        return ()
    return tuple(inner) if isinstance(inner, dict) else ()


def _remedy(key: str | None, label: str | None) -> str:
    if key is None:
        return "Give the column of the reference answer, if the reward needs one"
    if names := parts(label):
        name = "ground_truth" if "ground_truth" in names else names[0]
        return f"The label has parts: give one of them, as --label_key {key}.{name}"
    return "Give the column whose labels the reward reads, or another reward"


def with_answers(flag: str, data: object, prompts: Sequence[Prompt]) -> str | None:
    """Return a sentence if chats end with the assistant's answer; None if none does.

    `flag` and `data` name the prompts.
    """
    chats = [prompt.messages for prompt in prompts if prompt.messages]
    count = sum(chat[-1]["role"] == "assistant" for chat in chats)
    if not count:
        return None
    return (
        f"{flag} {data}: the answer is in the prompt of {count} of {len(prompts)} rows read: their "
        "last message is the assistant's. Leave it out, unless the policy is to continue it"
    )


def without_options(config: Config, flag: str, path: Path) -> Iterator[str]:
    """Yield a sentence if prompts lack the options that their rows have.

    Environments show columns as they like. `flag` names the data set.
    """
    if not config.has_environment:
        split = config.prompt_split if flag == "--prompt_data" else config.eval_split
        keys = config.input_key, config.label_key
        yield from hidden_options(f"{flag} {path}", path, *keys, split)


def hidden_options(
    named: str, path: Path, input_key: str, label_key: str | None, split: str = TRAIN
) -> Iterator[str]:
    """Yield a sentence if prompts lack the options that their rows have. `named`: begins it."""
    try:
        some = islice(read_rows(path, (input_key,), whole=True, split=split), SCORED)
        rows = [row.fields for row in some]
    except PromptError:  # who reads all rows says it
        return
    if column := choices.unseen(rows, input_key, label_key):
        yield f"{named}: {unseen_options(column)}"


def unseen_options(column: str) -> str:
    """What is said of a column of options that prompts do not show."""
    return (
        f"the column `{column}` is not in the prompt: the model does not see the options. Write "
        "them into the column of the prompts (docs/data-and-rewards.md, Multiple choice)"
    )


def without_tokens(config: Config, data: object, prompts: Sequence[Prompt]) -> str | None:
    """Return a sentence that names a prompt without tokens; None if all have tokens.

    `data`: names the prompts. Without a file of the tokenizers library, the engines check instead.
    Raises OSError if the disk fails.
    """
    file = Path(config.pretrain) / "tokenizer.json"
    if config.renders_chat or not file.is_file():
        return None  # a template's own words are tokens
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:  # the trainer lacks more then, and says so itself
        return None
    try:
        with with_errno(file):
            tokenizer = Tokenizer.from_file(str(file))
    except OSError:
        raise
    except Exception as error:  # the library raises no other kind
        return f"{file} is damaged: {ended(str(error))} Download or export the tokeniser again"
    seen: dict[str, bool] = {}

    def alone(character: str) -> bool:
        """Whether it has a token by itself: few are asked, and most texts begin with one."""
        if character not in seen:
            seen[character] = bool(tokenizer.encode(character, add_special_tokens=True).ids)
        return seen[character]

    for prompt in prompts:
        if not any(map(alone, prompt.text)) and not tokenizer.encode(prompt.text).ids:
            return (
                f"{data}: the text of prompt {prompt.index + 1}, {prompt.text!r}, has no tokens "
                f"with the tokeniser of {config.pretrain}. Leave the row out, or correct it"
            )
    return None
