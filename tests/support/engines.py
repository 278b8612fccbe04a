"""Settings of an engine of a tiny model, prompts for it, and its weights as one bucket."""

from __future__ import annotations

from torch import Tensor

from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.weight_sync import shared_memory as weights
from trainer.weight_sync.messages import Bucket


def settings(tiny: Tiny, prompt_max_len: int = 32, slots: int = 64) -> EngineSettings:
    return EngineSettings(
        model=str(tiny.model),
        add_special_tokens=True,
        prompt_max_len=prompt_max_len,
        sampling=SamplingSettings(max_new_tokens=20),
        mixed_precision=False,
        slots=slots,
    )


TEXTS = ["1+1=", "12+30=", "7="]
State = dict[str, Tensor]


def staged(
    outbox: weights.SharedMemorySender, state: State, *, to_other_nodes: bool = False
) -> Bucket:
    (part,) = outbox.offer(state)
    return outbox.stage(part, to_other_nodes=to_other_nodes)
