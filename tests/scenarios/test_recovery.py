"""A process of any role dies at any of its calls; the run ends with the weights of one undisturbed.

Here a process is an object, which dies in that its call raises what Ray's death raises; what is
started anew is another object. Real processes are killed in `test_repair_on_ray`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_workers import LocalLauncher, LocalWorkerGroup
from tests.support.lost_calls import Dead
from tests.support.ranks import flip_one
from tests.support.saved_states import leaves_of
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny, events, metric_rows, rollouts_have_ended, share_of
from trainer.checkpoint import resume
from trainer.cluster.stop import StopRequest
from trainer.cluster.worker_group import Pending, WorkerGroup, build
from trainer.config.config import Config
from trainer.config.reward_models import combination
from trainer.metrics.recorder import Stopwatch
from trainer.rollout import dispatcher
from trainer.rollout import prompts as data
from trainer.rollout.rewards import ModelReward
from trainer.training import loop, recovery
from trainer.training.inputs import TrainingInputs
from trainer.types import BeyondRepairError, CorruptedRankError, LostWorkerError, Metrics, Place
from trainer.workers import groups
from trainer.workers.experience import Lesson

STEPS = 4


@dataclass
class Death:
    """At the n-th call of a method, from 1."""

    role: str
    method: str
    call: int
    times: int = 1

    def strikes(self, role: str, method: str) -> bool:
        if (role, method) != (self.role, self.method) or not self.times:
            return False
        self.call -= 1
        if self.call > 0:
            return False
        self.times -= 1
        return True


class Mortal(LocalWorkerGroup[Any]):
    def __init__(self, role: str, actor: str, count: int, args: tuple[Any, ...], death: Death):
        super().__init__([build(actor, args) for _ in range(count)])
        self._role, self._actor, self._args, self._death = role, actor, args, death

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if self._death.strikes(self._role, method.__name__):
            self._workers[worker] = None
        if self._workers[worker] is None:
            sentence = f"{self._role}-{worker} is lost: it died"
            return Dead(LostWorkerError(sentence, self._role, "it died"))
        return super().send(worker, method, *args, **kwargs)

    def restart(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._workers[worker] = build(self._actor, self._args)


class Corruptible(Mortal):
    """Does not die: a bit of its memory flips before the call."""

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if self._death.strikes(self._role, method.__name__):
            flip_one(self._workers[worker]._engine._strategy, "moments")
        try:
            return LocalWorkerGroup.send(self, worker, method, *args, **kwargs)
        except CorruptedRankError as error:
            return Dead(error.at(Place("worker-1", "node worker-1, process 7")))


class Neighbours(Mortal):
    """The first death is that of its node, with all models that are there; engines are not."""

    def __init__(self, role: str, *args: Any) -> None:
        super().__init__(role, *args)
        self._there = role != "engine"

    def send(self, worker: int, method: Any, *args: Any, **kwargs: Any) -> Pending[Any]:
        if self.node_lost(worker):
            self._workers[worker] = None
        return super().send(worker, method, *args, **kwargs)

    def node_lost(self, worker: int) -> bool:
        return self._there and not self._death.times

    def restart(self, workers: Sequence[int]) -> None:
        super().restart(workers)
        self._there = False


class MortalLauncher(LocalLauncher):
    def __init__(self, death: Death, kind: type[Mortal] = Mortal) -> None:
        self._death, self._kind = death, kind

    def launch(self, role: str, actor: str, count: int, *args: Any) -> WorkerGroup[Any]:
        return self._kind(role, actor, count, args, self._death)


def configure(tiny: Tiny, run: Path, **flags: Any) -> Config:
    given = {
        "max_steps": STEPS,
        "save_steps": 1,
        "vllm_num_engines": 2,
        "normalize_reward": True,
        "kl_target": 1e-3,
        "kl_horizon": 32,
    }
    return tiny.config(run, enable_ema=True, **given | flags)


def run(config: Config, death: Death, kind: type[Mortal] = Mortal) -> None:
    config.files.root.mkdir(parents=True)
    prompts = data.load(config)
    workers = groups.assemble(
        config, config.total_steps(len(prompts.stream)), MortalLauncher(death, kind)
    )
    models = workers.reward and ModelReward(workers.reward, combination(config.reward_combine))
    inputs = TrainingInputs(prompts, models or share_of("1"))
    loop.train(config, workers, inputs, StopRequest())


NEVER = Death("nobody", "", 0)


@pytest.fixture(scope="module")
def undisturbed(forgetful: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    config = configure(forgetful, tmp_path_factory.mktemp("undisturbed") / "run")
    run(config, NEVER)
    return leaves_of(config, STEPS)


MORE = pytest.mark.learning
"""Beside the most telling ones: each is a whole run."""


@pytest.mark.parametrize(
    ("role", "method", "call", "event"),
    [
        ("critic", "update", 3, "rank-replaced"),
        ("policy", "stage", 3, "rank-replaced"),
        ("engine", "generate", 4, "engine-replaced"),
        pytest.param("policy", "update", 3, "rank-replaced", marks=MORE),
        pytest.param("policy", "update", 1, "rank-replaced", marks=MORE),
        pytest.param("critic", "values", 2, "rank-replaced", marks=MORE),
        pytest.param("reference", "log_probs", 3, "rank-replaced", marks=MORE),
        pytest.param("engine", "load", 4, "engine-replaced", marks=MORE),
        pytest.param("engine", "commit", 1, "engine-replaced", marks=MORE),
    ],
)
def test_whoever_dies_the_run_ends_as_if_nobody_had(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    role: str,
    method: str,
    call: int,
    event: str,
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death(role, method, call))
    assert leaves_of(config, STEPS) == undisturbed
    assert len(events(config, event)) == 1
    assert [e["details"]["step"] for e in events(config, "step")] == [1, 2, 3, 4]
    assert len(events(config, "resume")) == 1


@pytest.mark.parametrize(
    ("role", "method", "call", "restarted"),
    [
        ("policy", "update", 3, "policy, critic and reference"),
        pytest.param("reference", "log_probs", 3, "reference, policy and critic", marks=MORE),
        pytest.param("critic", "update", 1, "policy, critic and reference", marks=MORE),
    ],
)
def test_all_models_of_a_lost_node_restart_at_once(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    role: str,
    method: str,
    call: int,
    restarted: str,
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death(role, method, call), Neighbours)
    assert leaves_of(config, STEPS) == undisturbed
    (repaired,) = events(config, "rank-replaced")
    assert f": {restarted} restarted, and " in repaired["sentence"]
    assert [e["details"]["step"] for e in events(config, "step")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("role", "method", "call"),
    [("critic", "values", 2), pytest.param("engine", "generate", 4, marks=MORE)],
)
def test_engines_that_sleep_change_nothing_of_that(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    role: str,
    method: str,
    call: int,
) -> None:
    config = configure(forgetful, run_dir, vllm_enable_sleep=True)
    run(config, Death(role, method, call))
    assert leaves_of(config, STEPS) == undisturbed


@MORE
def test_all_engines_that_die_at_once_are_waited_for(
    forgetful: Tiny, run_dir: Path, undisturbed: dict[str, bytes]
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death("engine", "generate", 3, times=2))
    assert leaves_of(config, STEPS) == undisturbed
    assert len(events(config, "engine-replaced")) == 2


@pytest.mark.parametrize(
    ("role", "call", "made"),
    [
        ("policy", 3, [1, 2, 3, 3, 4]),
        pytest.param("critic", 3, [1, 2, 3, 3, 4], marks=MORE),
        pytest.param("policy", 1, [1, 1, 2, 3, 4], marks=MORE),
        pytest.param("policy", 4, [1, 2, 3, 4, 4], marks=MORE),
    ],
)
def test_a_rank_that_dies_between_the_end_of_a_step_and_its_copy_costs_that_step_alone(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    role: str,
    call: int,
    made: list[int],
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death(role, "snapshot", call))
    assert leaves_of(config, STEPS) == undisturbed
    assert [e["details"]["step"] for e in events(config, "step")] == made
    assert [row["step"] for row in metric_rows(config) if "train/reward" in row] == [1, 2, 3, 4]
    (repaired,) = events(config, "rank-replaced")
    assert (repaired["details"]["step"], repaired["details"]["finished"]) == (call - 1, call)


@MORE
def test_where_nothing_is_held_the_run_begins_again_in_the_same_attempt(
    forgetful: Tiny, run_dir: Path, undisturbed: dict[str, bytes]
) -> None:
    config = configure(forgetful, run_dir, save_steps=STEPS)
    run(config, Death("policy", "update", 3))
    assert leaves_of(config, STEPS) == undisturbed
    assert [e["details"]["step"] for e in events(config, "step")] == [1, 2, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("role", "method", "call", "made"),
    [
        ("policy", "update", 3, [1, 2, 3, 4]),
        ("critic", "snapshot", 3, [1, 2, 3, 3, 4]),
        pytest.param("critic", "update", 2, [1, 2, 3, 4], marks=MORE),
    ],
)
def test_a_bit_that_flips_in_a_ranks_memory_is_told_and_changes_no_weight_of_the_run(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    role: str,
    method: str,
    call: int,
    made: list[int],
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death(role, method, call), Corruptible)
    assert leaves_of(config, STEPS) == undisturbed
    (repaired,) = events(config, "rank-replaced")
    assert (
        f"{role}-0, node worker-1, process 7: its memory changed weights or optimizer state"
        in repaired["sentence"]
    )
    assert [e["details"]["step"] for e in events(config, "step")] == made


def test_wrong_bits_on_the_same_node_a_second_time_end_the_attempt_and_name_the_node(
    forgetful: Tiny, run_dir: Path
) -> None:
    """The launcher evicts it: the rank's own line has the address."""
    config = configure(forgetful, run_dir)
    with pytest.raises(BeyondRepairError, match=r"second time on node worker-1$"):
        run(config, Death("critic", "snapshot", 3, times=2), Corruptible)
    assert len(events(config, "rank-replaced")) == 1


