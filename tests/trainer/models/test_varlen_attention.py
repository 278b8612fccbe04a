"""Packed attention by torch's flash kernels is the attention of each sequence alone.

Only the kernel's own call is replaced, by plain torch with its arguments and demands: what is asked
of it is held to sdpa here, and what a GPU answers in tests/gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.support.ragged import scores
from tests.support.small_models import COMMON, batch, model
from tests.support.varlen import EXACT, HALVES, Causal, Kernel, Rounding, replace
from trainer.models import packed_attention
from trainer.models.causal_lm import LogProbModel
from trainer.models.packed_attention import PACKED, Options, PackedLayout, attend, attention
from trainer.models.settings import ModelSettings

CPU = torch.device("cpu")
LENGTHS = np.array([1, 7, 4, 1, 5])
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
BY_KERNEL: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "granite": {"attention_multiplier": 0.5},
    "mistral": {"sliding_window": 3},
    "qwen3": {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1},
    "gemma3_text": {
        **{"sliding_window": 3, "query_pre_attn_scalar": 8},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3_moe": EXPERTS,
}
PADDED: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 0.5, "sliding_window": 3},
    "gpt_oss": {"sliding_window": 3, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {
        **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
        **{"v_head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 2},
    },
    "gpt_neox": {"num_key_value_heads": 4},
}
"""A soft cap, sinks, values of another size than keys, and heads of 4 numbers."""


@pytest.fixture(autouse=True)
def _forgets_trials() -> Iterator[None]:
    packed_attention._take_fastest.cache_clear()
    yield
    packed_attention._works.cache_clear()
    packed_attention._take_fastest.cache_clear()


def built(name: str, own: dict[str, Any], dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**{**COMMON, **own})
    of = AutoModelForCausalLM.from_config(
        config,
        attn_implementation="eager" if name in ("gemma2", "gpt_oss") else "sdpa",
        experts_implementation="eager",
        dtype=dtype,
    ).eval()
    for parameter in of.parameters():
        parameter.data *= 3  # so that attention counts
    return of


def gradients(of: Any, logits: torch.Tensor) -> list[torch.Tensor]:
    of.zero_grad()
    (logits * torch.linspace(-1, 1, logits.numel()).double().reshape(logits.shape)).sum().backward()
    return [one.grad.clone() for one in of.parameters() if one.grad is not None]


@pytest.mark.parametrize("name", [*BY_KERNEL, *PADDED])
def test_each_sequence_attends_as_if_it_were_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = replace(monkeypatch, Kernel(EXACT))
    of = built(name, {**BY_KERNEL, **PADDED}[name], torch.float64)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(2, 23, LENGTHS.sum()))
    rows = tokens.split(LENGTHS.tolist())
    alone = torch.cat([of(input_ids=row[None], use_cache=False).logits[0] for row in rows])
    expected = [alone.detach(), *gradients(of, alone)]
    of.config._attn_implementation = PACKED
    layout = PackedLayout(LENGTHS, CPU, kernel=True)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    together = of(
        input_ids=tokens[None], position_ids=positions, packed=layout, use_cache=False
    ).logits[0]
    got = [together.detach(), *gradients(of, together)]
    # The eager softmax is in fp32, and Gemma's norm.
    most = 1e-3 if name in ("gemma2", "gpt_oss") else 1e-6
    assert max((a - b).abs().max() for a, b in zip(got, expected, strict=True)) < most
    assert layout.padded == (name in PADDED)
    used = [window for lengths, window in kernel.calls if lengths == LENGTHS.tolist()]
    windows = {(2, 0)} if name == "mistral" else {(-1, 0)}
    if name in ("qwen3", "gemma3_text"):
        windows = {(2, 0), (-1, 0)}
    assert set(used) == (set() if name in PADDED else windows)


def scorer(of: Any, *, packing: bool) -> LogProbModel:
    wanted = ModelSettings(
        model="", mixed_precision=True, micro_batch_size=4, temperature=0.7, packing=packing
    )
    return LogProbModel(of, CPU, wanted)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_pass_in_bf16_takes_the_kernel_for_its_packed_samples(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, found = batch([9, 2, 6, 12], 3), []
    kernel = replace(monkeypatch, Kernel(HALVES))
    for packing in (False, True):
        of = model(name, torch.float32)
        made = scorer(of, packing=packing)
        kernel.calls.clear()
        log_probs, _ = made(sequences)
        log_probs.sum().backward()
        found.append([log_probs.detach(), *(one.grad for one in of.parameters())])
    assert made.attention == "samples packed, attention by torch's flash kernels"
    limits = made.limits(4, 100)
    assert limits.packed
    assert not limits.padded_inside
    assert {tuple(lengths) for lengths, _ in kernel.calls} == {(8, 1, 5, 11)}
    for padded, packed in zip(*found, strict=True):
        assert (padded - packed).abs().max() < 0.02 * padded.abs().max() + 0.02


def test_without_kernels_packed_samples_are_padded_inside_attention() -> None:
    made = scorer(model("llama", torch.float32), packing=True)
    assert made.packed
    assert made.attention == "samples packed, attention by sdpa, which pads them"
    assert made.limits(4, 100).padded_inside


def test_a_kernel_that_forgets_windows_has_only_layers_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace(monkeypatch, Causal(HALVES))
    assert not scorer(model("llama", torch.float32), packing=True)._forward.padded_inside
    assert scorer(model("qwen3", torch.float32), packing=True)._forward.padded_inside


@pytest.mark.parametrize("heads", [(28, 4), (64, 8), (64, 1), (16, 16)])
@pytest.mark.parametrize("windowed", [False, True])
def test_the_trial_takes_a_kernel_that_rounds_and_none_that_sees_a_token_more(
    heads: tuple[int, int], windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of keys are sums over many heads, so that their rounding is large."""
    for kernel, fits in ((Rounding(HALVES), True), (Causal(HALVES), not windowed)):
        replace(monkeypatch, kernel)
        assert packed_attention._works(CPU, torch.bfloat16, heads, 128, windowed) is fits


