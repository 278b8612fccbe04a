"""An engine in bf16 has logits that are not further from the trainer's than they must be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.local_workers import LocalWorkerGroup
from tests.support.objectives import policy_objective
from tests.support.ragged import part_of
from tests.support.ranks import settings as learner
from tests.support.tiny_run import Tiny
from tests.support.vllm import SAMPLING, requests, settings
from trainer.config.options.parallelism import Sharding
from trainer.rollout.engine_pool import EnginePool
from trainer.types import Sequences
from trainer.weight_sync import update
from trainer.workers.policy import PolicyActor

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]

LOUD = 20.0
"""Factor of the logits, so that bf16 rounds them by as much as a trained model's."""


@pytest.fixture(scope="module")
def model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("vllm") / "model"
    write_model(TinyModel(hidden_size=64, layers=1, heads=2, max_length=256), "0123456789+=", path)
    written = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        written.base_model.norm.weight *= LOUD
    written.save_pretrained(path)
    return replace(tiny, model=path)


def mismatch(model: Tiny, head: str) -> tuple[float, float]:
    """Mean nats between an engine and the policy: with the files' weights, and with new ones."""
    from trainer.rollout.vllm_engine import VLLMEngine

    made = replace(settings(model, head_dtype=head), mixed_precision=True)
    engine = VLLMEngine(made)
    wanted = learner(model.model, Sharding(), mixed_precision=True)
    policy = PolicyActor(wanted, policy_objective())

    def apart() -> float:
        sequences = Sequences.collate(engine.generate(requests(*range(8)), SAMPLING))
        assert sequences.rollout_log_probs is not None
        (scored,) = policy.log_probs(part_of(sequences))
        return float(np.abs(scored - sequences.rollout_log_probs).mean())

    before = apart()
    update.update_weights(
        LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 1, wake=True
    )
    return before, apart()


def test_a_head_in_fp32_is_nearer_to_the_trainer_than_one_in_bf16(model: Tiny) -> None:
    for exact, rounded in zip(mismatch(model, "fp32"), mismatch(model, "bf16"), strict=True):
        assert 0 < exact < 0.7 * rounded
