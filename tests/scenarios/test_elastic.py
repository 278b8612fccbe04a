"""A worker that is lost is waited for, done without, and taken in again: nothing is lost by it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.progress import Progress
from contract.resources import NodeResources
from entrypoint.job.failures.classes import (
    AttemptResult,
    ScaleUp,
    classify,
)
from entrypoint.job.failures.policy import Grow, History, decide, with_fewer
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.recipes.builtin.recipe import RECIPE
from entrypoint.net import wait
from entrypoint.run.failure_classes import FailureClass
from tests.support.builtin_settings import settings_of
from tests.support.world import DIED, FINISHED, STOPPED, Act, World, ends
from trainer.config.parse import parse


@pytest.mark.parametrize(
    ("present", "minimum", "waited", "shrinks"),
    [
        (2, 1, 999.0, False),  # all are there
        (1, 1, 299.0, False),  # still waited for
        (1, 1, 300.0, True),
        (1, 2, 999.0, False),  # too few ever to go on
        (0, 0, 300.0, True),  # the head alone
    ],
)
def test_with_fewer_workers_it_goes_on_once_they_were_waited_for(
    present: int, minimum: int, waited: float, shrinks: bool
) -> None:
    decision = with_fewer(present, 2, minimum, waited=waited, patience=300.0)
    assert (decision is not None) is shrinks


def test_an_attempt_that_was_ended_to_grow_is_no_failure() -> None:
    result = AttemptResult(status="STOPPED", exit_code=143, cause=ScaleUp("b joined"))
    assert classify(result) is FailureClass.SCALED_UP
    finished = AttemptResult(status="SUCCEEDED", cause=ScaleUp("b joined"))
    assert classify(finished) is FailureClass.FINISHED
    lost = AttemptResult(status="FAILED", cause=ScaleUp("b joined"), lost_nodes=("a has left",))
    assert classify(lost) is FailureClass.NODE_LOST
    decision = decide(FailureClass.SCALED_UP, History(0, 1, 3), 45)
    assert isinstance(decision, Grow)
    assert decision.sentence == (
        "every worker is there again: resuming from step 45 with all of them"
    )


pytestmark = pytest.mark.usefixtures("no_pauses")


def loses(worker: str, then: Act) -> Act:
    def act(world: World) -> JobInfo:
        with world.control._registry._lock:
            world.control._registry._entries[worker].hung_up = True
        world.nodes.discard("127.0.0.4")
        return then(world)

    return act


def two_workers(root: Path, *acts: Act, **env: str) -> World:
    """A head that goes on with one of its two workers half a second after the other is lost."""
    given = {"ROLLCALL_REPLACE_TIMEOUT": "0.5s", **env}
    world = World(root, *acts, workers=2, minimum=1, **given)
    world.later(0.05, lambda: world.check_in("a", "127.0.0.3"))
    world.later(0.05, lambda: world.check_in("b", "127.0.0.4"))
    return world


def present(world: World) -> list[list[str]]:
    return [roll["details"]["present"] for roll in world.journal.events("roll")]


def test_a_lost_worker_is_waited_for_then_the_run_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait, "SAY_AFTER_SECONDS", (0.1, 60.0))
    caplog.set_level(logging.INFO)
    world = two_workers(tmp_path, loses("b", ends(DIED, at_step=5)), ends(FINISHED, at_step=9))
    began = time.monotonic()
    assert world.lives().name == "finished"
    assert time.monotonic() - began > 0.5
    assert present(world) == [["a", "b"], ["a"]]
    answers = [event["details"]["answer"] for event in world.journal.events("decision")]
    assert answers == ["resume", "shrink"]
    assert "1 of 2 workers are there after" in world.sentences("decision")[1]
    assert "; after 0.5 s (ROLLCALL_REPLACE_TIMEOUT) the run goes on so (" in caplog.text


def test_a_worker_that_is_back_in_time_is_one_of_the_next_attempt(tmp_path: Path) -> None:
    def back_soon(world: World) -> JobInfo:
        world.later(0.2, lambda: world.check_in("b", "127.0.0.4"))
        return ends(DIED, at_step=5)(world)

    in_time = {"ROLLCALL_REPLACE_TIMEOUT": "10s"}
    world = two_workers(tmp_path, loses("b", back_soon), ends(FINISHED), **in_time)
    assert world.lives().name == "finished"
    assert present(world) == [["a", "b"], ["a", "b"]]


def test_where_fewer_are_not_allowed_a_lost_worker_is_waited_for_until_the_deadline(
    tmp_path: Path,
) -> None:
    world = two_workers(tmp_path, loses("b", ends(DIED)), ROLLCALL_ROLL_TIMEOUT="3s")
    world.rendezvous.minimum = 2
    assert "b has been silent" in world.lives().sentence
    assert len(world.jobs.submitted) == 1


def test_a_failure_while_a_worker_is_lacking_is_not_taken_for_its_loss_nor_waits_for_it_again(
    tmp_path: Path,
) -> None:
    acts = (loses("b", ends(DIED, at_step=5)), ends(DIED, at_step=6), ends(FINISHED))
    world = two_workers(tmp_path, *acts, ROLLCALL_REPLACE_TIMEOUT="0.8s")
    assert world.lives().name == "finished"
    classes = [event["details"]["failure"] for event in world.journal.events("failure")]
    assert classes == ["node_lost", "unknown"]
    answers = [event["details"]["answer"] for event in world.journal.events("decision")]
    assert answers == ["resume", "shrink", "resume"]


def steps(world: World, step: int, *, saved: int) -> None:
    Progress(
        step=step,
        total_steps=100,
        samples=step,
        attempt=2,
        reward=0.0,
        reward_first=0.0,
        checkpoint=saved,
    ).write(world.run.progress)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_late_worker_is_taken_in_at_the_next_checkpoint_and_not_before(tmp_path: Path) -> None:
    stopped_before_it_saved: list[bool] = []

    def goes_on_alone(world: World) -> JobInfo:
        steps(world, 6, saved=5)
        time.sleep(0.8)
        world.check_in("b", "127.0.0.4")
        steps(world, 7, saved=5)
        until(lambda: "b" in world.control.roll().present)
        stopped_before_it_saved.append(world.jobs.stopped.wait(2.0))
        steps(world, 10, saved=10)
        assert world.jobs.stopped.wait(10)
        return ends(STOPPED, at_step=11)(world)

    world = two_workers(
        tmp_path, loses("b", ends(DIED, at_step=5)), goes_on_alone, ends(FINISHED, at_step=20)
    )
    assert world.lives().name == "finished"
    assert stopped_before_it_saved == [False]
    assert present(world) == [["a", "b"], ["a"], ["a", "b"]]
    assert len(world.sentences("failure")) == 1
    assert world.sentences("stop") == ["b joined: asking the job to save and to stop"]
    assert world.sentences("decision")[-1].startswith("every worker is there again: resuming from")
    assert world.jobs.submitted[-1]["ROLLCALL_RESUME_FROM"] == "11"


COLOCATED = (
    *("--colocate_all_models", "--actor_num_nodes", "4", "--actor_num_gpus_per_node", "8"),
    *("--vllm_num_engines", "16", "--vllm_tensor_parallel_size", "2"),
)
APART = (
    *("--colocate_actor_ref", "--actor_num_nodes", "2", "--actor_num_gpus_per_node", "8"),
    *("--critic_num_nodes", "1", "--critic_num_gpus_per_node", "8"),
    *("--vllm_num_engines", "4", "--vllm_tensor_parallel_size", "2"),
)


@pytest.mark.parametrize(
    ("job", "nodes", "policy", "engines"),
    [
        (COLOCATED, 4, 4, 16),
        (COLOCATED, 3, 3, 12),  # engines share slots
        (COLOCATED, 1, 1, 4),
        (APART, 4, 2, 4),
        (APART, 3, 1, 4),
    ],
)
def test_the_job_is_given_the_largest_layout_that_fits_and_its_batches_stay(
    tmp_path: Path, job: tuple[str, ...], nodes: int, policy: int, engines: int
) -> None:
    settings = settings_of(tmp_path, *job)
    offers = [NodeResources(name=f"n{number}", gpus=8, cpus=64) for number in range(nodes)]
    fitted = RECIPE.fitted(settings, offers)
    assert RECIPE.placed(fitted, offers).lacking == ()
    commands = (RECIPE.command(one, None).argv for one in (settings, fitted))
    asked, given = (parse(argv[argv.index("trainer") + 1 :]) for argv in commands)
    assert (given.actor_num_nodes, given.vllm_num_engines) == (policy, engines)
    assert given.train.train_batch_size == asked.train.train_batch_size
    assert given.train.micro_train_batch_size == asked.train.micro_train_batch_size
    assert given.policy_ranks == 8 * policy


def test_a_job_that_no_layout_makes_fit_stays_as_it_is_and_says_what_it_lacks(
    tmp_path: Path,
) -> None:
    settings = settings_of(tmp_path, *COLOCATED)
    offers = [NodeResources(name="n0", gpus=4, cpus=64)]
    assert RECIPE.fitted(settings, offers) == settings
    assert RECIPE.placed(settings, offers).lacking