def test_a_model_that_does_not_fit_the_kernel_is_still_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel answers the trial of single heads, and then not for the model."""

    class Tired(Kernel):
        def __call__(self, *states: Any, **given: Any) -> torch.Tensor:
            if states[3].tolist() != [0, 5, 6, 9]:
                raise RuntimeError("no more")
            return super().__call__(*states, **given)

    expected = scores(scorer(model("llama", torch.float32), packing=True), batch([9, 4, 6], 3))
    replace(monkeypatch, Tired(HALVES))
    made = scorer(model("llama", torch.float32), packing=True)
    assert made.packed
    assert made.attention == "samples packed, attention by sdpa, which pads them"
    assert np.array_equal(scores(made, batch([9, 4, 6], 3)), expected)


def test_a_layer_that_is_computed_anew_has_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if its forward pass is the first to ask whether the kernel fits."""
    replace(monkeypatch, Kernel(HALVES))
    states = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for anew in (True, False):
        layout = PackedLayout(np.array([5, 4]), CPU, kernel=True)
        query, key, value = (each.bfloat16().requires_grad_() for each in states)

        given = (query, key, value, layout, Options())
        output = checkpoint(attention, *given, use_reentrant=False) if anew else attention(*given)
        found.append(torch.autograd.grad(output.float().square().sum(), (query, key, value)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("fits", [True, False])
def test_flash_attention_3_is_taken_where_it_is_installed_and_computes(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, Kernel(HALVES))
    found: list[str] = []

    def activate(name: str) -> None:
        found.append(name)
        replace(monkeypatch, Kernel(HALVES if fits else ()))

    def restore() -> None:
        found.append("torch's own")
        replace(monkeypatch, Kernel(HALVES))

    monkeypatch.setattr(packed_attention, "find_spec", lambda name: name == "flash_attn_interface")
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activate)
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", restore)
    assert packed_attention.has_kernels(CPU)
    assert packed_attention.has_kernels(CPU)
    assert found == (["FA3"] if fits else ["FA3", "torch's own"])


def test_dropout_is_left_to_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = replace(monkeypatch, Kernel(HALVES))
    layout = PackedLayout(np.array([5, 4]), CPU, kernel=True)
    states = torch.randn(1, 2, 9, 8).bfloat16()
    attend(nn.Module(), states, states, states, None, packed=layout, dropout=0.5)
    assert layout.padded
    assert not kernel.calls
