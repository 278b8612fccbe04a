"""Mixtures of experts in vLLM: each new version of the weights, and not a mix with the old ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.learners import policy as build
from tests.support.local_workers import LocalWorkerGroup
from tests.support.mixtures import MIXTURES, write_mixture
from tests.support.tiny_run import Tiny
from tests.support.vllm import SAMPLING, requests, settings, worst
from trainer.rollout.engine_pool import EnginePool
from trainer.types import TrainingError
from trainer.weight_sync import update

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]

TOLERANCE = 1e-4
"""Nats, of one token's log-probability in fp32."""


@pytest.fixture(scope="module", autouse=True)
def no_groups() -> None:
    """A dense model before in this process has made no group for experts: make all anew."""
    from vllm.distributed.parallel_state import destroy_model_parallel

    destroy_model_parallel()


def test_layers_whose_new_weights_vllm_does_not_find_end_the_run_by_name(
    tiny: Tiny, tmp_path: Path
) -> None:
    """A shared expert that the trainer's Qwen3-MoE does not have, and vLLM's makes of a field."""
    from trainer.rollout.vllm_engine import VLLMEngine

    path = write_mixture("qwen3_moe", tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    config["shared_expert_intermediate_size"] = 32
    (path / "config.json").write_text(json.dumps(config))
    model = replace(tiny, model=path)
    engine, policy = VLLMEngine(settings(model)), build(model)
    with pytest.raises(TrainingError, match=r"no new weights for \d+ of its layers.*shared_expert"):
        update.update_weights(
            LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), 1, wake=True
        )
    engine._llm.finish_weight_update("1")  # vLLM's engines of a process share some layers


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_of_experts_answers_with_each_new_version(
    tiny: Tiny, tmp_path: Path, kind: str
) -> None:
    from trainer.rollout.vllm_engine import VLLMEngine

    model = replace(tiny, model=write_mixture(kind, tmp_path / "model"))
    engine, policy = VLLMEngine(settings(model)), build(model)
    assert worst(policy, engine.generate(requests(1, 2), SAMPLING)) < TOLERANCE
    generator = torch.Generator().manual_seed(1)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in policy._model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        update.update_weights(
            LocalWorkerGroup([policy]), EnginePool(LocalWorkerGroup([engine])), version, wake=True
        )
        after = engine.generate(requests(1, 2), SAMPLING)
        assert {completion.version for completion in after} == {version}
        assert worst(policy, after) < TOLERANCE
