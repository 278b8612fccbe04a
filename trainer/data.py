"""The prompts of a run: an endless stream to train on, a fixed list held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from env.prompts import PromptStream, Render, load_prompts
from env.types import Prompt
from trainer.config import Config


@dataclass(frozen=True, slots=True)
class Data:
    stream: PromptStream
    held_out: list[Prompt]
    """Empty where nothing is evaluated."""


def load(config: Config) -> Data:
    """Read every prompt. Raises PromptError for data that is missing, empty or broken."""
    render = _chat_template(config.pretrain) if config.apply_chat_template else None
    assert config.prompt_data is not None
    columns = (config.input_key, config.label_key, config.input_template)
    stream = PromptStream(
        config.prompt_data, *columns, config.max_samples, seed=config.seed, render=render
    )
    held_out = (
        load_prompts(config.eval_dataset, *columns, render=render) if config.eval_dataset else []
    )
    return Data(stream, held_out)


def _chat_template(model: str) -> Render:
    from transformers import AutoTokenizer  # seconds, and only chat templates need it here

    tokenizer = AutoTokenizer.from_pretrained(model)

    def render(messages: list[dict[str, Any]]) -> str:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    return render
