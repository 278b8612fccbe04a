"""Prompts: read once, then dealt out in a new order every epoch, from a cursor that resumes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from env.rows import IMAGES, PromptError, Row, read_rows
from env.types import Prompt

__all__ = ["PromptError", "PromptStream", "Render", "load_prompts"]

Render = Callable[[list[dict[str, Any]]], str]
"""A chat template: messages with `role` and `content` to the text that the policy continues."""


def load_prompts(
    path: str | Path,
    input_key: str = "input",
    label_key: str | None = None,
    input_template: str | None = None,
    max_samples: int | None = None,
    render: Render | None = None,
) -> list[Prompt]:
    """The first `max_samples` prompts of `path`, in file order.

    `input_template` has one `{}` for the text. With `render`, a text becomes a user message and
    lists of messages are read too. Raises PromptError for data that is missing, empty or broken.
    """
    path = Path(path)
    _check_template(input_template)
    if max_samples is not None and max_samples < 1:
        raise PromptError(f"max_samples is {max_samples}; at least 1 is wanted")
    keys = [input_key] if label_key is None else [input_key, label_key]
    prompts = [
        _prompt(index, row, keys, input_template, render)
        for index, row in enumerate(islice(read_rows(path, keys), max_samples))
    ]
    if not prompts:
        raise PromptError(f"{path}: holds no prompts")
    return prompts


class PromptStream:
    """Endless batches of prompts, each epoch in an order of its own.

    The order depends on `seed` and the epoch only, so that the cursor is two numbers and a resumed
    stream deals exactly what an uninterrupted one would have.
    """

    _epoch: int
    _position: int
    _order: list[int]

    def __init__(
        self,
        path: str | Path,
        input_key: str = "input",
        label_key: str | None = None,
        input_template: str | None = None,
        max_samples: int | None = None,
        seed: int = 0,
        render: Render | None = None,
    ) -> None:
        self._path = path
        self._prompts = load_prompts(
            path, input_key, label_key, input_template, max_samples, render
        )
        self._fingerprint = fingerprint(self._prompts)
        self._seed = seed
        self._seek(epoch=0, position=0)

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._prompts)

    def keep_only(self, wanted: Callable[[Prompt], bool]) -> int:
        """Leave out all other prompts, and begin anew. Returns how many are left out.

        Raises PromptError where none stays.
        """
        kept = [prompt for prompt in self._prompts if wanted(prompt)]
        left_out = len(self) - len(kept)
        if not kept:
            raise PromptError(f"{self._path}: none of the {left_out} prompts can be used")
        self._prompts, self._fingerprint = kept, fingerprint(kept)
        self._seek(epoch=0, position=0)
        return left_out

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All of them, in file order."""
        return self._prompts

    @property
    def epoch(self) -> int:
        """Whole epochs dealt so far."""
        return self._epoch

    def next_batch(self, size: int) -> list[Prompt]:
        """The next `size` prompts; a batch may begin in one epoch and end in the next."""
        if size < 1:
            raise ValueError(f"a batch of {size} prompts; at least 1 is wanted")
        batch: list[Prompt] = []
        while len(batch) < size:
            end = min(self._position + size - len(batch), len(self))
            batch += (self._prompts[row] for row in self._order[self._position : end])
            if end == len(self):
                self._seek(self._epoch + 1, 0)
            else:
                self._position = end
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as JSON; belongs to these prompts and this seed."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "prompts": len(self),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. Raises PromptError where it belongs to other prompts or seed."""
        for name, mine in self.state_dict().items():
            if name not in state:
                raise PromptError(f"the saved cursor has no '{name}'")
            if name not in {"epoch", "position"} and state[name] != mine:
                raise PromptError(
                    f"the saved cursor belongs to other prompts than {self._path}: "
                    f"its {name} is {state[name]}, here it is {mine}"
                )
        self._seek(state["epoch"], state["position"])

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = list(range(len(self)))
        # A string seeds by SHA-512: neighbouring seeds and epochs share nothing.
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over texts and labels: the same for one data set in any of the formats."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.text, prompt.label]).encode())
    return digest.hexdigest()


def _prompt(
    index: int, row: Row, keys: Sequence[str], template: str | None, render: Render | None
) -> Prompt:
    _refuse_images(row, keys)
    label = _label(row, keys[1]) if len(keys) > 1 else None
    read = _read(row, keys[0], template)
    if isinstance(read, str) and render is None:
        return Prompt(index, read, label)
    if render is None:
        raise PromptError(f"{row.where}: '{keys[0]}' is a chat; it needs a chat template")
    messages = [{"role": "user", "content": read}] if isinstance(read, str) else read
    return Prompt(index, render(messages), label, messages)


def _read(row: Row, key: str, template: str | None) -> str | list[dict[str, Any]]:
    """The text, or the messages, that the row holds."""
    value = row.value(key)
    if isinstance(value, str) and _is_chat_as_text(value):
        raise PromptError(
            f"{row.where}: '{key}' holds messages as JSON text, where a text or messages are "
            "wanted: save the column as a list of messages"
        )
    if isinstance(value, str) and value:
        return template.format(value) if template else value
    if not _is_chat(value):
        raise PromptError(
            f"{row.where}: '{key}' holds {_shown(value)}, where a text or messages are wanted"
        )
    messages: list[dict[str, Any]] = value
    for kind in _kinds(messages):
        if kind != "text":
            raise PromptError(
                f"{row.where}: a message of '{key}' has a part of type '{kind}', and only text is "
                "trained. Leave the row out, or keep the text of it"
            )
    return messages


def _refuse_images(row: Row, keys: Sequence[str]) -> None:
    for column in IMAGES:
        if column not in keys and row.fields.get(column):
            raise PromptError(
                f"{row.where}: has something in the column '{column}', and only text is trained. "
                "Leave the row out, or drop the column where the text does without it"
            )


def _kinds(messages: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """What the parts of messages are, where those have parts."""
    for turn in messages:
        if isinstance(turn["content"], list):
            yield from (p.get("type") if isinstance(p, dict) else p for p in turn["content"])


def _is_chat_as_text(text: str) -> bool:
    if not text.lstrip().startswith("["):
        return False
    try:
        return _is_chat(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
    )


def _label(row: Row, key: str) -> str:
    value = row.value(key)
    if value is None:
        raise PromptError(f"{row.where}: '{key}' is null, where a label is wanted")
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:  # a decimal, a date, bytes: each has several spellings
        raise PromptError(
            f"{row.where}: '{key}' holds {_shown(value)} of type {type(value).__name__}, where a "
            "text, a number or what else JSON has is wanted: save the column as text"
        ) from None


def _check_template(template: str | None) -> None:
    if template is None:
        return
    try:
        holds_text = "text" in template.format("text")
    except (IndexError, KeyError, ValueError):
        holds_text = False
    if not holds_text or template.format("") == template:
        raise PromptError(f"input_template {template!r} wants one {{}} for the prompt's text")


def _shown(value: Any) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
