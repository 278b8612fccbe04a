"""Share of time in which an engine of asynchronous training has no work, with the real dispatcher.

A transformers engine in a process of Ray writes completions of a tiny model, `UNDER_WAY` at a time,
while the driver looks for ended slices as it does while models train. The alternative has one slice
at a time, of 0.1 s: the engine waits until the driver has read it and sends the next one.
`one_at_a_time_short` has slices of the product's length. The sides take turns.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest import mock

from bench.alternatives.row import Row
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout import dispatcher
from trainer.rollout.dispatcher import WAIT_SECONDS, EngineDispatcher
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import PartialRollout, SliceResult

UNDER_WAY, SECONDS, TURNS, LONGEST = 32, 5.0, 2, 256
SIDES: dict[str, dict[str, Any]] = {
    "one_at_a_time": {"AHEAD": 1, "SLICE": 0.1},
    "one_at_a_time_short": {"AHEAD": 1, "SLICE": dispatcher.SLICE},
    "ours": {"AHEAD": dispatcher.AHEAD, "SLICE": dispatcher.SLICE},
}
Span = tuple[float, float]
"""When a slice began and ended, in seconds."""


class Timed(HFEngine):
    """An engine that notes when it writes."""

    _spans: list[Span] | None = None

    def write(
        self, partials: Sequence[PartialRollout], sampling: SamplingSettings, seconds: float
    ) -> SliceResult:
        began = time.monotonic()
        found = super().write(partials, sampling, seconds)
        self._spans = [*(self._spans or []), (began, time.monotonic())]
        return found

    def spans(self) -> list[Span]:
        """Return the slices since the last call, and drop the rollouts that are not finished."""
        found, self._spans, self._partials = self._spans or [], [], None
        return found


def measured() -> Row:
    found: dict[str, list[Span]] = {side: [] for side in SIDES}
    shares: dict[str, list[float]] = {side: [] for side in SIDES}
    with started() as group:
        pool, numbers = EnginePool(group), count()
        pool.wait_started()
        for turn in range(TURNS + 1):
            for side, settings in SIDES.items():
                with mock.patch.multiple(dispatcher, **settings):
                    write(pool, numbers, SECONDS if turn else 1.0)
                spans = group.send(0, Timed.spans).result()
                if turn:  # the first one warms up
                    found[side] += spans
                    shares[side].append(idle_share(spans))
    means = {side: sum(some) / len(some) for side, some in shares.items()}
    return Row(
        unit="share of time",
        alternative=means["one_at_a_time"],
        ours=means["ours"],
        detail={
            "shares": {side: [round(one, 4) for one in some] for side, some in shares.items()},
            "slices": {side: len(spans) for side, spans in found.items()},
            "settings": SIDES,
        },
    )


def write(pool: EnginePool, numbers: Iterator[int], seconds: float) -> None:
    """Have rollouts written for `seconds`, as `AsyncRollouts.meanwhile` does."""
    work = EngineDispatcher(pool, SamplingSettings(max_new_tokens=LONGEST), patience=60.0)
    until, missing = time.monotonic() + seconds, UNDER_WAY
    while time.monotonic() < until:
        new = [[PartialRollout((n, 0), f"{n}+1=", n)] for n in islice(numbers, missing)]
        work.give(new)
        missing = len(work.work(0.0))
        if not missing:
            time.sleep(WAIT_SECONDS)
    work.settle()


def idle_share(spans: Sequence[Span]) -> float:
    """Return the share of the time from the first slice's beginning to the last one's end in which
    no slice was written."""
    (first, _), (_, last) = spans[0], spans[-1]
    return 1 - sum(end - begin for begin, end in spans) / (last - first)


@contextmanager
def started() -> Iterator[WorkerGroup[Any]]:
    """Start an engine of a tiny model in a process of Ray."""
    import ray

    from env.prepare.model import write_model
    from env.prepare.tiny_model import TinyModel
    from trainer.cluster import placement
    from trainer.cluster.ray_worker_group import RayLauncher
    from trainer.config import layout
    from trainer.rollout.engine import EngineSettings

    groups = layout.RoleProcesses(role=layout.Role.ENGINE, nodes=1, per_node=1)
    wanted = layout.Layout((layout.ResourcePool(groups=(groups,)),))
    with (
        tempfile.TemporaryDirectory(prefix="rc-slices-") as directory,
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray_directory,
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
    ):
        model = Path(directory) / "model"
        write_model(TinyModel(max_length=512), "0123456789+=", model)
        settings = EngineSettings(
            model=str(model),
            add_special_tokens=True,
            prompt_max_len=32,
            sampling=SamplingSettings(max_new_tokens=LONGEST),
            mixed_precision=False,
            slots=UNDER_WAY,
        )
        ray.init(
            address="local", include_dashboard=False, _temp_dir=ray_directory, log_to_driver=False
        )
        try:
            launcher = RayLauncher(placement.reserve(wanted), timeout=300.0)
            yield launcher.launch("engine", "bench.alternatives.slices:Timed", 1, settings)
        finally:
            ray.shutdown()
