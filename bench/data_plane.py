"""What the driver does with a step's samples: divide them, store them, and compare rewards.

Value: CPU seconds of the driver for one step of PPO with a reference (`--samples` of up to
`--limit` tokens, of a half in the mean) on `--ranks` ranks of each model. The driver is the
trainer's own code over a real Ray object store. The ranks take turns in one process, and their
models compute nothing.

`dense` is what padding costs instead: the driver collates samples to rectangles of int64 tokens,
stores them for each model, computes advantages of what the models return, and stores all of it
again. Each rank takes all samples and keeps its own. It is measured on an eighth of the samples
(`measured_samples`), and every number is then `times` 8.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from bench.result import report
from env.http.arguments import positive

TARGET = 5.0
BUDGET = 32_768
"""Tokens of a pass."""
GROUP = 16
"""Completions of a prompt."""
OF_DENSE = 8
"""One in so many samples is collated to rectangles."""
Row = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=positive, default=16_384)
    parser.add_argument("--limit", type=positive, default=8_192)
    parser.add_argument("--ranks", type=positive, default=64)
    given = parser.parse_args()
    import ray

    with tempfile.TemporaryDirectory(prefix="rc-plane-", dir="/tmp") as directory:
        os.environ["OMP_NUM_THREADS"] = "1"
        ray.init(
            address="local", include_dashboard=False, num_cpus=2, object_store_memory=4 << 30,
            _temp_dir=directory,
        )  # fmt: skip
        try:
            completions = written(given.samples, given.limit)
            ragged = of_trainer(completions, given.ranks)
            dense = of_rectangles(completions[::OF_DENSE], given.ranks)
        finally:
            ray.shutdown()
    ok = report(
        "data_plane",
        ragged["driver_cpu_seconds"],
        unit="s",
        target=TARGET,
        better="lower",
        detail={
            **vars(given),
            "tokens": sum(len(one.tokens) for one in completions),
            "completion_bytes": sum(map(nbytes, completions)),
            "trainer": ragged,
            "dense": {
                "measured_samples": len(completions[::OF_DENSE]),
                "times": OF_DENSE,
                **{name: round(value * OF_DENSE, 2) for name, value in dense.items()},
            },
        },
    )
    return 0 if ok else 1


def written(samples: int, limit: int) -> list[Any]:
    import numpy as np

    from trainer.types import Completion

    random = np.random.default_rng(0)
    found = []
    for length in random.integers(limit // 16, limit + 1, samples).tolist():
        place = np.arange(length)
        found.append(
            Completion(
                text="",
                tokens=random.integers(0, 150_000, length).astype(np.int32),
                action_mask=place >= limit // 32,
                log_probs=np.full(length, -1, dtype=np.float32),
                finished=True,
                versions=np.zeros(length, dtype=np.int32),
            )
        )
    return found


def of_trainer(completions: Sequence[Any], ranks: int) -> Row:
    """Seconds of the driver and of one rank, and bytes that each receives."""
    import numpy as np

    from tests.support.simulated_ranks import config_of, workers_of
    from trainer.algorithms import advantages
    from trainer.algorithms.advantages import Rewards
    from trainer.workers import experience
    from trainer.workers.protocols import Critic, Policy

    store = ray_store()
    workers: Any = workers_of(dict.fromkeys(("policy", "critic", "reference"), ranks), store)
    config = config_of(len(completions), group=GROUP)
    rewards = np.random.default_rng(1).normal(size=len(completions)).astype(np.float32)
    groups = [workers.policy, workers.critic, workers.reference]
    clock, began = time.perf_counter(), time.process_time()
    found = experience.divide(workers, completions, config, 1)
    divided = time.perf_counter() - clock
    forward = experience.start_forward(workers, found, config)
    actions = forward.division.plan.actions
    scores = advantages.above_baseline(
        config.advantage, Rewards(whole=rewards), actions, config.n_samples_per_prompt
    )
    lesson = experience.make_lesson(workers, forward, scores, config, 0.01)
    workers.critic.call_ranks(Critic.update, *lesson.arguments(workers.critic), 1)
    workers.policy.call_ranks(Policy.update, *lesson.arguments(workers.policy), 1)
    cpu = time.process_time() - began - store.aside
    on_ranks = [second for group in groups for second in group.traffic.seconds]
    return {
        "driver_cpu_seconds": round(cpu - sum(on_ranks), 2),
        "divide_and_store_seconds": round(divided, 2),
        "stored_bytes": store.stored,
        "policy_rank_bytes": max(workers.policy.traffic.received),
        "driver_bytes": sum(group.traffic.returned for group in groups),
        "slowest_call_of_a_rank_seconds": round(max(on_ranks), 2),
        "passes_of_a_rank_cpu_seconds": round(of_passes(store, found), 3),
    }


def of_passes(store: Any, found: Any) -> float:
    """Return the CPU seconds in which one rank divides its samples of an update into passes."""
    from trainer.algorithms import division
    from trainer.algorithms.batching import MicroBatchLimits

    limits = MicroBatchLimits(samples=1, tokens=BUDGET, packed=True, padded_inside=False)
    part = store.get(next(iter(found.parts.values()))[0])
    began = time.process_time()
    for rows in part.plan.updates:
        division.micro_batches(part, rows, limits)
    return time.process_time() - began


def ray_store() -> Any:
    """Return a store in Ray's, which knows the bytes of the driver's own puts."""
    import ray

    from tests.support.simulated_ranks import Handle, Store

    class RayStore(Store):
        def __init__(self) -> None:
            super().__init__()
            self.stored, self.aside = 0, 0.0
            """Bytes; CPU seconds of what only this benchmark does."""

        def put(self, value: Any) -> Any:
            reference = ray.put(value)
            began = time.process_time()
            size = nbytes(value)
            self.stored += size
            self._held.append((reference, size))
            self.aside += time.process_time() - began
            return Handle(len(self._held) - 1)

        def get(self, handle: Any) -> Any:
            began = time.process_time()
            value = ray.get(self._held[handle.number][0])
            self.aside += time.process_time() - began
            return value

        def size(self, handle: Any) -> int:
            bytes_of: int = self._held[handle.number][1]
            return bytes_of

    return RayStore()


def nbytes(value: Any) -> int:
    """Return the bytes of all arrays of a value."""
    import pickle

    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(rest) + sum(buffer.raw().nbytes for buffer in buffers)


def of_rectangles(completions: Sequence[Any], ranks: int) -> Row:
    """Seconds and bytes of padded samples, which every rank of three models takes whole."""
    import numpy as np
    import ray

    cpu = time.process_time()
    lengths = np.array([len(one.tokens) for one in completions])
    shape = len(completions), int(lengths.max())
    tokens, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    drawn = np.zeros(shape, dtype=np.float32)
    for row, one in enumerate(completions):
        tokens[row, : lengths[row]] = one.tokens
        mask[row, : lengths[row]] = one.action_mask
        drawn[row, : lengths[row]] = one.log_probs
    sequences = (tokens, lengths, mask, drawn)
    stored = [ray.put(sequences) for _ in range(3)]
    collated = time.process_time() - cpu
    del stored
    computed = [np.full(shape, -1, dtype=np.float32) for _ in range(3)]
    back = [ray.put(array) for array in computed]  # by the ranks, which is no time of the driver
    cpu = time.process_time()
    old, known, values = (np.array(ray.get(array)) for array in back)
    advantages, returns = estimated(0.01 * (known - old) * mask, values, mask)
    learned = (*sequences, old, known, values, advantages, returns)
    for _ in range(2):  # for the policy, and for the critic
        stored = [ray.put(learned)]
    driver = collated + time.process_time() - cpu
    began = time.process_time()
    for rank in range(ranks):
        taken = [array[rank::ranks].copy() for array in ray.get(stored[0])]
    taking = (time.process_time() - began) / ranks
    size, whole = (sum(one.nbytes for one in some) for some in (sequences, learned))
    return {
        "driver_cpu_seconds": driver,
        "collate_and_store_cpu_seconds": collated,
        "stored_bytes": 3 * size + 2 * whole,
        "rank_bytes": whole,
        "rank_keeps_bytes": sum(one.nbytes for one in taken),
        "rank_take_cpu_seconds": taking,
    }


def estimated(rewards: Any, values: Any, mask: Any) -> tuple[Any, Any]:
    """Return advantages and returns [B, T] of padded samples by GAE (Schulman et al. 2016), with
    gamma and lambda of 1."""
    import numpy as np

    found, later, follows = np.zeros_like(values), np.zeros(len(values)), np.zeros(len(values))
    for place in reversed(range(values.shape[1])):
        delta = rewards[:, place] + follows - values[:, place]
        later = np.where(mask[:, place], delta + later, later)
        follows = np.where(mask[:, place], values[:, place], follows)
        found[:, place] = later * mask[:, place]
    return found, found + values


if __name__ == "__main__":
    sys.exit(main())
