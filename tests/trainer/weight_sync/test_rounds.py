"""The driver's rounds in an update: as many for a large model as for a small one."""

from __future__ import annotations

import pytest

from tests.support.weight_rounds import Receiver, publish
from trainer.types import TrainingError


@pytest.mark.parametrize("backend", ["shared_memory", "nccl", "ipc"])
def test_a_large_model_takes_as_many_rounds_of_the_driver_as_a_small_one(backend: str) -> None:
    def engines() -> list[Receiver]:
        return [Receiver(["GPU-0", "GPU-1"]), Receiver(["GPU-3", "GPU-2"])]

    small, large = (publish(backend, buckets, engines()) for buckets in (3, 60))
    assert small.count == large.count < 10
    assert large.calls > 60


def test_engines_borrow_every_bucket_in_order_from_the_ranks_on_their_own_gpus() -> None:
    engines = [Receiver(["GPU-3", "GPU-1"]), Receiver(["GPU-0"]), Receiver(["GPU-0"])]
    rounds = publish("ipc", 5, engines)
    names = [str(number) for number in range(5)]
    assert engines[0].taken == [(name, "GPU-1", "GPU-3") for name in names]
    assert engines[1].taken == engines[2].taken == [(name, "GPU-0") for name in names]
    assert rounds.awaited == [[0, 0, 0, 0]] * 2 + [[2, 1, 0, 1]] * 3, "of their own GPUs alone"


def test_an_engine_without_a_rank_on_its_gpu_is_named() -> None:
    with pytest.raises(TrainingError, match=r"engine-1 shares no GPU .* --vllm_sync_backend"):
        publish("ipc", 1, [Receiver(["GPU-0"]), Receiver(["GPU-9"])])
