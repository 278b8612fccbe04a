"""The policy's weights to engines: in parts, from actor to actor, and never waited for in vain."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.trainer.harness import Tiny
from tests.trainer.test_engine import settings
from tests.trainer.test_learning import experience, policy
from trainer import publish, weights
from trainer.actors.group import LocalGroup, Pending
from trainer.engines.base import Request
from trainer.engines.hf import HFEngine
from trainer.publish import Patience
from trainer.types import Sampling, TrainingError

GREEDY = Sampling(max_new_tokens=8).greedy()


class Elsewhere(HFEngine):
    """An engine on another node: what is shared here, it cannot map."""

    def node(self) -> str:
        return "elsewhere"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART_BYTES", 4096)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sleeping", [False, True])
def test_every_engine_writes_with_the_newest_weights_wherever_it_runs(
    tiny: Tiny, sleeping: bool
) -> None:
    actor = policy(tiny)
    engines = [HFEngine(settings(tiny)), Elsewhere(settings(tiny))]
    before = engines[0].generate([Request("12+34=", (0,))], GREEDY)[0]
    actor.update(experience(), step=1)
    if sleeping:
        publish.sleep(LocalGroup(engines))
    publish.weights(LocalGroup([actor]), LocalGroup(engines), 3, wake=sleeping)
    for engine in engines:
        loaded = {name: p.detach().numpy() for name, p in engine._model.named_parameters()}
        assert all(np.array_equal(loaded[n], array) for n, array in actor.weights().items())
        after = engine.generate([Request("12+34=", (0,))], GREEDY)[0]
        assert (before.version, after.version) == (0, 3)


def test_a_sleeping_engine_holds_no_weights_and_says_so(tiny: Tiny) -> None:
    engine = HFEngine(settings(tiny))
    engine.sleep()
    assert sum(p.untyped_storage().nbytes() for p in engine._model.parameters()) == 0
    with pytest.raises(RuntimeError, match="no whole weights"):
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


class Never:
    """The outcome of a call that a stopped process was asked for."""

    handle = None

    def result(self) -> None:
        raise AssertionError("nobody waits for it without an end")

    def ready(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


class Stuck(LocalGroup[Any]):
    """A group in which one worker never answers one method."""

    def __init__(self, workers: list[Any], worker: int, method: str) -> None:
        super().__init__(workers)
        self._stuck = (worker, method)

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if (worker, method.__name__) == self._stuck:
            return Never()
        return super().send(worker, method, *args, **kwargs)


@pytest.mark.parametrize(
    ("role", "number", "method", "said"),
    [
        ("engine", 1, "node", "engine-1 did not answer within 0.1 s: starting"),
        ("engine", 1, "load", "engine-1 did not answer within 0.1 s: weights of version 7, part 1"),
        ("engine", 0, "commit", "engine-0 did not answer within 0.1 s: weights of version 7"),
        ("engine", 1, "wake", "engine-1 did not answer within 0.1 s: waking its weights"),
        ("policy", 0, "offer", "policy-0 did not answer within 0.1 s: weights of version 7"),
    ],
)
def test_who_does_not_answer_is_named_within_the_bound(
    tiny: Tiny, role: str, number: int, method: str, said: str
) -> None:
    workers: dict[str, list[Any]] = {
        "policy": [policy(tiny)],
        "engine": [HFEngine(settings(tiny)), HFEngine(settings(tiny))],
    }
    groups = {
        name: Stuck(some, number, method) if name == role else LocalGroup(some)
        for name, some in workers.items()
    }
    patience = replace(Patience(), start=0.1, part=0.1)
    begun = time.monotonic()
    with pytest.raises(TrainingError, match=f"^{said}"):
        publish.weights(groups["policy"], groups["engine"], 7, wake=True, patience=patience)
    assert time.monotonic() - begun < 5
