"""The trainers of TRL, one for each stage, from flags."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import set_seed
from trl import DPOConfig, RewardConfig, SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from trainer.models import lora
from trainer.models.causal_lm import separates_by_positions
from trainer.models.loading import load_causal_lm, load_scorer
from trainer.supervised.options import StageFlags
from trainer.supervised.stages import DPOFlags, RewardFlags, SFTFlags
from trainer.supervised.whole import DPO, SFT, Reward

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a trainer is made of, beside its flags."""

    arguments: Any
    """TRL's, from `arguments`."""
    tokenizer: Any
    rows: Dataset
    held_out: Dataset | None


def sft_arguments(flags: StageFlags, common: Mapping[str, Any]) -> Any:
    assert isinstance(flags, SFTFlags)
    return SFTConfig(
        **common,
        completion_only_loss=not (flags.pretrain_mode or flags.multiturn),
        assistant_only_loss=flags.multiturn and not flags.pretrain_mode,
        router_aux_loss_coef=flags.aux_loss_coef,
    )


def reward_arguments(flags: StageFlags, common: Mapping[str, Any]) -> Any:
    return RewardConfig(**common)


def dpo_arguments(flags: StageFlags, common: Mapping[str, Any]) -> Any:
    assert isinstance(flags, DPOFlags)
    losses = {"ipo" if flags.ipo else "sigmoid": 1.0}
    if flags.nll_loss_coef:
        losses["sft"] = flags.nll_loss_coef
    return DPOConfig(
        **common,
        beta=flags.beta,
        loss_type=list(losses),
        loss_weights=list(losses.values()),
        router_aux_loss_coef=flags.aux_loss_coef,
    )


def sft(flags: StageFlags, inputs: Inputs) -> Any:
    """Return a trainer of completions, whose samples are put end to end if a flag says so."""
    model, collator = _loaded(load_causal_lm, flags.pretrain, flags), None
    if flags.packing_samples and not separates_by_positions(model):
        log.warning(
            "--packing_samples has no effect: %s is of an architecture in which samples "
            "end to end would see each other; they are padded",
            flags.pretrain,
        )
    elif flags.packing_samples:
        # TRL's own switch for it does not cut long samples.
        collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    return SFT(
        model=adapted(model, flags),
        args=inputs.arguments,
        train_dataset=inputs.rows,
        eval_dataset=inputs.held_out,
        processing_class=inputs.tokenizer,
        data_collator=collator,
    )


def reward(flags: StageFlags, inputs: Inputs) -> Any:
    assert isinstance(flags, RewardFlags)
    set_seed(flags.seed)  # a language model gets a random head
    return Reward(
        model=adapted(_loaded(load_scorer, flags.pretrain, flags), flags),
        args=inputs.arguments,
        train_dataset=inputs.rows,
        eval_dataset=inputs.held_out,
        processing_class=inputs.tokenizer,
    )


def dpo(flags: StageFlags, inputs: Inputs) -> Any:
    assert isinstance(flags, DPOFlags)
    reference = flags.ref_pretrain or flags.pretrain
    return DPO(
        model=adapted(_loaded(load_causal_lm, flags.pretrain, flags), flags),
        # Given here, as it begins: TRL would take it from the model's own name.
        ref_model=_loaded(load_causal_lm, reference, flags),
        args=inputs.arguments,
        train_dataset=inputs.rows,
        eval_dataset=inputs.held_out,
        processing_class=inputs.tokenizer,
    )


def _loaded(load: Callable[..., Any], model: str, flags: StageFlags) -> Any:
    return load(model, torch.float32, flags.attention, longest=flags.max_len)


def adapted(model: Any, flags: StageFlags) -> Any:
    """Return the model, with adapters if a flag says so; the head of a reward model stays whole."""
    if flags.lora_rank:
        scorer = isinstance(flags, RewardFlags)
        lora.adapt(model.base_model if scorer else model, flags.lora, flags.seed)
    return model


Arguments = Callable[[StageFlags, Mapping[str, Any]], Any]
Build = Callable[[StageFlags, Inputs], Any]
TRAINERS: Mapping[str, tuple[Arguments, Build]] = {
    "sft": (sft_arguments, sft),
    "rm": (reward_arguments, reward),
    "dpo": (dpo_arguments, dpo),
}
