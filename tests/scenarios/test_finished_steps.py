"""A step is finished once it is held; until then it is in flight, and nobody is told of it.

The nodes' memory is a directory here; real holders are in `test_peers_on_ray`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest

from contract.progress import Progress
from env.data.prompts import PromptError
from env.types import RewardRequest, Score
from tests.support.remembered import LEAN, Remembered
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import Tiny, events, metric_rows, share_of, train
from trainer.checkpoint import replica_client, state
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import DriverState
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config
from trainer.workers.protocols import Learner

FLAGS = {**LEAN, "max_steps": 4, "save_steps": 9, "load_checkpoint": True}


@dataclass
class Remote(Remembered):
    """A step is on its way until `arrives` is set, at `slow`; `cut` is the one in which the driver
    ends, before it hears of the arrival or, with `lost`, before there is one."""

    slow: int | None = None
    arrives: Event = field(default_factory=Event)
    cut: int | None = None
    lost: bool = False
    failing: tuple[int, ...] = ()
    """Steps of which the nodes do not get all."""
    _step: int = 0
    _before: DriverState | None = None

    def replicate(self, driver: DriverState, learners: Mapping[str, WorkerGroup[Learner]]) -> None:
        self._step, self._before = driver.run.step, self.driver
        super().replicate(driver, learners)

    def wait(self) -> bool:
        if self._step == self.slow:
            assert self.arrives.wait(30)
        if self._step == self.cut:
            self.cut = None
            if self.lost:
                self.driver = self._before
            raise RuntimeError("the driver dies")
        return self._step not in self.failing


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    found = Remote(tmp_path / "memory")
    monkeypatch.setattr(
        replica_client, "load", lambda s, role: state.load(found.held(s.step), role)
    )
    return found


def steps_of(config: Config, kind: str) -> list[int]:
    return [event["details"]["step"] for event in events(config, kind)]


def test_a_step_is_told_when_it_is_held_while_the_next_one_is_made(
    tiny: Tiny, run_dir: Path, remote: Remote
) -> None:
    config, seen, calls = tiny.config(run_dir, **FLAGS), list[list[int]](), iter(range(1, 9))

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        if next(calls) == 3:
            seen.append(steps_of(config, "step"))
            remote.arrives.set()
        return share_of("1")(requests)

    remote.slow = 2
    train(config, reward, peers=remote)
    assert seen == [[1]], "the second is on its way while the third is made"
    assert steps_of(config, "step") == [1, 2, 3, 4]


def test_a_step_that_the_nodes_do_not_get_is_told_with_the_next_or_with_the_models(
    tiny: Tiny, run_dir: Path, remote: Remote
) -> None:
    config = tiny.config(run_dir, **FLAGS, disable_ds_ckpt=True)
    seen: list[tuple[bool, bool]] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        seen.append((2 in steps_of(config, "step"), remote.held(3).exists()))
        return share_of("1")(requests)

    remote.failing = (2, 4)
    train(config, reward, peers=remote)
    assert (True, False) not in seen, "the second is told before the third is on its way"
    assert steps_of(config, "step") == [1, 2, 3, 4]


@pytest.mark.parametrize("lost", [False, True])
def test_a_driver_that_ends_while_a_step_is_on_its_way_loses_none_that_was_told(
    tiny: Tiny, run_dir: Path, remote: Remote, *, lost: bool
) -> None:
    config = tiny.config(run_dir, **FLAGS)
    remote.cut, remote.lost = 3, lost
    with pytest.raises(RuntimeError, match="dies"):
        train(config, peers=remote)
    assert steps_of(config, "step") == [1, 2]
    train(config, peers=remote)
    assert steps_of(config, "resume") == [0, 2 if lost else 3]
    assert "no finished step is lost" in events(config, "resume")[-1]["sentence"]
    assert steps_of(config, "step-found") == ([] if lost else [3])
    assert steps_of(config, "step") == ([1, 2, 3, 4] if lost else [1, 2, 4])
    rewards = [row["step"] for row in metric_rows(config) if "train/reward" in row]
    assert rewards == [1, 2, 3, 4]
    undisturbed = tiny.config(run_dir.with_name("undisturbed"), **FLAGS)
    train(undisturbed)
    assert leaves_of(config, 4) == leaves_of(undisturbed, 4)


def dies_holding(config: Config, remote: Remote, step: int) -> None:
    """The driver ends before it hears that the nodes have all of that step."""
    remote.cut = step
    with pytest.raises(RuntimeError, match="dies"):
        train(config, peers=remote)
    on_disk = step % config.save_steps == 0
    assert steps_of(config, "step") == list(range(1, step + on_disk))


def test_other_prompts_are_refused_before_anything_is_said_to_be_found(
    tiny: Tiny, run_dir: Path, remote: Remote, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(whole := tiny.prompts.read_bytes())
    config = tiny.config(run_dir, **FLAGS, prompt_data=prompts)
    dies_holding(config, remote, 3)
    prompts.write_bytes(b"".join(whole.splitlines(keepends=True)[1:]))
    with pytest.raises(PromptError, match="belongs to other prompts"):
        train(config, peers=remote)
    assert steps_of(config, "step-found") == []
    assert steps_of(config, "restore") == []
    prompts.write_bytes(whole)
    train(config, peers=remote)
    assert steps_of(config, "step-found") == [3]
    assert steps_of(config, "step") == [1, 2, 4]


def test_a_step_that_was_found_finished_and_is_lost_since_is_said_to_be_done_again(
    tiny: Tiny, run_dir: Path, remote: Remote
) -> None:
    config = tiny.config(run_dir, **FLAGS)
    dies_holding(config, remote, 3)
    before = remote._before
    with pytest.raises(RuntimeError, match="the reward server dies"):
        train(config, never, peers=remote)
    assert steps_of(config, "step-found") == [3]
    remote.driver = before  # all nodes ended, and had written the step before
    train(config, peers=remote)
    assert steps_of(config, "resume") == [0, 3, 2]
    assert "; 1 step is repeated" in events(config, "resume")[-1]["sentence"]
    assert steps_of(config, "step") == [1, 2, 3, 4]


def never(requests: Sequence[RewardRequest]) -> list[Score]:
    raise RuntimeError("the reward server dies")


def test_what_nodes_hold_stays_until_the_step_that_is_named_is_restored(
    tiny: Tiny, run_dir: Path, remote: Remote
) -> None:
    flags = FLAGS | {"save_steps": 1, "max_ckpt_num": 9}
    dies_holding(tiny.config(run_dir, **flags), remote, 3)
    with pytest.raises(ResumeError, match="global_step_7 is not a complete checkpoint"):
        train(tiny.config(run_dir, **flags, load_step=7), peers=remote)
    with pytest.raises(ResumeError, match="--load_checkpoint"):
        train(tiny.config(run_dir, **flags | {"load_checkpoint": False}), peers=remote)
    assert remote.complete == 3
    config = tiny.config(run_dir, **flags, load_step=1)
    with pytest.raises(RuntimeError, match="the reward server dies"):
        train(config, never, peers=remote)
    assert steps_of(config, "restore") == [1]
    assert remote.complete is None


@pytest.mark.parametrize("shown", [1, 1000, None])
def test_what_is_lost_is_said_by_the_journal_and_by_what_is_held(
    tiny: Tiny, run_dir: Path, remote: Remote, shown: int | None
) -> None:
    """Whatever `progress.json` says: it may be a copy of another time, or damaged."""
    config = tiny.config(run_dir, **FLAGS)
    dies_holding(config, remote, 3)
    progress = Progress.read(config.files.progress)
    assert progress is not None
    if shown is None:
        config.files.progress.write_bytes(b"\xff")
    else:
        replace(progress, step=shown, checkpoint=shown).write(config.files.progress)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, never, peers=remote)
    assert steps_of(config, "resume") == [0, 3]
    assert "no finished step is lost" in events(config, "resume")[-1]["sentence"]
    assert steps_of(config, "progress-corrected") == ([3] if shown == 1000 else [])
    if shown == 1000:
        corrected = Progress.read(config.files.progress)
        assert corrected is not None
        assert (corrected.step, corrected.checkpoint) == (3, None)


def test_a_step_is_held_before_it_is_evaluated_and_its_evaluation_is_not_made_again(
    tiny: Tiny, run_dir: Path, remote: Remote
) -> None:
    flags = {**FLAGS, "eval_steps": 2, "eval_dataset": tiny.held_out}
    config, calls = tiny.config(run_dir, **flags), iter(range(1, 99))

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        call = next(calls)  # 1: before the first step; 4: after the second
        if call == 4:
            assert remote.driver is not None
            assert remote.driver.run.step == 2
        if call == 5:
            raise RuntimeError("the driver dies")
        return share_of("1")(requests)

    with pytest.raises(RuntimeError, match="dies"):
        train(config, reward, peers=remote)
    assert steps_of(config, "eval") == [0, 2]
    train(config, peers=remote)
    assert steps_of(config, "resume") == [0, 2]
    assert steps_of(config, "eval") == [0, 2, 4]
