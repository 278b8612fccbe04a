"""Whether a new run applies the model's chat template, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHAT_NAME = re.compile(
    r"instruct|chat|-it\b|qwen3|r1-distill|deepseek-r1|smollm3|gpt-oss|phi-4|thinking",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Chat:
    """What model and data say of chats."""

    model: str
    directory: Path | None
    """Of the model; None if it is not here."""
    prompt: Any
    """Of the first row; None if it was not seen."""

    @property
    def has_messages(self) -> bool:
        return isinstance(self.prompt, list)

    @property
    def has_template(self) -> bool:
        """Return whether the model has a chat template; of one that is not here, by its name."""
        if self.directory is None:
            return bool(CHAT_NAME.search(self.model))
        with suppress(OSError, ValueError):
            if "chat_template" in json.loads(
                (self.directory / "tokenizer_config.json").read_text()
            ):
                return True
        files = (self.directory / f"chat_template.{end}" for end in ("jinja", "json"))
        return any(file.is_file() for file in files)

    @property
    def is_applied(self) -> bool:
        return self.has_template or self.has_messages

    @property
    def why(self) -> str:
        by = "" if self.directory else " (by its name)"
        if self.has_messages:
            return "the prompts are messages, which the template renders"
        if self.has_template:
            return f"the model has one{by}; input_template is not needed"
        return f"the model has none{by}; input_template may add words"

    def notes(self) -> Iterator[str]:
        if self.has_messages and not self.has_template:
            by = "files" if self.directory else "name"
            yield (
                f"--model {self.model}: the prompts are messages, which need a chat template. By "
                f"its {by}, this model has none: give one that has been trained for chats"
            )
