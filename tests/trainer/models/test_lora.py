"""Adapters: what is trained, what engines and exports get, what a checkpoint holds."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.support.learners import (
    Build,
    copy,
    critic,
    difference,
    experience,
    largest_difference,
    lora,
    policy,
    weights_of,
)
from tests.support.ragged import learn, scores
from tests.support.small_models import COMMON
from tests.support.tiny_run import Tiny, of_the_samples
from trainer.config.options.training import LoRASettings
from trainer.models.lora import adapt, merged
from trainer.types import UnfitModelError


def test_an_adapted_policy_begins_as_the_model_and_moves_only_the_adapted_weights(
    tiny: Tiny,
) -> None:
    plain, adapted = policy(tiny), policy(tiny, lora=lora("q_proj", "down_proj"))
    before = copy(weights_of(adapted))
    assert largest_difference(before, weights_of(plain)) == 0
    learn(adapted, experience(), 1)
    after = weights_of(adapted)
    moved = {name for name in before if difference(after[name], before[name]) > 0}
    assert moved
    assert all(name.endswith(("q_proj.weight", "down_proj.weight")) for name in moved)


def test_engines_get_what_the_policy_computes_with(tiny: Tiny, tmp_path: Path) -> None:
    actor = policy(tiny, lora=lora())
    known = experience()
    before = scores(actor, known.sequences)
    learn(actor, known, 1)
    expected = scores(actor, known.sequences)
    assert np.abs(expected - before).max() > 1e-3
    actor.export(tmp_path / "hf")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    weights = dict(exported.named_parameters())
    assert {n: p.shape for n, p in weights.items()} == {
        name: array.shape for name, array in weights_of(actor).items()
    }
    for name, array in weights_of(actor).items():
        assert torch.equal(weights[name], torch.from_numpy(array))
    same = policy(Tiny(tmp_path / "hf", tiny.prompts, tiny.held_out))
    assert np.abs(scores(same, known.sequences) - expected).max() < 1e-5


@pytest.mark.parametrize("role", [policy, critic])
def test_a_checkpoint_holds_the_adapters_and_goes_on_to_the_bit(
    tiny: Tiny, tmp_path: Path, role: Build
) -> None:
    first, second = (role(tiny, lora=lora(), train_batch_size=2) for _ in range(2))
    learn(first, experience(), 1)
    first.snapshot(1)
    first.save(1, tmp_path)
    content = torch.load(next(tmp_path.glob("*.pt")), weights_only=True)["model"]
    assert all("lora" in name or "value_head" in name for name in content)
    second.restore(tmp_path)
    after = [of_the_samples(learn(one, experience(), 2)) for one in (first, second)]
    assert after[0] == after[1]


@pytest.mark.parametrize("role", [policy, critic])
def test_a_restored_model_drops_nothing_out_before_its_first_update(
    tiny: Tiny, tmp_path: Path, role: Build
) -> None:
    first, second = (role(tiny, lora=lora(dropout=0.5)) for _ in range(2))
    learn(first, experience(), 1)
    first.snapshot(1)
    first.save(1, tmp_path)
    second.restore(tmp_path)
    known = experience().sequences
    assert np.array_equal(scores(first, known), scores(second, known))


def test_a_module_among_others_that_is_not_there_is_warned_of(
    tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    policy(tiny, lora=lora("q_proj", "q_porj"))
    (record,) = caplog.records
    assert "--target_modules: the model has no q_porj, and nothing is adapted" in record.message


OTHER_LAYERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4},
    "falcon": {"num_kv_heads": 2, "head_dim": None},
    "mamba": {"state_size": 4},
    "llama4_text": {"intermediate_size_mlp": 24, "num_local_experts": 2},
}
"""Weights that are [in, out]; a subclass; a model that reads weights and does not call the layer; a
router that is linear by its class alone, and returns two results."""


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_a_model_with_other_linear_layers_is_adapted_and_merged(name: str) -> None:
    own = {key: value for key, value in (COMMON | OTHER_LAYERS[name]).items() if value is not None}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**own)
    adapted = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    plain, tokens = deepcopy(adapted), torch.arange(2, 14).reshape(2, 6)
    before = plain(input_ids=tokens).logits
    adapt(adapted, LoRASettings(rank=2, alpha=8), seed=0)
    assert adapted(input_ids=tokens).logits.equal(before)
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    for weight in trained:
        torch.nn.init.normal_(weight, std=0.3)
    after = adapted(input_ids=tokens).logits
    after.sum().backward()
    assert trained
    assert all(weight.grad is not None for weight in trained)
    assert (after - before).abs().max() > 1e-3
    plain.load_state_dict(merged(adapted, adapted.state_dict()), strict=False)
    assert (plain(input_ids=tokens).logits - after).abs().max() < 1e-9


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(UnfitModelError, match="--lora_rank: Headless has no linear layer to adapt"):
        adapt(Headless(), LoRASettings(rank=2), seed=0)


class Headless(torch.nn.Module):
    def get_output_embeddings(self) -> None:
        return None


def test_modules_that_are_not_there_are_named(tiny: Tiny) -> None:
    with pytest.raises(UnfitModelError, match=r"--target_modules wrong: .* down_proj.*all-linear"):
        policy(tiny, lora=lora("wrong"))
