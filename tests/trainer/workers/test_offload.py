"""What is computed with for a while only leaves nothing in a GPU's memory meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

from env.types import RewardRequest
from tests.support.engines import settings as engine_settings
from tests.support.learners import experience, policy, settings
from tests.support.local_workers import LocalWorkerGroup
from tests.support.objectives import policy_objective
from tests.support.ragged import learn, scores
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import CriticObjective
from trainer.checkpoint.state import MOMENTS
from trainer.config.options.algorithm import LossSettings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.models import lora
from trainer.models.gpu_memory import HostCopies
from trainer.models.loading import on_device
from trainer.models.settings import RewardSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.weight_sync import update
from trainer.workers import critic as critic_module
from trainer.workers import policy as policy_module
from trainer.workers.critic import CriticActor
from trainer.workers.ddp import Replicated
from trainer.workers.policy import PolicyActor
from trainer.workers.reference import ReferenceActor
from trainer.workers.reward import RewardActor
from trainer.workers.settings import LearnerSettings

ADAPTERS = LoRASettings(rank=2, alpha=4, dropout=0.0, target_modules=("all-linear",))


def places_of(strategy: Replicated) -> dict[str, int]:
    """Where a learner's weights and moments are."""
    weights = {
        f"{label} {name}": weight.data_ptr()
        for label, module in (("model", strategy._model), ("masters", strategy._updated))
        for name, weight in module.named_parameters()
    }
    moments = {
        f"{name} {key}": held[key].data_ptr()
        for name, held in strategy._optimizer.moments(strategy._updated).items()
        for key in MOMENTS
    }
    return weights | moments


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each time that torch was told to give the GPU memory that it keeps back."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("given back"))
    return calls


@pytest.mark.parametrize("offload", [True, False])
def test_a_reference_that_is_offloaded_gives_its_memory_back_after_each_pass(
    tiny: Tiny, given_back: list[str], offload: bool
) -> None:
    model = replace(settings(tiny).model, offload=offload)
    actor = ReferenceActor(model, Sharding())
    assert len(given_back) == offload, "it waits for its first samples in the CPU's memory"
    for _ in range(2):
        scores(actor, experience().sequences)
    assert len(given_back) == 3 * offload


def test_a_frozen_model_is_copied_to_the_device_and_never_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy in this process's memory stands for the one on a GPU."""
    norm = nn.BatchNorm1d(3)
    model = nn.ModuleList([norm, norm])
    before = {name: (one.data_ptr(), one.tolist()) for name, one in model.state_dict().items()}
    copied: list[torch.device] = []

    def to(tensor: Tensor, device: torch.device, *_: Any, **options: Any) -> Tensor:
        copied.append(device)
        return tensor.clone()

    monkeypatch.setattr(Tensor, "to", to)
    with torch.inference_mode(), on_device(model, torch.device("cpu")):
        there = {name: one.data_ptr() for name, one in model.state_dict().items()}
    assert len(copied) == len([*norm.parameters(), *norm.buffers()])
    for name, one in model.state_dict().items():
        place, numbers = before[name]
        assert there[name] != place
        assert (one.data_ptr(), one.tolist()) == (place, numbers)


@pytest.mark.parametrize("offload", [True, False])
def test_reward_models_that_are_offloaded_give_their_memory_back_after_each_pass(
    tmp_path: Path, given_back: list[str], offload: bool
) -> None:
    judge = write_reward_model(tmp_path, "0123456789+=")
    actor = RewardActor(
        RewardSettings(
            models=(str(judge), str(judge)),
            mixed_precision=False,
            micro_batch_size=4,
            offload=offload,
        )
    )
    actor.score([RewardRequest("1+1=2", "1+1=")])
    assert len(given_back) == 2 * offload, "each of the two models"


@pytest.mark.parametrize("shares", [True, False])
def test_a_policy_beside_engines_gives_its_memory_back_after_each_pass(
    tiny: Tiny, given_back: list[str], shares: bool
) -> None:
    plain = settings(tiny)
    shared = replace(plain, model=replace(plain.model, shares_gpu=shares))
    actor = PolicyActor(shared, policy_objective())
    assert bool(given_back) == shares, "engines write before its first pass"
    for call in (
        lambda: scores(actor, experience().sequences),
        lambda: learn(actor, experience(), 1),
        actor.withdraw,
    ):
        given_back.clear()
        call()
        assert bool(given_back) == shares


