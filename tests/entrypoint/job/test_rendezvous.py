"""What comes of a worker that is lost, or comes back, in the moment in which the roll is judged."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from contract.resources import NodeResources
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.settings import Settings
from entrypoint.job.failures.outcome import UnplaceableError
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.base import PlacedJob
from entrypoint.job.recipes.builtin.recipe import RECIPE, Builtin
from entrypoint.job.recipes.search_r1 import recipe as search_r1
from tests.support import qwen
from tests.support.builtin_settings import settings_of
from tests.support.world import World

ADDRESSES = {"a": "127.0.0.3", "b": "127.0.0.4"}
BACK_AFTER_SECONDS = 0.5
ELASTIC = (
    *("--colocate_all_models", "--actor_num_nodes", "2", "--actor_num_gpus_per_node", "8"),
    *("--vllm_num_engines", "8", "--vllm_tensor_parallel_size", "2"),
)
LONG = ("--generate_max_len", "16384")
SMALL = (
    *("--colocate_actor_ref", "--actor_num_nodes", "1", "--actor_num_gpus_per_node", "8"),
    *("--critic_num_nodes", "1", "--critic_num_gpus_per_node", "4"),
    *("--vllm_num_engines", "1", "--vllm_tensor_parallel_size", "2"),
)


class Nodes(World):
    """A head without GPUs and two workers with 8 each, both of which are expected and needed."""

    def __init__(self, root: Path, job: Sequence[str]) -> None:
        super().__init__(root, workers=2, minimum=2)
        self.context.settings = settings_of(root, *job)
        self.context.recipe = RECIPE
        self.leaves_when_ray_is_asked = False
        for name in ADDRESSES:
            self.comes(name)

    def comes(self, name: str, gpus: int = 8) -> None:
        inventory = {"gpus": gpus, "cpus": 64}
        info = NodeInfo(
            node=name, address=ADDRESSES[name], versions={}, inventory=inventory, joined=True
        )
        self.control._registry.check_in(info, "")
        self.nodes.add(info.address)

    def hangs_up(self, name: str) -> None:
        """It is back soon; Ray has not seen that it was gone."""
        entry = self.control._registry.poll_opened(name)
        assert entry is not None
        self.control._registry.poll_closed(entry, hung_up=True)
        threading.Timer(BACK_AFTER_SECONDS, self.comes, [name]).start()

    def alive(self) -> set[str]:
        if self.leaves_when_ray_is_asked:
            self.leaves_when_ray_is_asked = False
            self.hangs_up("b")
        return super().alive()

    def rolls(self) -> list[list[str]]:
        return [roll["details"]["present"] for roll in self.journal.events("roll")]


@pytest.mark.parametrize(
    "job",
    [ELASTIC, SMALL],
    ids=["which one could hold alone", "which one could not"],
)
def test_a_worker_that_hangs_up_while_ray_is_asked_is_waited_for(
    tmp_path: Path, job: tuple[str, ...]
) -> None:
    nodes = Nodes(tmp_path, job)
    nodes.leaves_when_ray_is_asked = True
    assert nodes.rendezvous.complete() is None
    assert nodes.rolls() == [["a", "b"]]
    given = nodes.context.settings.job
    assert nodes.rendezvous.job.job[: len(given)] == given
    assert "num_nodes" not in " ".join(nodes.rendezvous.job.job[len(given) :])
    assert nodes.rendezvous.present == ("a", "b")


class Meanwhile(Builtin):
    """While the roll of the nodes is judged for the first time, a worker leaves."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        self._nodes: Nodes | None = nodes

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        if self._nodes is not None:
            self._nodes.hangs_up("b")
            self._nodes = None
        return super().placed(settings, nodes)


def test_without_layout_flags_all_gpus_get_work_and_the_journal_says_why(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ["--advantage_estimator", "reinforce"])
    assert nodes.rendezvous.complete() is None
    job = " ".join(nodes.rendezvous.job.job)
    assert "--actor_num_nodes 2 --actor_num_gpus_per_node 8 --vllm_num_engines 16" in job
    assert "--param_dtype bf16" in job
    (event,) = nodes.journal.events("layout")
    assert event["sentence"].startswith("chosen for these nodes: --colocate_all_models true")
    assert "all models and engines share the GPUs" in event["sentence"]
    assert nodes.control.state()["idle"] == ""
    nodes.rendezvous.complete()
    assert len([*nodes.journal.events("layout")]) == 1  # nothing has changed


