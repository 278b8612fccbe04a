"""Lists the ways to save GPU memory: values of the flags that the user left open.

ZeRO's stages, gradient checkpointing, models in the CPUs' memory while other roles work, and the
tokens of a pass can be combined freely; `cost` says which combination is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import product
from typing import TYPE_CHECKING

from trainer.config.layout import Layout, Role, may_be_vllm

if TYPE_CHECKING:
    from trainer.config.config import Config

Saving = Mapping[str, bool | float]
"""Values of flags, by their flat names."""

MOST_TOKENS = 32_768
"""Tokens of a pass from which on larger passes are not faster."""
USUAL, SMALL, SMALLEST = (8, 64), (2, 16), (1, 4)
"""Samples of a training pass, and of a pass that scores or decodes."""
PASSES = ("micro_train_batch_size", "micro_rollout_batch_size")
TOKENS = "train_max_tokens_per_gpu"
MEANS = (
    *("zero_stage", "gradient_checkpointing", "ref_reward_offload"),
    *("deepspeed_enable_sleep", "adam_offload"),
)
"""The flags that save memory, and may slow a run."""
SAVERS = (*MEANS, *PASSES)


def cheap(config: Config, layout: Layout, given: Set[str]) -> Sequence[Saving]:
    """Return all combinations without AdamW on the CPUs; the last one saves most."""
    made = product(_stages(config), (False, True), _moves(config, layout), _passes(config, given))
    found: list[Saving] = [
        {"zero_stage": stage, "gradient_checkpointing": checkpointed, **moved, **passes}
        for stage, checkpointed, moved, passes in made
    ]
    return _free(found, given)


def dear(config: Config, layout: Layout, given: Set[str]) -> Sequence[Saving]:
    """Return the combinations with AdamW on the CPUs; the last one saves most."""
    if "zero_stage" in given and not config.sharding.zero_stage:
        return ()  # DeepSpeed moves the optimizer, under ZeRO
    stages = {max(2, stage) for stage in _stages(config)}
    made: list[Saving] = [
        {**saving, "zero_stage": stage, "adam_offload": True}
        for stage, saving in product(sorted(stages), cheap(config, layout, given))
        if saving.get("gradient_checkpointing", True)
    ]
    return _free(made, given)


def _stages(config: Config) -> Sequence[int]:
    """Return the ZeRO stages that this policy can have, with the largest memory first."""
    if config.policy_ranks == 1:
        return (0,)
    ranks = (config.policy_ranks, *((config.critic_ranks,) if config.has_critic else ()))
    whole = config.train.enable_ema or any(count % config.sharding.zpg for count in ranks)
    return (0, 1, 2) if whole else (0, 1, 2, 3)


def _free(savings: Sequence[Saving], given: Set[str]) -> Sequence[Saving]:
    """Return the savings without the flags that were given, each once."""
    kept = ({n: v for n, v in saving.items() if n not in given} for saving in savings)
    return list({tuple(saving.items()): saving for saving in kept}.values())


def _passes(config: Config, given: Set[str]) -> Sequence[Saving]:
    """Return limits of a pass, the widest first: tokens, or samples if the user gave them."""
    dynamic = config.train.use_dynamic_batch
    if not dynamic and ("use_dynamic_batch" in given or given & set(PASSES)):
        return [_samples(config, *sizes) for sizes in (USUAL, SMALL, SMALLEST)]
    # An engine of transformers decodes as many samples at a time.
    decoded = (USUAL, SMALL, SMALLEST) if not may_be_vllm(config) else (USUAL,)
    return [
        {"use_dynamic_batch": True, TOKENS: tokens, PASSES[1]: samples}
        for tokens, (_, samples) in product(_budgets(config), decoded)
    ]


def _budgets(config: Config) -> Sequence[int]:
    """Return budgets of a rank's tokens, from what is useful down to the longest sample."""
    longest, sharing = config.longest_sample, config.ring_attn_size
    samples = math.ceil(config.train.train_batch_size / (config.policy_ranks // sharing))
    share, least = (math.ceil(count * longest / sharing) for count in (samples, 1))
    budgets = [max(least, min(MOST_TOKENS, share))]
    while budgets[-1] > least:
        budgets.append(max(least, budgets[-1] // 2))
    return budgets


def _samples(config: Config, train: int, rollout: int) -> Saving:
    """Return sizes of passes, at most these."""
    most = min(train, config.train.micro_train_batch_size)
    values = (
        math.gcd(config.train.train_batch_size, most),
        min(rollout, config.micro_rollout_batch_size),
    )
    return dict(zip(PASSES, values, strict=True))


def _moves(config: Config, layout: Layout) -> Sequence[Saving]:
    """Return what moves frozen models, then trained ones too, off the GPUs that they share."""
    pools = [{group.role for group in pool.groups} for pool in layout.pools]
    found: list[Saving] = [{}]
    if any(len(roles) > 1 and roles & {Role.REFERENCE, Role.REWARD} for roles in pools):
        found.append({"ref_reward_offload": True})
    if any(Role.ENGINE in roles and roles & {Role.POLICY, Role.CRITIC} for roles in pools):
        found.append({**found[-1], "deepspeed_enable_sleep": True})
    return found
