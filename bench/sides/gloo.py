"""Ranks in processes of this machine that share a gloo group."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from typing import Any, TypeVar
from unittest import mock

from trainer.types import Rank

T = TypeVar("T")

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
"""Of the process that ranks are forked from."""


PRELOADED = ("trainer.workers.policy", "trainer.workers.deepspeed")
"""Modules that all ranks need, which are imported once: for DeepSpeed that takes 10 s."""


def on_ranks(count: int, work: Callable[..., T], *args: Any) -> list[T]:
    """Call `work(rank, *args)` on `count` ranks, each in a new process of one thread on CPUs.

    Returns what each rank returned. Raises the error of the first rank that has one.
    """
    with tempfile.TemporaryDirectory(prefix="rc-gloo-") as directory, ExitStack() as processes:
        store, forked = f"{directory}/store", get_context("forkserver")
        with mock.patch.dict(os.environ, ENVIRONMENT):
            forked.set_forkserver_preload([*PRELOADED])
            ensure_running()
        pools = [
            processes.enter_context(ProcessPoolExecutor(1, mp_context=forked)) for _ in range(count)
        ]
        found = [
            pool.submit(_joined, Rank(index, count), store, work, args)
            for index, pool in enumerate(pools)
        ]
        return [one.result() for one in found]


def _joined(rank: Rank, store: str, work: Callable[..., T], args: tuple[Any, ...]) -> T:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank.index, world_size=rank.world
    )
    try:
        return work(rank, *args)
    finally:
        distributed.destroy_process_group()
