"""Log-probabilities and entropy of actions: every way of computing them is the same function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ragged import mask_of, padded, part_of, scores
from tests.support.small_models import MODELS, VOCABULARY, batch, model
from trainer.algorithms.batching import MicroBatchLimits
from trainer.models.causal_lm import LogProbModel, projection_of
from trainer.models.loading import in_passes
from trainer.models.log_probs import Projection, of_logits, token_log_probs
from trainer.models.settings import ModelSettings
from trainer.types import Sequences, places


def scorer(of: Any, *, packing: bool) -> LogProbModel:
    wanted = ModelSettings(
        model="", mixed_precision=False, micro_batch_size=4, temperature=0.7, packing=packing
    )
    return LogProbModel(of, torch.device("cpu"), wanted)


RAGGED = st.builds(
    batch,
    st.lists(st.integers(2, 12), min_size=1, max_size=6),
    st.integers(0, 1000),
)


def outcome(of: Any, sequences: Sequences, *, packing: bool) -> list[torch.Tensor]:
    """Log-probabilities, entropy, and the gradients of a random function of both."""
    weigh = torch.randn(
        2, int(sequences.action_mask.sum()), generator=torch.Generator().manual_seed(5)
    ).double()
    of.zero_grad()
    log_probs, entropy = scorer(of, packing=packing)(sequences, entropy=True)
    assert entropy is not None
    (torch.stack([log_probs, entropy]) * weigh).sum().backward()
    return [log_probs.detach(), entropy.detach(), *(p.grad.clone() for p in of.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_packed_is_padded(name: str) -> None:
    of = model(name)

    @settings(max_examples=8, deadline=None)
    @given(sequences=RAGGED)
    def holds(sequences: Sequences) -> None:
        packed = outcome(of, sequences, packing=True)
        padded = outcome(of, sequences, packing=False)
        assert max((a - b).abs().max() for a, b in zip(packed, padded, strict=True)) < 1e-6

    holds()


@pytest.mark.parametrize("name", ["llama", "qwen3", "cohere", "granite", "gpt_neox"])
def test_ordinary_models_are_packed(name: str) -> None:
    assert scorer(model(name), packing=True).packed


def test_an_attention_that_was_asked_for_is_not_replaced() -> None:
    of = model("gemma2")
    of.set_attn_implementation("eager")  # sdpa would leave out the cap on its logits
    assert not scorer(of, packing=True).packed
    assert of.config._attn_implementation == "eager"


def test_a_model_that_cannot_be_packed_is_padded(caplog: pytest.LogCaptureFixture) -> None:
    """Bloom places tokens by their distance, in a mask of its own; it takes no positions."""
    of = model("bloom")
    assert not scorer(of, packing=False).packed
    assert caplog.messages == []
    assert not scorer(of, packing=True).packed
    assert "samples are padded: packed, they would not have the states" in caplog.text


@pytest.mark.parametrize("name", MODELS)
def test_every_model_scores_as_its_own_logits_say(name: str) -> None:
    of, sequences = model(name), batch([9, 4, 6], 3)
    got = scores(scorer(of, packing=True), sequences)
    rows, mask = padded(sequences.tokens, sequences), mask_of(sequences)
    for row, length in enumerate(sequences.lengths):
        tokens = torch.from_numpy(rows[row : row + 1, :length]).long()
        with torch.no_grad():
            expected = (of(input_ids=tokens).logits[0] / 0.7).log_softmax(-1)
        for t in np.flatnonzero(mask[row]):
            assert got[row, t] == pytest.approx(expected[t - 1, tokens[0, t]].item(), abs=1e-5)
    assert not got[~mask].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_heads_are_recognised(name: str, dtype: torch.dtype) -> None:
    projection = projection_of(model(name, dtype))
    assert projection is not None
    assert projection.softcap == (2.0 if name == "gemma2" else None)
    assert projection.scale == (0.25 if name in ("cohere", "granite") else 1.0)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_head_in_bf16_is_not_taken_for_one_that_does_less(name: str) -> None:
    of = model(name, torch.bfloat16)
    of.lm_head.register_forward_hook(lambda module, inputs, output: output * 1.05)
    assert projection_of(of) is None


def test_a_head_that_does_something_else_is_left_to_the_model() -> None:
    of = model("llama")
    of.lm_head.register_forward_hook(lambda module, inputs, output: output + output.roll(1, -1))
    assert projection_of(of) is None
    sequences = batch([7, 5], 1)
    with torch.no_grad():
        logits = of(input_ids=torch.from_numpy(sequences.tokens[None, :7]).long()).logits[0] / 0.7
    expected = logits.log_softmax(-1)[0, sequences.tokens[1]].item()
    assert scores(scorer(of, packing=True), sequences)[0, 1] == pytest.approx(expected, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 7),
    block=st.integers(1, 30),
    bias=st.booleans(),
    softcap=st.none() | st.just(1.5),
    entropy=st.booleans(),
)
def test_block_by_block_is_all_at_once(
    tokens: int, block: int, bias: bool, softcap: float | None, entropy: bool
) -> None:
    generator = torch.Generator().manual_seed(tokens * 100 + block)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    states, weight = draw(tokens, 5), draw(VOCABULARY, 5)
    offset = draw(VOCABULARY) if bias else None
    chosen = torch.randint(VOCABULARY, (tokens,), generator=generator)
    weigh = draw(2, tokens).detach()
    projection = Projection(weight, offset, scale=0.8, softcap=softcap)
    leaves = [states, weight, *([offset] if offset is not None else [])]

    def results(elements: int) -> list[torch.Tensor]:
        got, spread = token_log_probs(
            states, chosen, projection, 0.6, entropy=entropy, block_elements=elements
        )
        assert (spread is not None) == entropy
        loss = (got * weigh[0]).sum() + (0 if spread is None else (spread * weigh[1]).sum())
        return [got, *([] if spread is None else [spread]), *torch.autograd.grad(loss, leaves)]

    plain, blocks = results(10**6), results(tokens * block)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(plain, blocks, strict=True))


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 1.0]])
    _, entropy = of_logits(logits, torch.tensor([0, 1]), 2.0, entropy=True)
    assert entropy is not None
    expected = torch.distributions.Categorical(logits=logits / 2).entropy()
    assert torch.allclose(entropy, expected)


@settings(max_examples=15, deadline=None)
@given(
    sequences=RAGGED,
    cut=st.builds(
        MicroBatchLimits,
        samples=st.integers(1, 7),
        tokens=st.none() | st.integers(1, 60),
        packed=st.booleans(),
    ),
)
def test_any_cut_into_passes_gives_the_same_sums_and_gradients(
    sequences: Sequences, cut: MicroBatchLimits
) -> None:
    from trainer.algorithms import batching as packing

    of = MODEL_OF_CUTS
    scoring = scorer(of, packing=True)
    count = int(sequences.actions.sum())
    weigh = torch.randn(count, generator=torch.Generator().manual_seed(1)).double()

    def gradients(passes: list[np.ndarray]) -> list[torch.Tensor]:
        of.zero_grad()
        for rows in passes:
            of_rows = weigh[torch.from_numpy(places(sequences.actions, rows))]
            (scoring(sequences.rows(rows))[0] * of_rows).sum().backward()
        return [p.grad.clone() for p in of.parameters()]

    whole = gradients([np.arange(len(sequences))])
    cut_up = gradients(packing.micro_batches(sequences.lengths, cut))
    assert max((a - b).abs().max() for a, b in zip(whole, cut_up, strict=True)) < 1e-6
    part = part_of(sequences)
    once = in_passes(lambda found: scoring(found)[0], part, cut)
    assert np.abs(once - scoring.log_probs(part)).max() < 1e-6


MODEL_OF_CUTS = model("qwen2")
