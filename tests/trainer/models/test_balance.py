"""The balancing loss of a mixture of experts: transformers' own, whatever the passes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from tests.support import architectures
from tests.support.learners import critic, experience, lora, settings
from tests.support.mixtures import write_mixture
from tests.support.objectives import policy_objective
from tests.support.ragged import learn, padded, scores
from tests.support.small_models import batch
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import CriticObjective
from trainer.config.options.algorithm import LossSettings
from trainer.models.balance import balance_of, balancing_loss
from trainer.models.causal_lm import LogProbModel, backbone_of
from trainer.models.settings import ModelSettings
from trainer.types import Sequences, UnfitModelError
from trainer.workers.critic import CriticActor
from trainer.workers.learner import LossBatch
from trainer.workers.policy import PolicyActor

COEFFICIENT = 0.3


@pytest.fixture(scope="module")
def mixture(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = write_mixture("qwen3_moe", tmp_path_factory.mktemp("mixture") / "model")
    return replace(tiny, model=path)


def trained(tiny: Tiny, coefficient: float, **changes: Any) -> PolicyActor:
    return PolicyActor(settings(tiny, **changes), policy_objective(aux_loss_coef=coefficient))


def spelled(model: Any, sequences: Sequences) -> Tensor:
    """Transformers' own loss of a padded pass. A sample's last token predicts nothing."""
    rows = padded(sequences.tokens, sequences)
    mask = np.arange(rows.shape[1] - 1) < sequences.lengths[:, None] - 1
    loss: Tensor = model(
        input_ids=torch.tensor(rows[:, :-1]).long(),
        attention_mask=torch.tensor(mask.astype(np.int64)),
        output_router_logits=True,
    ).aux_loss
    return loss


MIXTURES = [
    *("flex_olmo", "gpt_oss", "jamba", "jetmoe", "laguna", "minimax", "minimax_m2", "mixtral"),
    *("olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next"),
]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("packing", [False, True])
def test_the_loss_and_its_gradient_are_those_of_transformers(
    name: str, packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        architectures.ARCHITECTURES,
        name,
        architectures.ARCHITECTURES.get(name, architectures.EXPERTS),
    )
    model = architectures.model(name)
    sequences = batch([6, 3, 5], seed=1)
    expected = spelled(model, sequences)
    expected.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    wanted = ModelSettings(
        model="", mixed_precision=False, micro_batch_size=4, temperature=1.0, packing=packing
    )
    scorer = LogProbModel(model, torch.device("cpu"), wanted)
    balance = balance_of(backbone_of(model), COEFFICIENT, "policy")
    assert balance
    with balance.recorded():
        scorer(sequences)
    found = balance._loss
    assert found is not None
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert any("router" in n or "gate" in n for n in gradients)
    for part, parameter in model.named_parameters():
        if part in gradients:
            torch.testing.assert_close(parameter.grad, gradients[part], rtol=1e-4, atol=1e-6)


def test_padding_balances_nothing() -> None:
    torch.manual_seed(0)
    logits = tuple(torch.randn(12, 8) for _ in range(3))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    expected = load_balancing_loss_func(logits, 8, 2, mask)
    torch.testing.assert_close(balancing_loss(logits, 2, mask), expected)
    inside = [layer[mask.flatten().bool()] for layer in logits]
    torch.testing.assert_close(balancing_loss(inside, 2, None), expected)


def of_passes(actor: PolicyActor | CriticActor) -> list[LossBatch]:
    """What the actor learns from in its first update, pass by pass."""
    seen: list[LossBatch] = []
    loss: Callable[..., Any] = actor._loss

    def watched(run: Any, micro: LossBatch) -> Any:
        seen.append(micro)
        return loss(run, micro)

    actor._loss = watched  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("micro", [4, 3, 1])
def test_a_step_minimises_the_mean_of_its_passes_by_samples(mixture: Tiny, micro: int) -> None:
    """OpenRLHF's sum: each pass's loss x its samples x passes / samples, averaged over passes."""
    actor = trained(mixture, COEFFICIENT, micro_train_batch_size=micro)
    passes = of_passes(actor)
    model = trained(mixture, 0)._model
    (metrics, value) = learn(actor, experience(), 1), 0.0
    for one in passes:
        samples = len(one.experience.sequences)
        scale = samples * len(passes) / 4
        value += spelled(model, one.experience.sequences).item() * scale / len(passes)
    assert metrics["policy_aux_loss"] == pytest.approx(value, rel=1e-5)


def test_the_coefficient_weighs_the_loss(mixture: Tiny) -> None:
    actor = trained(mixture, COEFFICIENT, micro_train_batch_size=2)
    passes = of_passes(actor)
    learn(actor, experience(), 1)
    for micro in list(passes):
        loss = actor._loss(actor._engine._strategy.run, micro)
        policy_loss, kl, balance = (
            loss.metrics[name] for name in ("policy_loss", "kl_loss", "policy_aux_loss")
        )
        torch.testing.assert_close(
            loss.value.double(), policy_loss + 0.1 * kl + COEFFICIENT * balance
        )


@pytest.mark.parametrize("adapters", [False, True])
def test_recomputed_layers_count_once(mixture: Tiny, adapters: bool) -> None:
    changes = {"lora": lora()} if adapters else {}
    updated = []
    for recomputed in (False, True):
        actor = trained(mixture, COEFFICIENT, gradient_checkpointing=recomputed, **changes)
        metrics = learn(actor, experience(), 1)
        updated.append((metrics, [p.detach().clone() for p in actor._model.parameters()]))
    assert updated[0][0]["policy_aux_loss"] == pytest.approx(updated[1][0]["policy_aux_loss"])
    assert updated[0][0]["grad_norm"] == pytest.approx(updated[1][0]["grad_norm"], rel=1e-5)
    for one, other in zip(updated[0][1], updated[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_critic_of_experts_is_balanced_too(mixture: Tiny) -> None:
    objective = CriticObjective(LossSettings(value_clip=0.5, aux_loss_coef=COEFFICIENT))
    actor = CriticActor(settings(mixture), objective)
    expected = spelled(trained(mixture, 0)._model, experience().sequences)
    metrics = learn(actor, experience(), 1)
    assert metrics["critic_aux_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert "critic_aux_loss" not in learn(critic(mixture), experience(), 1)


def test_scoring_records_no_router(mixture: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = trained(mixture, COEFFICIENT)
    asked = []
    known = nn.Module.__call__

    def watched(module: nn.Module, *args: Any, **given: Any) -> Any:
        output = known(module, *args, **given)
        asked.append(getattr(output, "router_logits", None))
        return output

    monkeypatch.setattr(nn.Module, "__call__", watched)
    scores(actor, experience().sequences)
    assert asked
    assert not any(asked)


def test_a_dense_model_has_nothing_to_balance(tiny: Tiny) -> None:
    actor = trained(tiny, COEFFICIENT)
    assert "policy_aux_loss" not in learn(actor, experience(), 1)


@pytest.mark.parametrize("name", ["deepseek_v3", "llama4_text", "granitemoe"])
def test_a_mixture_that_transformers_does_not_balance_is_refused(name: str) -> None:
    model = architectures.model(name)
    with pytest.raises(UnfitModelError, match=rf"--aux_loss_coef 0.3: .* for a {name}"):
        balance_of(backbone_of(model), COEFFICIENT, "policy")