def test_a_later_head_keeps_the_layout_until_the_nodes_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is known by its name at first, and has another size once its files are there."""
    job = ["--", "--advantage_estimator", "reinforce", "--pretrain", "owner/model-0.5B"]
    first = Nodes(tmp_path, job)
    first.rendezvous.complete()
    seen = first.rendezvous.job.job
    qwen.cache(tmp_path / "hub", "owner/model-0.5B", "7B")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    going_on = (*job, "--load_checkpoint", "true", "--load_step", "0")
    second = Nodes(tmp_path, going_on)
    second.rendezvous.complete()
    assert (
        second.rendezvous.job.job[len(second.context.settings.job) :]
        == (seen[len(first.context.settings.job) :])
    )
    third = Nodes(tmp_path, going_on)
    third.comes("b", gpus=4)
    third.rendezvous.complete()
    assert third.rendezvous.job.job[-len(seen) :] != seen
    *_, told = third.journal.events("layout")
    assert told["sentence"].startswith("chosen again, because the nodes or the flags have changed")


def test_gpus_that_the_flags_leave_out_are_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, SMALL)
    assert nodes.rendezvous.complete() is None
    (event,) = nodes.journal.events("layout")
    assert event["details"]["idle"] == "2 of 16 GPUs have no work"
    assert nodes.control.state()["idle"] in event["sentence"]


def test_savings_that_a_layout_by_flags_gets_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path, ["--", *SMALL, *LONG, "--pretrain", "owner/model-7B"])
    nodes.rendezvous.complete()
    nodes.rendezvous.complete()
    event, _ = nodes.journal.events("layout-warning")  # the other is of the single row of prompts
    assert "gets --gradient_checkpointing true" in event["sentence"]
    (line,) = [row for row in caplog.records if row.message == event["sentence"]]
    assert line.levelname == "WARNING"


def test_warnings_of_a_job_without_a_told_layout_are_told_once(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, SMALL)
    words = (sys.executable, "train.py", "a.b=1")
    nodes.context.settings = replace(nodes.context.settings, recipe="search-r1", job=words)
    nodes.context.recipe = search_r1.RECIPE
    nodes.rendezvous.complete()
    nodes.rendezvous.complete()
    told = [event["sentence"] for event in nodes.journal.events("layout-warning")]
    assert told.count(search_r1.WEIGHTS_ALONE) == 1
    assert nodes.rendezvous.job.job[-1] == "trainer.n_gpus_per_node=8"


SFT = "sft --pretrain o/m --dataset o/d --zpg 2 --save_steps -1"
VERL = f"{sys.executable} -m verl.trainer.main_ppo trainer.save_freq=-1"
PLACED = "trainer.nnodes=1 trainer.n_gpus_per_node=8"


@pytest.mark.parametrize(
    ("recipe", "job", "told"),
    [
        ("torchrun", "torchrun --nnodes 2 train.py", ["torchrun --nnodes 2: no effect here"]),
        ("supervised", SFT, ["--zpg has no effect", "--save_steps -1: without"]),
        ("trl", "trl sft --save_strategy no", ["--save_strategy no: without checkpoints"]),
        (
            "trl",
            "accelerate launch --num_machines 2 train.py",
            ["accelerate launch --num_machines 2"],
        ),
        (
            "verl",
            f"{VERL} {PLACED}",
            ["the job uses 8 of 16 GPUs", "trainer.save_freq=-1: without checkpoints"],
        ),
        ("verl", VERL, ["trainer.save_freq=-1: without checkpoints"]),
        (
            "builtin",
            "--micro_rollout_batch_size 9999",
            ["--micro_rollout_batch_size 9999 is more", "--prompt_data has 1 row"],
        ),
    ],
)
def test_the_warnings_of_every_recipe_are_in_the_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, job: str, told: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    nodes = Nodes(tmp_path, ["--advantage_estimator", "reinforce"])
    words = (*nodes.context.settings.job, *job.split()) if recipe == "builtin" else job.split()
    nodes.context.settings = replace(nodes.context.settings, recipe=recipe, job=tuple(words))
    nodes.context.recipe = recipes.load(recipe)
    nodes.rendezvous.complete()
    nodes.rendezvous.complete()
    found = [event["sentence"] for event in nodes.journal.events("layout-warning")]
    assert len(found) == len(told)
    assert all(sentence.startswith(words) for sentence, words in zip(found, told, strict=True))


def test_a_job_is_judged_by_nodes_that_are_there(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ELASTIC)
    nodes.comes("b", gpus=4)
    with pytest.raises(UnplaceableError):
        nodes.rendezvous.complete()
    nodes.context.recipe = Meanwhile(nodes)
    assert nodes.rendezvous.complete() is None
    assert nodes.rolls() == [["a", "b"]] * 3
