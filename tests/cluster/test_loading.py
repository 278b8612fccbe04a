"""A model of which each rank is to hold a part is never whole on any of them, and is the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.benches import Benches
from tests.support.ragged import together
from tests.support.ranks import Workbench, experience, saved_in, settings
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.options.parallelism import Sharding
from trainer.types import FloatArray
from trainer.workers.settings import LearnerSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TINY = {
    "vocab_size": 20,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 40,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 2},
    "mixtral": {"num_local_experts": 3},
    "gemma2": {"head_dim": 12, "final_logit_softcapping": 3.0},
}


@dataclass(frozen=True, slots=True)
class Loaded:
    scores: FloatArray
    weights: dict[str, Any]
    held: list[float]
    """The share of the model that each rank has."""


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(request.param, tmp_path_factory.mktemp(request.param))


def written(kind: str, path: Path) -> Path:
    """Weights as they are stored: tied or not, in one file or several, experts one by one."""
    write_model(TinyModel(hidden_size=24, layers=1, heads=2), "0123456789+=", path)
    (path / "model.safetensors").unlink()
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **(TINY | MODELS[kind]))
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.save_pretrained(path, max_shard_size="20KB")
    return path


def loaded(
    bench: WorkerGroup[Workbench], role: str, made: LearnerSettings, directory: Path
) -> Loaded:
    bench.call_ranks(Workbench.build, role, made).result()
    scores = bench.call_ranks(Workbench.scores).result()
    directory.mkdir()
    if role != "reference":
        bench.call_ranks(Workbench.save, directory).result()
    return Loaded(
        together(scores, experience(0).sequences),
        saved_in(directory, role).model if role != "reference" else {},
        bench.call_ranks(Workbench.held).result(),
    )


@pytest.mark.parametrize(
    ("model", "mixed_precision"),
    [
        *(("qwen2", False), ("llama", True), ("gpt2", False), ("mixtral", True), ("gemma2", False)),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (
                *(("qwen2", True), ("llama", False), ("gpt2", True)),
                *(("mixtral", False), ("gemma2", True)),
            )
        ),
    ],
    indirect=["model"],
)
def test_a_policy_is_what_it_is_where_it_is_loaded_whole(
    benches: Benches, model: Path, tmp_path: Path, mixed_precision: bool
) -> None:
    same(benches, "policy", model, tmp_path, mixed_precision)


@pytest.mark.parametrize(
    ("role", "mixed_precision"),
    [
        *(("critic", True), ("reference", False)),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (("critic", False), ("reference", True))
        ),
    ],
)
def test_so_are_critic_and_reference(
    benches: Benches, tmp_path: Path, role: str, mixed_precision: bool
) -> None:
    same(benches, role, written("qwen2", tmp_path / "model"), tmp_path, mixed_precision)


def same(benches: Benches, role: str, model: Path, directory: Path, mixed_precision: bool) -> None:
    """Weights to the bit, which are stored in bf16; what comes of them up to rounding."""
    whole, split = (
        loaded(
            benches[count],
            role,
            settings(model, sharding, mixed_precision=mixed_precision),
            directory / str(count),
        )
        for count, sharding in ((1, Sharding()), (4, Sharding(zero_stage=3)))
    )
    assert split.weights.keys() == whole.weights.keys()
    for name, tensor in split.weights.items():
        expected = whole.weights[name]
        if mixed_precision:  # split weights are in bf16 then: a fresh value head is not yet
            expected = expected.bfloat16().float()
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
    np.testing.assert_allclose(split.scores, whole.scores, atol=0.05 if mixed_precision else 1e-5)
    assert max(split.held) < 0.3


@pytest.mark.faults
def test_loading_takes_a_part_of_the_memory(benches: Benches, tmp_path: Path) -> None:
    """Of a model of 120 MB on four ranks, against the same processes with a whole one each."""
    small, large = written("qwen2", tmp_path / "small"), tmp_path / "large"
    write_model(TinyModel(hidden_size=384, layers=16, heads=4), "0123456789+=", large)
    model = AutoModelForCausalLM.from_pretrained(large)
    whole = 4 * model.num_parameters()
    model.to(torch.bfloat16).save_pretrained(large)  # or the files themselves are the weights
    took = []
    for path, stage in ((small, 3), (large, 3), (large, 0)):  # with the first come the imports
        made = settings(path, Sharding(zero_stage=stage))
        watched = benches[4].call_ranks(Workbench.build_watched, "reference", made).result()
        took.append(max(watched))
    assert took[2] > 0.9 * whole
    assert took[1] < 0.8 * whole