@pytest.mark.parametrize("changes", [{}, {"lora": ADAPTERS}, {"mixed": True}])
def test_a_learner_sleeps_in_the_same_memory_each_time_and_learns_the_same(
    tiny: Tiny, changes: dict[str, Any]
) -> None:
    """It goes the way here that it goes on a GPU, though nothing gets far."""

    def learner() -> PolicyActor:
        given = dict(changes)
        mixed = given.pop("mixed", False)
        plain = settings(tiny, **given)
        model = replace(plain.model, mixed_precision=mixed)
        return PolicyActor(replace(plain, model=model), policy_objective())

    awake, sleeper = learner(), learner()
    strategy = sleeper._engine._strategy
    assert isinstance(strategy, Replicated)
    strategy._sleeps = True
    asleep: list[dict[str, int]] = []
    for step in (1, 2, 3):
        said, expected = (learn(actor, experience(), step) for actor in (sleeper, awake))
        assert said["policy_loss"] == expected["policy_loss"]
        asleep.append(places_of(strategy))
        with sleeper._engine.onloaded():
            there = places_of(strategy)
        assert [name for name in there if there[name] == asleep[-1][name]] == []
    assert asleep[1] == asleep[2], "no new memory at each sleep"
    for one, other in zip(awake._model.parameters(), sleeper._model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_frozen_weight_that_sleeps_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host, weight = HostCopies(), torch.ones(3)
    first = host.down("weight", weight, frozen=True)
    assert first.data_ptr() != weight.data_ptr()
    monkeypatch.setattr(Tensor, "copy_", lambda *_: pytest.fail("it is there already"))
    assert host.down("weight", weight, frozen=True) is first


@pytest.mark.parametrize(
    ("stage", "mixed", "average", "rounds"),
    [
        *[(1, True, False, True), (2, True, False, True)],
        *[(0, True, False, False), (3, True, False, False)],
        *[(2, False, False, False), (2, True, True, False)],
    ],
)
def test_weights_that_deepspeed_rounds_are_rounded_before_they_are_on_the_gpu(
    tiny: Tiny, stage: int, mixed: bool, average: bool, rounds: bool
) -> None:
    plain = settings(tiny, enable_ema=average, sharding=Sharding(zero_stage=stage))
    model = replace(plain.model, mixed_precision=mixed)
    assert replace(plain, model=model).rounds_at_load == rounds


@pytest.mark.parametrize("role", [policy_module, critic_module])
def test_weights_that_are_rounded_are_read_rounded(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, role: Any
) -> None:
    """In fp32 each of eight ranks of a node would hold 30 GB of a 7B model while it loads."""
    read = []
    name = "load_causal_lm" if role is policy_module else "load_backbone"

    def load(model: str, dtype: torch.dtype, *_: Any, **__: Any) -> NoReturn:
        read.append(dtype)
        raise RuntimeError("read")

    def start(made: LearnerSettings) -> None:
        if role is policy_module:
            PolicyActor(made, policy_objective())
        CriticActor(made, CriticObjective(LossSettings()))

    monkeypatch.setattr(role, name, load)
    for stage, mixed in ((0, True), (1, True), (2, True), (2, False)):
        plain = settings(tiny, sharding=Sharding(zero_stage=stage))
        made = replace(plain, model=replace(plain.model, mixed_precision=mixed))
        with pytest.raises(RuntimeError, match="read"):
            start(made)
    assert read == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]


def test_a_policy_holds_nothing_that_it_has_given_to_the_engines(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Tensor]] = []
    merge = lora.merged

    def merged(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = merge(model, tensors)
        made.extend(weakref.ref(tensor) for tensor in found.values())
        return found

    monkeypatch.setattr(lora, "merged", merged)
    adapters = LoRASettings(rank=2, alpha=4, dropout=0.0, target_modules=("all-linear",))
    actor = policy(tiny, lora=adapters)
    pool = EnginePool(LocalWorkerGroup([HFEngine(engine_settings(tiny))]))
    for version in (1, 2):
        update.update_weights(LocalWorkerGroup([actor]), pool, version)
    assert made
    assert not [one for one in made if one() is not None]