def vanish(shard: Path) -> None:
    shard.unlink()


def shorten(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("save_steps", "spoil", "made"),
    [
        (1, vanish, [1, 2, 2, 3, 4]),
        pytest.param(1, shorten, [1, 2, 2, 3, 4], marks=MORE),
        (2, vanish, [1, 2, 1, 2, 3, 4]),
    ],
    ids=["gone", "too short", "gone from the only checkpoint"],
)
def test_a_shard_that_is_lost_while_it_is_restored_costs_that_checkpoint_alone(
    forgetful: Tiny,
    run_dir: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    save_steps: int,
    spoil: Callable[[Path], None],
    made: list[int],
) -> None:
    """The critic's is lost, after the policy has been restored."""
    restore, spoiled = resume.restore_learners, list[Path]()

    def restored(learners: Any, source: Any) -> None:
        if not spoiled:
            spoil(source / "critic.pt")
            spoiled.append(source)
        restore(learners, source)

    monkeypatch.setattr(recovery, "restore_learners", restored)
    config = configure(forgetful, run_dir, save_steps=save_steps)
    run(config, Death("policy", "update", 3))
    assert [e["details"]["step"] for e in events(config, "step")] == made
    assert leaves_of(config, STEPS) == undisturbed
    assert len(events(config, "rank-replaced")) == 1
    assert spoiled


