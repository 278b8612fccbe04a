"""Flags: rollouts, their sampling, and asynchronous training."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import ROLLOUT, flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How an engine samples completions. Temperature 0 is greedy decoding.

    Pending rollouts of a checkpoint continue only if none of these flags has changed.
    """

    max_new_tokens: int = flag(
        1024,
        name="generate_max_len",
        group=ROLLOUT,
        dotted="max_new_tokens",
        aliases=("max_new_tokens",),
        unit="tokens",
        at_least=1,
        help="longest completion",
    )
    temperature: float = flag(
        1.0, group=ROLLOUT, dotted="temperature", above=0, help="sampling temperature"
    )
    top_p: float = flag(
        1.0, group=ROLLOUT, dotted="top_p", above=0, at_most=1, help="nucleus sampling"
    )


@dataclass(frozen=True, kw_only=True)
class RolloutFlags:
    rollout_batch_size: int = flag(
        1024,
        group=ROLLOUT,
        dotted="rollout.batch_size",
        unit="prompts",
        at_least=1,
        help="prompts of one step",
    )
    n_samples_per_prompt: int = flag(
        1,
        group=ROLLOUT,
        dotted="rollout.n_samples_per_prompt",
        at_least=1,
        help="completions of each prompt",
    )
    micro_rollout_batch_size: int = flag(
        64,
        group=ROLLOUT,
        dotted="rollout.micro_batch_size",
        unit="samples",
        at_least=1,
        help="samples that are decoded or scored at a time",
    )
    rollout_max_tokens_per_gpu: int | None = flag(
        None,
        group=ROLLOUT,
        dotted="rollout.max_tokens_per_gpu",
        unit="tokens",
        at_least=1,
        help="tokens of a scoring pass; default: --train_max_tokens_per_gpu",
    )
    vllm_num_engines: int = flag(
        1,
        group=ROLLOUT,
        dotted="vllm.num_engines",
        at_least=1,
        help="number of rollout engines of any kind",
    )
    vllm_generate_batch_size: int | None = flag(
        None,
        group=ROLLOUT,
        dotted="rollout.vllm_generate_batch_size",
        unit="prompts",
        at_least=1,
        help="prompts sent out at a time",
        no_effect="engines get all prompts of a step, and start each as soon as they have room",
    )
    rollout_engine: str = flag(
        "auto",
        group=ROLLOUT,
        choices=("auto", "hf", "vllm"),
        help="kind of the engines: vLLM or transformers; auto: vLLM on GPUs if it is installed",
    )
    async_train: bool = flag(
        False,
        group=ROLLOUT,
        dotted="train.async_enable",
        help="generate rollouts while earlier ones are trained on",
    )
    max_staleness: int = flag(
        1,
        group=ROLLOUT,
        dotted="train.async_queue_size",
        aliases=("async_queue_size",),
        at_least=0,
        unit="steps",
        help="limit of policy versions between a sample's first token and its training",
    )
    partial_rollout: bool = flag(
        False,
        group=ROLLOUT,
        dotted="train.partial_rollout_enable",
        help="load new weights also in the middle of a completion",
    )
