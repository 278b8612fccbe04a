"""The policy's weights to engines: in parts, from actor to actor, and never waited for in vain."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.engines import settings
from tests.support.learners import experience, policy, weights_of
from tests.support.local_workers import LocalWorkerGroup
from tests.support.lost_calls import Never
from tests.support.ragged import learn
from tests.support.tiny_run import Tiny
from trainer.cluster import heartbeat
from trainer.cluster.restarts import Patience
from trainer.cluster.worker_group import Pending
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout import engine_pool
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import BeyondRepairError, LostWorkerError, Request
from trainer.weight_sync import shared_memory, update

GREEDY = SamplingSettings(max_new_tokens=8, temperature=0)


class Elsewhere(HFEngine):
    """An engine on another node: what is shared here, it cannot map."""

    def node(self) -> str:
        return "elsewhere"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "BUCKET_BYTES", 4096)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sleeping", [False, True])
def test_every_engine_writes_with_the_newest_weights_wherever_it_runs(
    tiny: Tiny, sleeping: bool
) -> None:
    actor = policy(tiny)
    engines = [HFEngine(settings(tiny)), Elsewhere(settings(tiny))]
    before = engines[0].generate([Request("12+34=", (0,))], GREEDY)[0]
    learn(actor, experience(), 1)
    pool = EnginePool(LocalWorkerGroup(engines))
    if sleeping:
        update.sleep(pool)
    update.update_weights(LocalWorkerGroup([actor]), pool, 3, wake=sleeping)
    for engine in engines:
        loaded = {name: p.detach().numpy() for name, p in engine._model.named_parameters()}
        assert all(np.array_equal(loaded[n], array) for n, array in weights_of(actor).items())
        after = engine.generate([Request("12+34=", (0,))], GREEDY)[0]
        assert (before.version, after.version) == (0, 3)


def test_a_sleeping_engine_holds_no_weights_and_says_so(tiny: Tiny) -> None:
    engine = HFEngine(settings(tiny))
    engine.sleep()
    assert sum(p.untyped_storage().nbytes() for p in engine._model.parameters()) == 0
    with pytest.raises(RuntimeError, match="weights are incomplete"):
        engine.generate([Request("1+1=", (0,))], GREEDY)


@pytest.mark.usefixtures("small_parts")
def test_weights_that_are_not_whole_are_not_committed(tiny: Tiny) -> None:
    engine, actor = HFEngine(settings(tiny)), policy(tiny)
    first, *others = actor.offer()
    engine.load(actor.stage(first))
    with pytest.raises(RuntimeError, match=r"version 1 came without model"):
        engine.commit(1)
    for part in others:
        engine.load(actor.stage(part))
    engine.commit(1)


class Stuck(LocalWorkerGroup[Any]):
    """A group in which one worker never answers one method."""

    def __init__(self, workers: list[Any], worker: int, method: str) -> None:
        super().__init__(workers)
        self._stuck = (worker, method)

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if (worker, method.__name__) == self._stuck:
            return Never()
        return super().send(worker, method, *args, **kwargs)


def two_groups(tiny: Tiny, role: str, number: int, method: str) -> dict[str, LocalWorkerGroup[Any]]:
    """A policy and two engines, one of which never answers one method."""
    workers: dict[str, list[Any]] = {
        "policy": [policy(tiny)],
        "engine": [HFEngine(settings(tiny)), HFEngine(settings(tiny))],
    }
    return {
        name: Stuck(some, number, method) if name == role else LocalWorkerGroup(some)
        for name, some in workers.items()
    }


BRIEF = replace(Patience(), start=0.1, part=0.1)


@pytest.mark.parametrize(
    ("number", "method", "said"),
    [
        (1, "node", "engine-1 .* did not answer within 0.1 s: weights of version 7"),
        (1, "load", "engine-1 .* did not answer within 0.1 s: weights of version 7, bucket 1"),
        (0, "commit", "engine-0 .* did not answer within 0.1 s: weights of version 7"),
        (1, "wake", "engine-1 .* did not answer within 0.1 s: waking its weights"),
    ],
)
def test_an_engine_that_does_not_answer_is_named_within_the_bound_and_the_run_goes_on_without_it(
    tiny: Tiny, number: int, method: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = two_groups(tiny, "engine", number, method)
    pool = EnginePool(groups["engine"], patience=BRIEF)
    begun = time.monotonic()
    update.update_weights(groups["policy"], pool, 7, wake=True)
    assert time.monotonic() - begun < 5
    assert pool.present == [1 - number]
    printed = capsys.readouterr().out
    assert re.search(said, printed)
    assert "The run goes on with 1 of 2 engines" in printed
    (written,) = pool.generate([[Request("12+34=", (0,))]], GREEDY)
    assert written[0].version == 7


class Frozen(Stuck):
    """The worker's process is stopped, so that it does not say either that it lives."""

    def alive(self, worker: int) -> Pending[None]:
        return Never() if worker == self._stuck[0] else super().alive(worker)


def test_an_engine_that_is_stopped_is_missed_by_its_silence_long_before_its_part_is_late(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (engine_pool, heartbeat):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    engines = [HFEngine(settings(tiny)), HFEngine(settings(tiny))]
    pool = EnginePool(Frozen(engines, 1, "load"), patience=Patience(part=600, life=0.3))
    update.update_weights(LocalWorkerGroup([policy(tiny)]), pool, 7)
    assert pool.present == [0]
    assert "engine-1 is lost (it did not answer for 0 s: weights of" in capsys.readouterr().out


def test_a_policy_that_does_not_answer_is_named_within_the_bound(tiny: Tiny) -> None:
    groups = two_groups(tiny, "policy", 0, "offer")
    pool = EnginePool(groups["engine"], patience=BRIEF)
    with pytest.raises(LostWorkerError, match=r"^the policy did not answer in time: weights"):
        update.update_weights(groups["policy"], pool, 7)
    assert pool.present == [0, 1]


def test_a_run_without_an_engine_ends_and_says_why(tiny: Tiny) -> None:
    stuck = Stuck([HFEngine(settings(tiny))], 0, "load")
    with pytest.raises(BeyondRepairError, match=r"^no engine is left: engine-0 did not answer"):
        update.update_weights(
            LocalWorkerGroup([policy(tiny)]), EnginePool(stuck, patience=BRIEF), 7
        )