def test_an_error_of_a_restore_from_whole_files_ends_the_attempt(
    forgetful: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(learners: Any, source: Any) -> None:
        raise OSError("no room in memory")

    monkeypatch.setattr(recovery, "restore_learners", fail)
    with pytest.raises(OSError, match="no room"):
        run(configure(forgetful, run_dir), Death("policy", "update", 3))


def test_a_rank_that_dies_after_each_step_is_given_up_though_steps_are_finished(
    forgetful: Tiny, run_dir: Path
) -> None:
    config = configure(forgetful, run_dir)
    with pytest.raises(BeyondRepairError, match=r"3 times without a new step.*policy-0 is lost"):
        run(config, Death("policy", "snapshot", 2, times=9))
    assert [e["details"]["step"] for e in events(config, "step")] == [1, 2, 2, 2, 2]


@MORE
def test_a_policy_that_dies_as_the_final_model_is_written_is_replaced_and_writes_it(
    forgetful: Tiny, run_dir: Path
) -> None:
    config = configure(forgetful, run_dir)
    run(config, Death("policy", "export", 1))
    assert (config.exported / "config.json").exists()
    assert len(events(config, "rank-replaced")) == 1


@MORE
def test_a_rank_that_dies_at_each_try_is_given_up(forgetful: Tiny, run_dir: Path) -> None:
    config = configure(forgetful, run_dir)
    with pytest.raises(BeyondRepairError, match=r"3 times without a new step.*policy-0 is lost"):
        run(config, Death("policy", "update", 3, times=9))
    assert len(events(config, "rank-replaced")) == 3


@pytest.mark.parametrize(
    ("call", "finished"), [(1, 0), (2, 2)], ids=["in the wait for samples", "beside an update"]
)
def test_a_reward_process_that_dies_while_rollouts_run_ahead_has_no_update_made_twice(
    forgetful: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, call: int, finished: int
) -> None:
    # All that is begun is written in one slice: which samples meet in a step hangs on no clock.
    monkeypatch.setattr(dispatcher, "SLICE", 60.0)
    judge = write_reward_model(run_dir.with_name("judge"), "0123456789+=")
    flags = {"async_train": True, "remote_rm_url": None, "reward_pretrain": judge}
    alone = configure(forgetful, run_dir.with_name("alone"), **flags)
    run(alone, NEVER)
    update, updated = loop._Run._update, list[int]()

    def noting(run: loop._Run, lesson: Lesson, step: int, watch: Stopwatch) -> Metrics:
        metrics = update(run, lesson, step, watch)
        if step == finished and step not in updated:
            rollouts_have_ended()  # they have met the death
        updated.append(step)
        return metrics

    monkeypatch.setattr(loop._Run, "_update", noting)
    config = configure(forgetful, run_dir, **flags)
    run(config, Death("reward", "score", call))
    assert updated == [1, 2, 3, 4]
    assert leaves_of(config, STEPS) == leaves_of(alone, STEPS)
    (repaired,) = events(config, "rank-replaced")
    assert (repaired["details"]["role"], repaired["details"]["step"]) == ("reward", finished)
    assert len(events(config, "resume")) == 1


def test_what_newer_weights_began_is_not_written_by_those_of_a_step_that_is_done_again(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be too old in each step that has room for it: the run ended of it with 70."""
    monkeypatch.setattr(dispatcher, "SLICE", 0.0)  # one token at a time: some are always under way
    config = configure(
        tiny,
        run_dir,
        advantage_estimator="group_norm",
        init_kl_coef=0,
        kl_target=None,
        async_train=True,
        max_staleness=2,
        partial_rollout=True,
        generate_max_len=12,
        micro_rollout_batch_size=1,
        max_steps=9,
        save_steps=3,
        vllm_num_engines=1,
    )
    run(config, Death("policy", "update", 6))
    assert [e["details"]["step"] for e in events(config, "step")] == [1, 2, 3, 4, 5, *range(4, 10)]
    assert max(row["train/staleness_max"] for row in metric_rows(config)) == 2
