"""`examples/ppo_by_hand.py` computes the trainer's own update, and learns."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.doc_pages import ALGORITHMS, with_lines
from tests.support.local_workers import LocalLauncher
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny
from trainer.algorithms import advantages, division
from trainer.algorithms.advantages import Rewards
from trainer.config.config import Config
from trainer.types import Completion
from trainer.workers import experience, groups
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Critic, Policy

EXAMPLE = ROOT / "examples" / "ppo_by_hand.py"
SAMPLES, LONGEST = 8, 12


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_by_hand", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ppo_by_hand"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has no bias of keys: its gradient is zero but for rounding, which Adam would make large."""
    path = tmp_path_factory.mktemp("model") / "llama"
    shape = TinyModel(architecture="llama", hidden_size=16, layers=2, heads=2, max_length=32)
    write_model(shape, "0123456789+=", path)
    return path


def config_of(tiny: Tiny, settings: Any, run: Path) -> Config:
    """The trainer's configuration with the example's settings as its flags."""
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return tiny.config(
        run,
        **given,
        advantage_estimator="gae",
        lr_scheduler="constant",
        lr_warmup_ratio=0,
        rollout_batch_size=SAMPLES,
        n_samples_per_prompt=1,
        micro_train_batch_size=2,
        generate_max_len=LONGEST,
    )


def completions() -> list[Completion]:
    """Of different lengths; one has tokens between two replies that the policy did not choose."""
    random, found = np.random.default_rng(3), []
    for number in range(SAMPLES):
        length = int(random.integers(5, LONGEST))
        acts = np.arange(length) >= 3
        acts[5:7] &= number > 0
        found.append(
            Completion(
                text="",
                tokens=random.integers(3, 15, length).astype(np.int32),
                action_mask=acts,
                log_probs=np.full(length, -1, dtype=np.float32),
                finished=True,
                versions=np.zeros(length, dtype=np.int32),
            )
        )
    return found


def train(workers: WorkerGroups, config: Config, rewards: np.ndarray[Any, Any], step: int) -> None:
    """One step of the trainer on the completions: what `trainer.training.loop` does with them."""
    divided = experience.divide(workers, completions(), config, step)
    forward = experience.start_forward(workers, divided, config)
    actions = forward.division.plan.actions
    scores = advantages.above_baseline(
        config.advantage, Rewards(whole=rewards), actions, config.n_samples_per_prompt
    )
    lesson = experience.make_lesson(workers, forward, scores, config, config.kl.init_coef)
    assert workers.critic
    workers.critic.call_ranks(Critic.update, *lesson.arguments(workers.critic), step).result()
    workers.policy.call_ranks(Policy.update, *lesson.arguments(workers.policy), step).result()


def weights(group: Any) -> dict[str, Tensor]:
    (actor,) = group._workers
    return {name: one.detach().clone() for name, one in actor._model.named_parameters()}


def batch_of(by_hand: ModuleType, written: list[Completion]) -> Any:
    lengths = [len(one.tokens) for one in written]
    tokens = torch.zeros(len(written), max(lengths), dtype=torch.int64)
    acts = torch.zeros(len(written), max(lengths), dtype=torch.bool)
    for row, one in enumerate(written):
        tokens[row, : lengths[row]] = torch.from_numpy(one.tokens)
        acts[row, : lengths[row]] = torch.from_numpy(one.action_mask)
    return by_hand.Batch(tokens, torch.tensor(lengths), acts[:, 1:])


def test_its_update_is_the_trainers(
    by_hand: ModuleType, tiny: Tiny, llama: Path, tmp_path: Path
) -> None:
    """Two steps of four updates each, in which clips, Adam's moments and the KL count."""
    settings = by_hand.Settings(
        temperature=0.7,
        train_batch_size=4,
        gamma=0.98,
        init_kl_coef=0.2,
        eps_clip=0.01,
        value_clip=0.02,
        l2=0.1,
        max_norm=0.5,
    )
    config = config_of(replace(tiny, model=llama), settings, tmp_path)
    workers = groups.assemble(config, 10, LocalLauncher())
    assert workers.critic
    before = weights(workers.policy), weights(workers.critic)
    policy = AutoModelForCausalLM.from_pretrained(llama)
    critic = by_hand.Critic(AutoModel.from_pretrained(llama))
    critic.load_state_dict(before[1])
    learner = by_hand.Learner.of(policy, critic, settings)
    for step in (1, 2):
        rewards = np.random.default_rng(step).normal(size=SAMPLES).astype(np.float32)
        train(workers, config, rewards, step)
        updates = division.mini_batches(SAMPLES, config.train, step)
        by_hand.ppo_step(
            learner,
            batch_of(by_hand, completions()),
            torch.from_numpy(rewards),
            [torch.from_numpy(rows) for rows in updates],
            settings,
        )
    trained = weights(workers.policy), weights(workers.critic)
    for model, expected, begun in zip((policy, critic), trained, before, strict=True):
        for name, found in model.named_parameters():
            assert (expected[name] - begun[name]).abs().max() > 1e-3
            torch.testing.assert_close(found.detach(), expected[name], rtol=0, atol=1e-6)


def test_the_page_links_its_functions_where_they_are() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    page = ALGORITHMS.read_text()
    assert with_lines(page) == page
    assert page.count("ppo_by_hand.py#L") == 11


def test_it_learns() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--max_steps", "12"],
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rewards = [float(one) for one in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 12
    assert rewards[-1] > 0.5 > rewards[0]
