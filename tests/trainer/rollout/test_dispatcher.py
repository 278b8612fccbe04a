"""Partial rollouts at engines of which some are lost, replaced or stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event, Timer
from typing import Any

import numpy as np
import pytest

from tests.support.engines import TEXTS, settings
from tests.support.local_workers import LocalWorkerGroup, ThreadPending
from tests.support.lost_calls import Never
from tests.support.tiny_run import Tiny
from trainer.cluster import heartbeat
from trainer.cluster.restarts import Patience
from trainer.cluster.worker_group import Pending
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout import dispatcher
from trainer.rollout.dispatcher import EngineDispatcher
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import (
    Completion,
    FinishedRollout,
    Key,
    LostWorkerError,
    PartialRollout,
    SliceResult,
)


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked for one token at a time."""
    monkeypatch.setattr(dispatcher, "SLICE", 0.0)


def test_partial_rollouts_of_an_engine_that_was_replaced_are_written_anew(tiny: Tiny) -> None:
    sampling = SamplingSettings(max_new_tokens=12)
    partials = [
        [PartialRollout((g, n), text, 10 * g + n) for n in range(2)] for g, text in enumerate(TEXTS)
    ]

    def written(lost_after: int) -> dict[tuple[int, int], list[int]]:
        engines = [HFEngine(settings(tiny)), HFEngine(settings(tiny))]
        work = EngineDispatcher(EnginePool(LocalWorkerGroup(engines)), sampling, patience=1)
        work.give(partials)
        ended: list[FinishedRollout] = []
        for round_ in range(100):
            if round_ == lost_after:
                engines[0]._partials = None
            ended += work.work(0.0)
        assert not work.busy
        return {one.key: one.completion.tokens.tolist() for one in ended}

    assert written(lost_after=4) == written(lost_after=-1)


def test_partial_rollouts_of_an_engine_that_is_lost_are_written_by_the_others(tiny: Tiny) -> None:
    sampling = SamplingSettings(max_new_tokens=12)
    partials = [
        [PartialRollout((g, n), text, 10 * g + n) for n in range(2)] for g, text in enumerate(TEXTS)
    ]

    def written(lost: list[int]) -> dict[tuple[int, int], list[int]]:
        group = LocalWorkerGroup([HFEngine(settings(tiny)), HFEngine(settings(tiny))])
        pool = EnginePool(group, patience=Patience(restart_eagerly=False))
        work = EngineDispatcher(pool, sampling, patience=1)
        work.give(partials)
        ended: list[FinishedRollout] = []
        for round_ in range(100):
            if round_ == 4:
                for engine in lost:
                    pool.lose(engine, LostWorkerError(f"engine-{engine} is lost", "engine"))
            ended += work.work(0.0)
        assert work.stalled == (len(lost) == 2)
        return {one.key: one.completion.tokens.tolist() for one in ended}

    whole = written([])
    assert written([0]) == whole
    assert len(written([0, 1])) < len(whole)


class Freezing(LocalWorkerGroup[HFEngine]):
    """An engine of it can be stopped: it then answers nothing, until it is started anew."""

    frozen: int | None = None

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        return Never() if worker == self.frozen else super().send(worker, method, *args, **kwargs)

    def alive(self, worker: int) -> Pending[None]:
        return Never() if worker == self.frozen else super().alive(worker)

    def restart(self, workers: Sequence[int]) -> None:
        assert self.frozen in workers
        self.frozen = None


def test_partial_rollouts_of_a_stopped_engine_go_to_the_others_long_before_a_slice_is_late(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "POLL_SECONDS", 0.0)
    sampling = SamplingSettings(max_new_tokens=12)
    partials = [
        [PartialRollout((g, n), text, 10 * g + n) for n in range(2)] for g, text in enumerate(TEXTS)
    ]
    group = Freezing([HFEngine(settings(tiny)), HFEngine(settings(tiny))])
    pool = EnginePool(group, patience=Patience(life=0.3))
    work = EngineDispatcher(pool, sampling, patience=600)
    work.give(partials)
    ended = work.work(0.0)
    group.frozen = 0
    deadline = time.monotonic() + 30
    while work.busy:
        assert time.monotonic() < deadline
        ended += work.work(0.1)
    assert {one.key for one in ended} == {partial.key for both in partials for partial in both}
    assert pool.present == [1], "until weights are given out again"


