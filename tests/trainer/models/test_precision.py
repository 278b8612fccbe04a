"""In bf16: what is exact, and how far the rest is from float64 on the same rounded numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.objectives import policy_objective
from tests.support.ragged import learn, mask_of, scores
from tests.support.ranks import experience, settings
from tests.support.small_models import batch, model
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import CriticObjective
from trainer.checkpoint import state
from trainer.config.options.algorithm import KLSettings, LossSettings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.models import bf16_matmul
from trainer.models.causal_lm import LogProbModel
from trainer.models.log_probs import Projection, token_log_probs
from trainer.models.settings import ModelSettings
from trainer.types import Rank
from trainer.workers.critic import CriticActor
from trainer.workers.policy import PolicyActor
from trainer.workers.reference import ReferenceActor
from trainer.workers.settings import LearnerSettings

TOKENS, VOCABULARY, HIDDEN = 32, 4096, 128
ADAPTERS = LoRASettings(rank=2, alpha=4, dropout=0.1, target_modules=("all-linear",))


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def of_float64(states: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    logits = states.double() @ weight.double().T
    return logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


def off(got: Tensor, expected: Tensor) -> float:
    """The error's norm as a share of what is right."""
    return float((got.double() - expected).norm() / expected.norm())


STATES, WEIGHT = drawn(TOKENS, HIDDEN, seed=0), drawn(VOCABULARY, HIDDEN, seed=1) / 8
CHOSEN = torch.arange(TOKENS) * 100


def elements(blocks: int) -> int:
    return VOCABULARY * max(TOKENS, HIDDEN) // blocks


@pytest.mark.parametrize("blocks", [1, 128])
def test_log_probabilities_of_bf16_states_are_made_in_fp32(blocks: int) -> None:
    got, _ = token_log_probs(
        STATES, CHOSEN, Projection(WEIGHT), 1.0, block_elements=elements(blocks)
    )
    assert (got - of_float64(STATES, WEIGHT, CHOSEN)).abs().max() < 1e-4


@pytest.mark.parametrize("blocks", [1, 128])
def test_the_gradient_to_the_layers_does_not_lose_by_blocks(blocks: int) -> None:
    """A result that is bf16 itself is off by 0.17 % where nothing else was rounded."""
    leaves = STATES.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    shares = torch.linspace(-1, 1, TOKENS)
    exact = torch.autograd.grad((of_float64(*leaves, CHOSEN) * shares).sum(), leaves)
    got, _ = token_log_probs(
        leaves[0], CHOSEN, Projection(leaves[1]), 1.0, block_elements=elements(blocks)
    )
    for mine, right in zip(torch.autograd.grad((got * shares).sum(), leaves), exact, strict=True):
        assert off(mine, right.double()) < 3e-3


