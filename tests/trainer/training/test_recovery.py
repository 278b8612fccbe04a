"""What is done about a lost process: who starts anew, who goes back, and when it is given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.progress import Phase, PhaseFile
from tests.support.engines import settings
from tests.support.learners import policy
from tests.support.local_workers import LocalWorkerGroup
from tests.support.lost_calls import Dead
from tests.support.tiny_run import Tiny
from trainer.cluster.restarts import Patience, WorkerRestartBudget
from trainer.cluster.worker_group import Pending
from trainer.config.options.checkpoints import MOST_REPAIRS
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import (
    BeyondRepairError,
    EngineFailedError,
    LostWorkerError,
    NoRoomError,
    Request,
)
from trainer.weight_sync import update


def test_without_a_budget_the_first_loss_ends_the_attempt() -> None:
    with pytest.raises(BeyondRepairError, match=r"policy-0 is lost: it died.*--max_repairs 0"):
        WorkerRestartBudget(0).use("policy", LostWorkerError("policy-0 is lost: it died", "policy"))


def test_what_breaks_again_and_again_is_given_up_unless_steps_are_finished_meanwhile() -> None:
    budget, loss = WorkerRestartBudget(), LostWorkerError("policy-0 is lost: it died", "policy")
    for _ in range(MOST_REPAIRS):
        budget.use("policy", loss)
    budget.use("critic", loss)
    with pytest.raises(BeyondRepairError, match=r"3 times without a new step.*policy-0 is lost"):
        budget.use("policy", loss)
    budget.step_finished(1)
    for _ in range(MOST_REPAIRS):
        budget.use("policy", loss)
    budget.step_finished(1)
    with pytest.raises(BeyondRepairError, match="3 times without a new step"):
        budget.use("policy", loss)


class Mortal(LocalWorkerGroup[Any]):
    """Engines of which some die when they generate; in their place come new ones."""

    def __init__(self, tiny: Tiny, count: int, dying: Sequence[int], error: Exception) -> None:
        super().__init__([HFEngine(settings(tiny)) for _ in range(count)])
        self._tiny, self._dying, self._error = tiny, list(dying), error
        self.renewed: list[int] = []
        self.places = count
        """How many nodes have one for an engine."""
        self.starting: set[int] = set()

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if method.__name__ == "generate" and worker in self._dying:
            self._dying.remove(worker)
            return Dead(self._error)
        return super().send(worker, method, *args, **kwargs)

    def try_reserve(self, worker: int) -> bool:
        return self.places == len(self)

    def has_started(self, worker: int, seconds: float) -> bool:
        return worker not in self.starting

    def restart(self, workers: Sequence[int]) -> None:
        if self.places < len(self):
            raise NoRoomError("no living node has 1 GPU free")
        self.renewed += workers
        for worker in workers:
            self._workers[worker] = HFEngine(settings(self._tiny))


SAMPLING = SamplingSettings(max_new_tokens=8)
SHARES = [[Request(f"{n}+{m}=", (n, m)) for m in range(2)] for n in range(3)]


@pytest.mark.parametrize(
    "error",
    [LostWorkerError("engine-1 is lost", "engine", "it died"), EngineFailedError("CUDA error")],
)
def test_the_share_of_a_lost_engine_is_written_by_the_others_the_same_to_the_bit(
    tiny: Tiny, error: Exception
) -> None:
    actor = LocalWorkerGroup([policy(tiny)])
    told: list[tuple[str, dict[str, Any]]] = []
    pools = [
        EnginePool(
            Mortal(tiny, 3, dying, error),
            tell=lambda kind, sentence, **more: told.append((kind, more)),
        )
        for dying in ([], [1])
    ]
    texts = []
    for pool in pools:
        update.update_weights(actor, pool, 1)
        written = pool.generate(SHARES, SAMPLING)
        texts.append([(c.text, c.log_probs.tobytes()) for share in written for c in share])
    assert texts[0] == texts[1]
    assert pools[1].present == [0, 2], "a new engine has no weights yet"
    update.update_weights(actor, pools[1], 2)
    assert pools[1].present == [0, 1, 2]
    (event,) = told
    assert event[0] == "engine-replaced"
    assert (event[1]["engine"], event[1]["samples"]) == (1, 4)


def test_an_engine_that_was_left_out_is_taken_back_once_there_is_a_place_and_nobody_waits(
    tiny: Tiny,
) -> None:
    actor, told = LocalWorkerGroup([policy(tiny)]), list[tuple[str, dict[str, Any]]]()
    group = Mortal(tiny, 3, [1], LostWorkerError("engine-1 is lost", "engine", "it died"))
    pool = EnginePool(group, tell=lambda kind, sentence, **more: told.append((kind, more)))
    update.update_weights(actor, pool, 1)
    group.places = 2
    pool.generate(SHARES, SAMPLING)
    update.update_weights(actor, pool, 2)
    assert (pool.present, pool.shares) == ([0, 2], 2)
    assert told.pop() == ("engine-left-out", {"engine": 1, "engines": 2})

    group.places = 3
    group.starting.add(1)
    update.update_weights(actor, pool, 3)
    assert (pool.present, pool.shares) == ([0, 2], 2), "it loads its model"
    group.starting.clear()
    update.update_weights(actor, pool, 4)
    assert (pool.present, pool.shares) == ([0, 1, 2], 3)
    assert group.renewed == [1]
    ((kind, details),) = told
    assert (kind, details["engine"], details["engines"]) == ("engine-returned", 1, 3)
    assert {one.version for share in pool.generate(SHARES, SAMPLING) for one in share} == {4}


class Silent:
    """The outcome of a call that is never answered."""

    handle = None

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def ready(self, seconds: float) -> bool:
        self._waits.append(seconds)
        time.sleep(seconds)
        return False

    def result(self) -> Any:
        raise AssertionError("nobody may wait for it")


def test_engines_that_do_not_answer_are_waited_for_together(tiny: Tiny) -> None:
    group = Mortal(tiny, 3, [], LostWorkerError("it is lost", "engine"))
    pool = EnginePool(group)
    update.update_weights(LocalWorkerGroup([policy(tiny)]), pool, 1)
    waits: list[float] = []
    asked: dict[int, Pending[Any]] = {engine: Silent(waits) for engine in range(3)}
    assert pool.answers(asked, 0.3, "saying where they are") == {}
    assert sum(waits) <= 0.3
    assert group.renewed == [0, 1, 2]


def test_it_is_said_before_all_wait_for_an_engine_to_start(tiny: Tiny, tmp_path: Path) -> None:
    group = Mortal(tiny, 1, [0], LostWorkerError("it is lost", "engine"))
    said = list[Phase]()

    class Noted(PhaseFile):
        def write(self, phase: Phase) -> None:
            said.append(phase)
            group.starting.clear()

    patience = Patience(restart_eagerly=False)
    pool = EnginePool(group, phase=Noted(tmp_path / ".phase"), patience=patience)
    actor = LocalWorkerGroup([policy(tiny)])
    update.update_weights(actor, pool, 1)
    with pytest.raises(LostWorkerError):
        pool.generate(SHARES, SAMPLING)
    assert said == []
    group.starting.add(0)
    update.update_weights(actor, pool, 1)
    assert [(phase.step, phase.done) for phase in said] == [(2, "repair")]


def test_where_no_engine_is_left_the_step_must_wait_for_new_ones(tiny: Tiny) -> None:
    group = Mortal(tiny, 2, [0, 1], LostWorkerError("it is lost", "engine"))
    pool = EnginePool(group, patience=Patience(restart_eagerly=False))
    actor = LocalWorkerGroup([policy(tiny)])
    update.update_weights(actor, pool, 1)
    with pytest.raises(LostWorkerError, match="no engine is left"):
        pool.generate(SHARES, SAMPLING)
    assert group.renewed == [], "its slot is another's until weights are due"
    update.update_weights(actor, pool, 1)
    assert group.renewed == [0, 1]
    assert len(pool.generate(SHARES, SAMPLING)) == 3
