"""Training one model: what its update depends on, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.learners import (
    Build,
    copy,
    critic,
    experience,
    largest_difference,
    policy,
    sequences,
    weights_of,
)
from tests.support.ragged import learn, mask_of, padded, part_of, scores
from tests.support.tiny_run import Tiny, of_the_samples
from trainer.algorithms.estimates import Worth
from trainer.config.options.algorithm import AdvantageSettings, KLSettings
from trainer.types import Sequences, TrainingError, places


def test_log_probs_are_those_of_the_sampled_distribution_for_each_action(tiny: Tiny) -> None:
    actor, batch = policy(tiny), sequences()
    got = scores(actor, batch)
    model = actor._model.double()
    rows, mask = padded(batch.tokens, batch), mask_of(batch)
    for row, length in enumerate(batch.lengths):
        tokens = torch.tensor(rows[row : row + 1, :length]).long()
        with torch.no_grad():
            full = (model(input_ids=tokens).logits[0] / 0.7).log_softmax(-1)
        for t in range(9):
            chosen = full[t - 1, tokens[0, t]].item() if mask[row, t] else 0.0
            assert got[row, t] == pytest.approx(chosen, abs=1e-5)


@pytest.mark.parametrize(("build", "role"), [(policy, "policy"), (critic, "critic")])
def test_a_model_says_at_its_start_what_computes_its_attention(
    build: Build, role: str, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tiny)
    assert (
        f"{role}: samples packed, attention by sdpa, which pads them\n" in capsys.readouterr().out
    )


def test_values_are_those_of_the_state_before_each_action(tiny: Tiny) -> None:
    actor, batch = critic(tiny), sequences()
    got = scores(actor, batch)
    longer, mask = batch.tokens.copy(), mask_of(batch)
    longer[8] = 3  # the last action itself is no part of the state that it was chosen in
    assert np.array_equal(
        scores(actor, Sequences(longer, batch.lengths, batch.action_mask))[0, 8:], got[0, 8:]
    )
    assert got[mask].any()
    assert not got[~mask].any()


def test_an_update_is_the_same_however_it_is_cut_into_micro_batches(tiny: Tiny) -> None:
    results = []
    for micro in (4, 2, 1):
        actor = policy(tiny, micro_train_batch_size=micro)
        learn(actor, experience(), 1)
        results.append(copy(weights_of(actor)))
    before = weights_of(policy(tiny))
    assert largest_difference(results[0], before) > 1e-3
    # Adam turns the sum's last bits into visible, but small differences.
    assert largest_difference(results[0], results[1]) < 1e-4
    assert largest_difference(results[0], results[2]) < 1e-4


class Readings(TorchDispatchMode):
    """Counts how often Python reads a number of a tensor, which waits for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("role", [policy, critic])
def test_numbers_are_read_once_an_update_and_not_in_each_pass(tiny: Tiny, role: Build) -> None:
    counts = []
    for micro in (4, 1):
        actor = role(tiny, micro_train_batch_size=micro)
        with Readings() as readings:
            learn(actor, experience(), 1)
        counts.append(readings.count)
    assert counts[0] == counts[1]


def test_a_sample_without_a_reward_has_no_part_in_an_update(tiny: Tiny) -> None:
    """Whatever its tokens are, and whatever the models say of it."""
    worth = Worth(
        scores=np.array([1, np.nan, 0, 0.5]),
        settings=AdvantageSettings(),
        kl=KLSettings(estimator="k3"),
        kl_coef=0.1,
    )
    told = []
    for changed in (False, True):
        known = experience()
        assert known.values is not None
        if changed:
            known.sequences.tokens[9:13] = 5
            known.values[places(known.sequences.actions, np.array([1]))] = 1e6
        part = part_of(known.sequences, updates=(np.arange(4),))
        outputs = {
            role: [array]
            for role, array in (
                ("policy", known.old_log_probs),
                ("reference", known.ref_log_probs),
                ("critic", known.values),
            )
            if array is not None
        }
        moments = policy(tiny).statistics(part, outputs, worth).advantages
        whole = replace(worth, moments=moments)
        told.append(
            [
                of_the_samples(of(tiny).update(part, outputs, whole, 1).metrics)
                for of in (policy, critic)
            ]
        )
    assert told[0] == told[1]
    assert all(told[0])


@pytest.mark.parametrize("role", [policy, critic])
def test_a_loss_that_is_not_finite_stops_before_the_update(tiny: Tiny, role: Build) -> None:
    actor = role(tiny)
    batch = experience()
    batch.advantages[7] = batch.returns[7] = np.nan
    before = {name: p.clone() for name, p in actor._engine._model.named_parameters()}
    with pytest.raises(TrainingError, match="loss is nan"):
        learn(actor, batch, 1)
    for name, parameter in actor._engine._model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_saved_and_restored_learners_go_on_to_the_bit(tiny: Tiny, tmp_path: Path) -> None:
    first, second = policy(tiny, train_batch_size=2), policy(tiny, train_batch_size=2)
    learn(first, experience(), 1)
    first.snapshot(1)
    first.save(1, tmp_path)
    second.restore(tmp_path)
    after = [of_the_samples(learn(one, experience(), 2)) for one in (first, second)]
    assert after[0] == after[1]
    assert largest_difference(weights_of(first), weights_of(second)) == 0


def test_an_update_depends_on_nothing_that_its_process_did_before(forgetful: Tiny) -> None:
    results = []
    for drawn_before in (0, 1000):
        actor = policy(forgetful)
        torch.rand(drawn_before)
        learn(actor, experience(), 1)
        results.append(copy(weights_of(actor)))
    assert largest_difference(results[0], results[1]) == 0


def test_gradient_checkpointing_changes_no_result(tiny: Tiny) -> None:
    plain, frugal = policy(tiny), policy(tiny, gradient_checkpointing=True)
    learn(plain, experience(), 1)
    learn(frugal, experience(), 1)
    assert largest_difference(weights_of(plain), weights_of(frugal)) < 1e-6


@pytest.mark.parametrize("build", [policy, critic])
def test_observation_tokens_have_a_gradient_of_exactly_zero(tiny: Tiny, build: Build) -> None:
    """By autograd, at the states that predict them."""
    actor, of = build(tiny, micro_train_batch_size=1), sequences()
    gradients: list[torch.Tensor] = []

    def watch(_: object, __: object, output: Any) -> None:
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.register_hook(gradients.append)

    model: Any = actor._model
    backbone = model.backbone if build is critic else model.base_model
    backbone.register_forward_hook(watch)
    learn(actor, experience(of), 1)
    states = {gradient.shape[-2]: gradient.reshape(gradient.shape[-2:]) for gradient in gradients}
    for length, chosen in zip(of.lengths, mask_of(of), strict=True):
        has_gradient = states[int(length) - 1].ne(0).any(dim=-1)  # the last token predicts nothing
        assert has_gradient.any()
        assert not (has_gradient.numpy() & ~chosen[1:length]).any()
