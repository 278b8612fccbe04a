"""The prompts of a run: an endless stream to train on, a fixed list held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from env.data.prompts import (
    PromptError,
    PromptStream,
    ReadSettings,
    Render,
    images_of,
    load_prompts,
    mixed,
)
from env.episodes.codec import TextCodec
from env.types import Prompt
from trainer.config import label_check, model_files
from trainer.config.config import Config
from trainer.config.data_sets import DataSets
from trainer.models import pretrained


@dataclass(frozen=True, slots=True)
class Data:
    stream: PromptStream
    held_out: list[Prompt]
    """Empty if the run evaluates nothing."""


def load(config: Config) -> Data:
    """Read all prompts. Raises PromptError for data that is missing, empty or broken."""
    render = _chat_template(config.pretrain) if config.renders_chat else None
    assert config.prompt_data is not None
    how = ReadSettings(
        input_key=config.input_key,
        label_key=config.label_key,
        input_template=config.input_template,
        max_samples=config.max_samples,
        render=render,
        columns=config.wants_columns,
        images=config.images,
        split=config.prompt_split,
    )
    shares = config.prompt_data_probs.numbers if config.prompt_data_probs else ()
    stream = PromptStream(config.prompt_data.paths, how, seed=config.train.seed, shares=shares)
    _refuse_tokenless(config, config.prompt_data, stream.prompts)
    _refuse_agent(config, stream.prompts)
    if config.prompt_overlong == "drop":
        _drop_overlong(stream, config)
    held_out: list[Prompt] = []
    if config.eval_dataset:
        held = replace(how, max_samples=None, split=config.eval_split)
        held_out = mixed([load_prompts(path, held) for path in config.eval_dataset.paths])
        _refuse_tokenless(config, config.eval_dataset, held_out)
    return Data(stream, held_out)


def _refuse_tokenless(config: Config, data: DataSets, prompts: Sequence[Prompt]) -> None:
    if fault := label_check.without_tokens(config, data, prompts):
        raise PromptError(fault)


def _refuse_agent(config: Config, prompts: Sequence[Prompt]) -> None:
    """Raise PromptError for images that an agent would not show to the policy."""
    if not config.episodes.agent_func_path:
        return
    for prompt in prompts:
        if next(images_of(prompt), None) is not None:
            raise PromptError(
                f"{config.prompt_data}: prompt {prompt.index + 1} has an image, and "
                "--agent_func_path gives its agent texts only. Give --environment, or a data set "
                "of texts"
            )


def _drop_overlong(stream: PromptStream, config: Config) -> None:
    codec, limit = TextCodec(load_tokenizer(config.pretrain)), config.prompt_max_len
    tokens = codec.encode if config.renders_chat else codec.begin

    def fits(prompt: Prompt) -> bool:
        return len(tokens(prompt.text)) <= limit

    total = len(stream)
    if dropped := stream.keep_only(fits):
        print(
            f"--prompt_overlong drop: {dropped} of {total} prompts have more than "
            f"--prompt_max_len {limit} tokens and are left out",
            flush=True,
        )


def _chat_template(model: str) -> Render:
    tokenizer = load_tokenizer(model)
    for fault in model_files.template_fault(model, found=bool(tokenizer.chat_template)):
        raise PromptError(fault)

    return partial(TextCodec(tokenizer).render, add_generation_prompt=True)


def load_codec(model: str) -> TextCodec:
    """Return the tokeniser of a model, with the model's end tokens. Raises UnfitModelError."""
    from trainer.rollout.tokenizer_io import end_tokens  # as below

    tokenizer = load_tokenizer(model)
    return TextCodec(tokenizer, end_tokens(model, tokenizer))


def load_tokenizer(model: str) -> Any:
    """Return the tokeniser of a model. Raises UnfitModelError."""
    from transformers import AutoTokenizer  # takes seconds, and few runs need it in the driver

    return pretrained.load(AutoTokenizer, model)