def refuses(left: Tensor, right: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported")


def rounds(left: Tensor, right: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    return (left.float() @ right.float()).to(left.dtype).to(out_dtype)


def sums(left: Tensor, right: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    return left.to(out_dtype) @ right.to(out_dtype)


@pytest.mark.parametrize(
    ("rocm", "capability", "multiply", "expected"),
    [
        (None, (7, 5), sums, False),
        (None, (8, 0), sums, True),
        (None, (9, 0), sums, True),
        (None, (12, 0), refuses, False),
        ("7.0.51831", (9, 4), sums, True),
        ("7.0.51831", (9, 4), refuses, False),
        ("7.0.51831", (9, 4), rounds, False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_trial_says_whether_a_gpu_multiplies_halves_without_widening_them(
    rocm: str | None,
    capability: tuple[int, int],
    multiply: Any,
    expected: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch refuses it on AMD's GPUs up to 2.9; it would be wrong if it rounded the sums."""
    monkeypatch.setattr(torch.version, "hip", rocm)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch, "mm", multiply)
    bf16_matmul._multiplies.cache_clear()
    on_a_gpu: Any = SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cpu"))
    assert bf16_matmul.is_multiplied_as_it_is(on_a_gpu) is expected
    bf16_matmul._multiplies.cache_clear()


def test_a_head_that_is_left_to_the_model_is_in_fp32_too() -> None:
    of = model("llama", torch.bfloat16)
    of.lm_head.weight.data *= 50
    of.lm_head.register_forward_hook(lambda module, inputs, output: output + output.roll(1, -1))
    sequences = batch([7], 1)
    wanted = ModelSettings(model="", mixed_precision=True, micro_batch_size=4, temperature=1.0)
    got = scores(LogProbModel(of, torch.device("cpu"), wanted), sequences)[0, 1:]
    tokens = torch.from_numpy(sequences.tokens).long()[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        states = of.model(input_ids=tokens[:, :-1]).last_hidden_state[0]
    logits = states.double() @ of.lm_head.weight.double().T
    exact = (logits + logits.roll(1, -1)).log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    chosen = sequences.action_mask[1:]
    assert np.abs(got - exact.detach().numpy())[chosen].max() < 1e-4


@pytest.mark.parametrize("adapters", [LoRASettings(), ADAPTERS])
@pytest.mark.parametrize("mixed_precision", [False, True])
def test_a_policy_that_has_learnt_nothing_has_no_kl_to_its_reference(
    tiny: Tiny, adapters: LoRASettings, mixed_precision: bool
) -> None:
    made = settings(tiny.model, Sharding(), mixed_precision=mixed_precision, lora=adapters)
    sequences = experience(0).sequences
    reference = scores(ReferenceActor(made.model, made.sharding), sequences)
    assert np.array_equal(scores(policy(made), sequences), reference)
    assert reference[mask_of(sequences)].all()


def policy(made: LearnerSettings) -> PolicyActor:
    return PolicyActor(made, policy_objective(kl=KLSettings(estimator="k3")))


def bf16(tiny: Tiny, **changes: Any) -> LearnerSettings:
    return settings(tiny.model, Sharding(), mixed_precision=True, **changes)


def test_updates_too_small_for_bf16_add_up_in_the_masters(tiny: Tiny, tmp_path: Path) -> None:
    made = bf16(tiny)
    optimizer = replace(made.optimizer, learning_rate=1e-7, lr_scheduler="constant", l2=0.0)
    actor = policy(replace(made, optimizer=optimizer))
    before = saved(actor, 0, tmp_path)
    learn(actor, experience(1), 1)
    once = saved(actor, 1, tmp_path)
    learn(actor, experience(1), 2)
    twice = saved(actor, 2, tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    assert before[name].dtype is torch.float32
    first, second = (once[name] - before[name]).abs(), (twice[name] - before[name]).abs()
    assert first.max() > 0
    assert second.mean() > 1.5 * first.mean()


@pytest.mark.parametrize("stage", [0, 2])
def test_a_moving_average_is_one_of_the_masters(tiny: Tiny, tmp_path: Path, stage: int) -> None:
    """With all its weight on the newest, it is what the optimizer has, and not rounded to bf16."""
    average = {"enable_ema": True, "ema_beta": 0.0}
    made = settings(tiny.model, Sharding(zero_stage=stage), mixed_precision=True, **average)
    optimizer = replace(made.optimizer, learning_rate=1e-7, lr_scheduler="constant", l2=0.0)
    actor = policy(replace(made, optimizer=optimizer))
    before = saved(actor, 0, tmp_path)
    learn(actor, experience(1), 1)
    updated = saved(actor, 1, tmp_path)
    averaged = state.load(tmp_path / "1", "policy").average
    assert updated.keys() <= averaged.keys()
    assert any(not torch.equal(before[name], updated[name]) for name in updated)
    for name in updated:
        torch.testing.assert_close(averaged[name], updated[name], rtol=0, atol=0)


def test_what_a_bf16_policy_saved_it_goes_on_from(tiny: Tiny, tmp_path: Path) -> None:
    one, other = policy(bf16(tiny)), policy(bf16(tiny))
    learn(one, experience(1), 1)
    saved(one, 1, tmp_path)
    other.restore(tmp_path / "1")
    sequences = experience(0).sequences
    assert np.array_equal(scores(one, sequences), scores(other, sequences))
    for actor in (one, other):
        learn(actor, experience(2), 2)
    assert np.array_equal(scores(one, sequences), scores(other, sequences))


def saved(actor: PolicyActor, step: int, directory: Path) -> dict[str, Tensor]:
    (directory / str(step)).mkdir()
    actor.snapshot(step)
    actor.save(step, directory / str(step))
    return state.load(directory / str(step), "policy").model


def test_gradients_of_passes_add_up_in_fp32(tiny: Tiny) -> None:
    """Of 12 samples cut into 12 passes as of 12 in one, but for the rounding of each."""
    norms = [
        learn(
            policy(bf16(tiny, train_batch_size=12, micro_train_batch_size=size)), experience(1), 1
        )["grad_norm"]
        for size in (12, 1)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=5e-3)


def test_a_critic_in_bf16_says_its_values_in_fp32(tiny: Tiny) -> None:
    critic = CriticActor(bf16(tiny), CriticObjective(LossSettings(value_clip=0.5)), Rank())
    sequences = experience(0).sequences
    values = scores(critic, sequences)[mask_of(sequences)]
    rounded = torch.from_numpy(values).bfloat16().float().numpy()
    assert (values != rounded).mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_that_leaks_into_the_next_sample_is_never_packed(dtype: torch.dtype) -> None:
    """LFM2's short convolutions know nothing of samples that lie end to end."""
    of = model("lfm2", dtype)
    wanted = ModelSettings(
        model="", mixed_precision=dtype is torch.bfloat16, micro_batch_size=4, temperature=1.0
    )
    assert not LogProbModel(of, torch.device("cpu"), wanted).packed
    assert of.config._attn_implementation == "sdpa"


def test_a_trial_leaves_weights_as_they_were() -> None:
    of = model("llama", torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in of.state_dict().items()}
    wanted = ModelSettings(model="", mixed_precision=True, micro_batch_size=4, temperature=1.0)
    assert LogProbModel(of, torch.device("cpu"), wanted).packed
    after = of.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
