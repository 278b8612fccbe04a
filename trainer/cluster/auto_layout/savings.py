"""Lists what saves GPU memory, the cheapest means first.

1. ZeRO stage 0, then 2.
2. Passes over fewer samples.
3. Gradient checkpointing, which computes activations twice.
4. Frozen models, then trained models, in the CPUs' memory while other roles work.
5. ZeRO stage 3, which gathers each layer's weights for each pass.
6. The optimizer in the CPUs' memory.
7. Passes over single samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from trainer.config.layout import Layout, Role

if TYPE_CHECKING:
    from trainer.config.config import Config

Saving = Mapping[str, bool | float]
"""Values of flags, by their flat names."""

SMALL, SMALLEST = (2, 16), (1, 4)
"""Samples of a training pass, and of a scoring pass."""
PASSES = ("micro_train_batch_size", "micro_rollout_batch_size")
SAVERS = (
    *("zero_stage", *PASSES, "gradient_checkpointing", "ref_reward_offload"),
    *("deepspeed_enable_sleep", "adam_offload"),
)
"""The flags that a saving may set."""


def cheap(config: Config, layout: Layout, given: Set[str]) -> Sequence[Saving]:
    """Returns the savings 1 to 5: each saves more than those before it, as a rule."""
    lowest, highest = _stages(config)
    found: list[Saving] = [{"zero_stage": stage} for stage in sorted({0, lowest})]
    small = _passes(config, *SMALL)
    found.append({"zero_stage": lowest} | small)
    offload, asleep = _moves(config, layout)
    for stage in sorted({lowest, highest}):
        checkpointed = {"zero_stage": stage} | small | {"gradient_checkpointing": True}
        moved = {**checkpointed, **offload}
        found += [checkpointed, moved, {**moved, **asleep}]
    return [_free(saving, given) for saving in found]


def dear(config: Config, layout: Layout, given: Set[str]) -> Sequence[Saving]:
    """Returns the savings 6 and 7; the last one saves most."""
    most = cheap(config, layout, given)[-1]
    single = _passes(config, *SMALLEST)
    # DeepSpeed moves the optimizer, under ZeRO.
    without_zero = "zero_stage" in given and not config.sharding.zero_stage
    moved = {"zero_stage": max(2, _stages(config)[1]), "adam_offload": True}
    found: list[Saving] = [] if without_zero else [{**most, **moved}]
    found.append({**(found or [most])[-1], **single})
    return [_free(saving, given) for saving in found]


def _stages(config: Config) -> tuple[int, int]:
    """Returns the ZeRO stages, besides 0, that this policy can have: the lowest and the highest."""
    if config.policy_ranks == 1:
        return 0, 0
    ranks = (config.policy_ranks, *((config.critic_ranks,) if config.has_critic else ()))
    whole = config.train.enable_ema or any(count % config.sharding.zpg for count in ranks)
    return 2, 2 if whole else 3


def _free(saving: Saving, given: Set[str]) -> Saving:
    return {name: value for name, value in saving.items() if name not in given}


def _passes(config: Config, train: int, rollout: int) -> dict[str, float]:
    """Returns sizes of passes, at most these; nothing if passes are cut by tokens."""
    sizes = config.train
    if sizes.use_dynamic_batch:
        return {}
    most = min(train, sizes.micro_train_batch_size)
    values = (
        math.gcd(sizes.train_batch_size, most),
        min(rollout, config.micro_rollout_batch_size),
    )
    return dict(zip(PASSES, values, strict=True))


def _moves(config: Config, layout: Layout) -> tuple[Saving, Saving]:
    """Returns the flags that move frozen models, and trained ones, off the GPUs that they share."""
    frozen: Saving = {}
    trained: Saving = {}
    for pool in layout.pools:
        roles = {group.role for group in pool.groups}
        if len(roles) > 1 and roles & {Role.REFERENCE, Role.REWARD}:
            frozen = {"ref_reward_offload": True}
        if Role.ENGINE in roles and roles & {Role.POLICY, Role.CRITIC}:
            trained = {"deepspeed_enable_sleep": True}
    return frozen, trained
