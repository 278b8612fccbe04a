"""Loading a model of which each rank is to hold a part (ZeRO-3): no rank ever has the whole of it.

transformers loads as it does anywhere, so that names, types, tied weights and buffers are the same,
and each weight is split among the ranks as soon as it has been read. Its own way to load for
DeepSpeed is not taken: it casts the frequencies of rotary embeddings to bf16 along with the
weights, and converts the experts of a mixture on every rank at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from trainer.models import deepspeed_process
from trainer.models.settings import Sharding
from trainer.models.zero3 import is_sharded
from trainer.types import Rank

READ_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' switch for its threads, which read on, to the whole model, while one is split."""


def splits(sharding: Sharding, rank: Rank) -> bool:
    """Whether weights are split among ranks."""
    return sharding.zero_stage >= 3 and rank.world > 1


@contextmanager
def split(sharding: Sharding, rank: Rank, *, offload: bool = False) -> Iterator[None]:
    """What transformers loads within is split among the ranks, if `sharding` splits weights.

    On all ranks at once. `offload`: the parts stay in the CPU's memory.
    """
    if not splits(sharding, rank):
        yield
        return
    deepspeed_process.prepare(rank)
    hook = register_module_parameter_registration_hook(_Split(sharding, offload=offload))
    before = os.environ.get(READ_AHEAD)
    os.environ[READ_AHEAD] = "1"
    try:
        yield
    finally:
        hook.remove()
        os.environ.pop(READ_AHEAD)
        if before is not None:
            os.environ[READ_AHEAD] = before


class _Split:
    """Called by torch for each parameter that is set on a module."""

    def __init__(self, sharding: Sharding, *, offload: bool) -> None:
        import deepspeed
        from deepspeed.utils import groups

        self._init = deepspeed.zero.Init(
            module=nn.Module(),  # nothing to split yet
            config_dict_or_path={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": weights(sharding, offload=offload),
            },
            zero_param_parallel_group=groups._get_zero_param_intra_parallel_group(),
        )

    def __call__(self, module: nn.Module, name: str, parameter: Any) -> None:
        # transformers marks what it has read; what a checkpoint lacks is drawn at random later.
        if getattr(parameter, "_is_hf_initialized", False) and not is_sharded(parameter):
            # Not sent by the first rank, as DeepSpeed would: each reads its part of the file alone.
            # What arrives in the memory that a file is mapped to would stay there, too.
            self._init._convert_to_deepspeed_param(parameter)
            parameter.partition()


def weights(sharding: Sharding, *, offload: bool) -> dict[str, Any]:
    """DeepSpeed's settings of how weights lie on the ranks."""
    device = {"offload_param": {"device": "cpu"}} if offload else {}
    return {"stage": 3, "zero_hpz_partition_size": sharding.zpg, **device}