class Together(LocalWorkerGroup[Any]):
    """Engines whose slices end when a test says so. A wait for one of them alone is an error."""

    def __init__(self, engines: int) -> None:
        super().__init__([None] * engines)
        self.slices: list[Future[SliceResult]] = [Future() for _ in range(engines)]

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        future = self.slices[worker]

        class Slice(ThreadPending[SliceResult]):
            def ready(self, seconds: float) -> bool:
                assert not seconds, "the other engines have no work meanwhile"
                return super().ready(0)

        return Slice(future)

    def wait_any(self, pending: Sequence[Pending[Any]], seconds: float) -> None:
        assert len(pending) == len(self.slices)
        wait(self.slices, seconds, FIRST_COMPLETED)


def test_the_first_engine_whose_slice_ends_is_answered_first() -> None:
    group = Together(2)
    work = EngineDispatcher(EnginePool(group), SamplingSettings(max_new_tokens=2), patience=600)
    work.give([[PartialRollout((g, 0), "1+1=", g)] for g in range(2)])
    assert not work.work(0.0)
    key = next(iter(work._queues[1].rollouts))
    one = np.ones(1, dtype=np.int32)
    completion = Completion(
        text="2",
        tokens=one,
        action_mask=one > 0,
        log_probs=one.astype(np.float32),
        finished=True,
        versions=one,
    )
    ended = FinishedRollout(key, completion)
    Timer(0.05, group.slices[1].set_result, [SliceResult([ended], frozenset())]).start()
    assert [one.key for one in work.work(30.0)] == [key]


class Queued(LocalWorkerGroup[HFEngine]):
    """An engine in a thread, at one slice at a time; it notes the rollouts that come with each."""

    def __init__(self, engine: HFEngine) -> None:
        super().__init__([engine])
        self._thread = ThreadPoolExecutor(1)
        self.slices: list[Future[SliceResult]] = []
        self.came: list[Key] = []

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        call = getattr(self._workers[worker], method.__name__)
        self.came += [partial.key for partial in args[0]]
        self.slices.append(self._thread.submit(call, *args, **kwargs))
        return ThreadPending(self.slices[-1])

    @property
    def waiting(self) -> int:
        return sum(not one.done() for one in self.slices)


def test_an_engine_has_its_next_slice_while_the_driver_does_something_else(tiny: Tiny) -> None:
    group = Queued(HFEngine(settings(tiny)))
    begin = Event()
    group._thread.submit(begin.wait)
    work = EngineDispatcher(EnginePool(group), SamplingSettings(max_new_tokens=12), patience=600)
    work.give([[PartialRollout((0, 0), TEXTS[0], 1)]])
    work.work(0.0)
    assert group.waiting == 2
    work.work(0.0)
    assert group.waiting == 2, "not more: new weights wait for all of them"
    begin.set()
    work.settle()
    assert group.waiting == 0


def test_rollouts_that_come_between_slices_are_sent_once_and_written_as_if_alone(
    tiny: Tiny,
) -> None:
    sampling = SamplingSettings(max_new_tokens=12)
    rollouts = [PartialRollout((n, 0), TEXTS[n % 3], 10 + n) for n in range(8)]

    def written(given: Sequence[PartialRollout]) -> tuple[dict[Key, list[int]], list[Key]]:
        group = Queued(HFEngine(settings(tiny)))
        work = EngineDispatcher(EnginePool(group), sampling, patience=600)
        ended: list[FinishedRollout] = []
        for one in given:
            work.give([[one]])
            ended += work.work(0.1)
        ended += work.finish()
        assert not work.settle()
        return {one.key: one.completion.tokens.tolist() for one in ended}, group.came

    together, came = written(rollouts)
    assert came == [one.key for one in rollouts]
    alone = [written([one])[0] for one in rollouts]
    assert together == {key: tokens for one in alone for key, tokens in one.items()}
