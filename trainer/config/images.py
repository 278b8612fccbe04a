"""What is wrong with flags of a policy that takes images. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from contract.options import Fault
from trainer.config import model_files
from trainer.config.config import Config


def faults(config: Config) -> Iterator[Fault]:
    """Yield each fault with its remedy."""
    if not config.sees_images:
        return
    if config.ring_attn_size > 1:
        yield Fault(
            "--ring_attn_size",
            str(config.ring_attn_size),
            "the policy takes images, and GPUs share only samples of text",
            "Give 1",
        )
    critic = config.critic_pretrain if config.has_critic else ""
    if critic and model_files.sees_images(critic) is False:
        yield Fault(
            "--critic_pretrain",
            critic,
            "takes only text, and the policy takes images",
            "Give a model that takes images, or leave the flag out: --pretrain then begins both",
        )
