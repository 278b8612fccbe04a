"""What DeepSpeed asks of a process, before it is imported and after."""

from __future__ import annotations

import logging
import os

import torch

from trainer.cluster import rendezvous
from trainer.types import Rank


def prepare(rank: Rank) -> None:
    """To be called before any module that drives DeepSpeed is imported; again does no harm."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_RANK"] = "0"  # a process sees its own GPU only
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    # Its all-reduce over shared memory would be compiled now; gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if rank.world == 1:
        rendezvous.alone()
