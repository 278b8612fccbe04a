"""Flags: rollouts, their sampling, and asynchronous training."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How an engine samples completions. Temperature 0 is greedy decoding.

    Pending rollouts of a checkpoint continue only if none of these flags has changed.
    """

    max_new_tokens: int = Group.ROLLOUT.flag(
        1024,
        "longest completion",
        name="generate_max_len",
        dotted="max_new_tokens",
        aliases=("max_new_tokens",),
        unit="tokens",
        at_least=1,
    )
    temperature: float = Group.ROLLOUT.flag(
        1.0, "sampling temperature", dotted="temperature", above=0
    )
    top_p: float = Group.ROLLOUT.flag(1.0, "nucleus sampling", dotted="top_p", above=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class RolloutFlags:
    rollout_batch_size: int = Group.ROLLOUT.flag(
        1024, "prompts of one step", dotted="rollout.batch_size", unit="prompts", at_least=1
    )
    n_samples_per_prompt: int = Group.ROLLOUT.flag(
        1, "completions of each prompt", dotted="rollout.n_samples_per_prompt", at_least=1
    )
    micro_rollout_batch_size: int = Group.ROLLOUT.flag(
        64,
        "samples that are decoded or scored at a time",
        dotted="rollout.micro_batch_size",
        unit="samples",
        at_least=1,
    )
    rollout_max_tokens_per_gpu: int | None = Group.ROLLOUT.flag(
        None,
        "tokens of a scoring pass; default: --train_max_tokens_per_gpu",
        dotted="rollout.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
    )
    vllm_num_engines: int = Group.ROLLOUT.flag(
        1, "number of rollout engines of any kind", dotted="vllm.num_engines", at_least=1
    )
    vllm_generate_batch_size: int | None = Group.ROLLOUT.flag(
        None,
        "prompts sent out at a time",
        dotted="rollout.vllm_generate_batch_size",
        unit="prompts",
        at_least=1,
        no_effect="engines get all prompts of a step, and start each as soon as they have room",
    )
    rollout_engine: str = Group.ROLLOUT.flag(
        "auto",
        "kind of the engines: vLLM or transformers; auto: vLLM on GPUs if it is installed",
        choices=("auto", "hf", "vllm"),
    )
    async_train: bool = Group.ROLLOUT.flag(
        False, "generate rollouts while earlier ones are trained on", dotted="train.async_enable"
    )
    max_staleness: int = Group.ROLLOUT.flag(
        1,
        "limit of policy versions between a sample's first token and its training",
        dotted="train.async_queue_size",
        aliases=("async_queue_size",),
        at_least=0,
        unit="steps",
    )
    partial_rollout: bool = Group.ROLLOUT.flag(
        False,
        "load new weights also in the middle of a completion",
        dotted="train.partial_rollout_enable",
    )
