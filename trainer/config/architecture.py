"""What an architecture asks of a run, by its config.json. Pure and torch-free.

A row's log-probabilities must be the same alone, beside other rows, packed and decoded. Some
architectures keep that promise only with one attention, up to one length, or in one engine.
`shape` is everywhere the configuration of the language model, with transformers' names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Shape = Mapping[str, Any]

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""transformers' names for the number of positions."""
CHOSEN_TOKENS = ("index_topk", "keep_window_size")
"""transformers' names for the number of tokens that a sparse attention chooses by their scores."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""transformers' names for the experts of a layer."""
TABLE_OF_POSITIONS = frozenset(
    {
        *("biogpt", "codegen", "ctrl", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gptj"),
        *("mpt", "openai-gpt", "opt"),
    }
)
"""Architectures whose positions are a table: a token after its end ends the process."""
STATEFUL = frozenset(
    {
        *("axk2", "bamba", "deepseek_v32", "deepseek_v4", "falcon_h1", "falcon_mamba"),
        *("glm_moe_dsa", "granitemoehybrid", "inkling_text"),
        *("jamba", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm"),
        *("zamba", "zamba2", "zaya"),
    }
)
"""Architectures with a state beside keys and values, which padding on the left would enter."""
OWN_ATTENTION = frozenset(
    {
        *("bloom", "codegen", "deepseek_v4", "doge", "falcon", "gpt_neo", "gpt_neox_japanese"),
        *("gpt_oss", "gptj", "granite_swa", "granitemoe_swa", "llama4_text", "mimo_v2_flash"),
        *("mpt", "nemotron", "openai-gpt", "stablelm", "xglm"),
    }
)
"""Architectures with a mask, a bias or an attention of their own in place of sdpa."""
SPARSE = frozenset({"axk2", "deepseek_v32", "glm_moe_dsa"})
"""Architectures of STATEFUL whose state are the keys by which tokens are chosen."""
CACHELESS = frozenset({"openai-gpt", "cpmant"})
"""Architectures that cannot go on from keys and values that the transformers engine holds."""
NOT_SHARED = "Leave the flag out: each sample is on one GPU then"
NO_CAUSAL_SHORTCUT = frozenset({"doge"})
"""Architectures whose own mask makes sdpa forget that it is causal, if no row is padded."""


def rotary(shape: Shape) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of each rotary embedding: one, or one for each type of layer."""
    given = shape.get("rope_scaling") or shape.get("rope_parameters") or {}
    nested = [one for one in given.values() if isinstance(one, Mapping)]
    yield from nested or ([given] if given else [])


def rope_type(parameters: Mapping[str, Any]) -> str:
    """Return the rule by which a rotary embedding goes beyond its pretraining."""
    named = str(parameters.get("rope_type", parameters.get("type", "default")))
    return "longrope" if named == "su" else named


def positions(shape: Shape) -> int | None:
    found = (shape.get(name) for name in POSITIONS)
    return next((one for one in found if isinstance(one, int) and one), None)


def is_mixture(shape: Shape) -> bool:
    """Return whether layers have several experts, of which some answer a token."""
    of_layers = [shape[name] for name in EXPERTS if shape.get(name)]
    most = max((max(n) if isinstance(n, list) else n for n in of_layers), default=0)
    return most > 1 and shape.get("is_moe") is not False


def positions_fault(shape: Shape, longest: int) -> str | None:
    """Return why the model cannot read `longest` tokens as it reads fewer; None if it can."""
    room = positions(shape)
    for name in CHOSEN_TOKENS:
        kept = shape.get(name)
        if kept and longest > kept:
            why = f"it attends to {kept} tokens ({name}), and equal scores are chosen at random"
            return f"{why}. {_shorten(longest, kept)}"
    if not room or longest <= room:
        return None
    remedy = _shorten(longest, room)
    if any("dynamic" in rope_type(one) for one in rotary(shape)):
        return (
            f"beyond {room} tokens its positions are scaled by the longest sequence of a pass "
            "(rope_type dynamic), so that a sample's log-probabilities depend on other samples. "
            f"{remedy}"
        )
    if shape.get("model_type") in TABLE_OF_POSITIONS:
        return f"it has a table of {room} positions. {remedy}"
    return None


def _shorten(longest: int, room: int) -> str:
    return f"Samples have up to {longest} tokens here. Give --max_len {room}, or less"


def long_factors_from(shape: Shape) -> int | None:
    """Return the tokens of a run above which longrope takes other factors; None: there are none.

    As in vLLM, the longest sample of the run decides for all samples. transformers would decide
    anew for each pass, by its longest row.
    """
    two_sets = [
        _pretrained(shape, one)
        for one in rotary(shape)
        if rope_type(one) == "longrope" and one.get("short_factor") != one.get("long_factor")
    ]
    return min(two_sets, default=None)


def _pretrained(shape: Shape, parameters: Mapping[str, Any]) -> int:
    """Return the positions of a rotary embedding's pretraining; 0 if they are unknown."""
    name = "original_max_position_embeddings"
    return shape.get(name) or parameters.get(name) or positions(shape) or 0


def vllm_fault(shape: Shape) -> str | None:
    """Return why vLLM computes other positions than transformers; None if it does not.

    vLLM derives longrope's attention factor from the positions alone.
    """
    room = positions(shape)
    for one in rotary(shape):
        pretrained = _pretrained(shape, one)
        if rope_type(one) != "longrope" or not room or not pretrained:
            continue
        factor = one.get("factor") or room / pretrained
        if one.get("attention_factor") is not None or factor != room / pretrained:
            return (
                "vLLM ignores the factor and the attention_factor of its longrope and takes "
                f"{room} / {pretrained} positions. --rollout_engine hf obeys them"
            )
    return None


def decoding_fault(shape: Shape, longest: int) -> str | None:
    """Return why the transformers engine cannot decode `longest` tokens; None if it may.

    transformers places Llama 4's attention temperature by a batch's columns, padding included.
    """
    scale = shape.get("floor_scale") if shape.get("attn_temperature_tuning") else None
    if scale and longest > scale:
        return f"its attention beyond {scale} tokens depends on padding. {_shorten(longest, scale)}"
    kind = shape.get("model_type")
    if kind in STATEFUL:
        return f"a layer of {kind} keeps a state that is not keys and values"
    return f"{kind} has no cache of keys and values" if kind in CACHELESS else None


def packing_fault(shape: Shape, wanted: str | None) -> str | None:
    """Return why samples cannot lie end to end, and what would do; None if they may.

    `wanted`: the attention that the user asks for. A model's trial at the start of a run decides.
    """
    kind, cap = shape.get("model_type"), shape.get("attn_logit_softcapping")
    flash = "flash" in (wanted or "")
    if wanted not in (None, "sdpa") and not flash:
        return f"{wanted} has no ends of samples. Leave --attn_implementation out, or give sdpa"
    if kind in STATEFUL - SPARSE:
        return f"a layer of {kind} has a state, which goes on from sample to sample"
    if kind in OWN_ATTENTION and not flash:
        return f"{kind} has a mask or an attention of its own, and no ends of samples"
    if cap and not flash:
        return (
            f"sdpa leaves out attn_logit_softcapping {cap}. --attn_implementation "
            "flash_attention_2 has it, on GPUs"
        )
    return None


def sharing_fault(shape: Shape, ranks: int) -> str | None:
    """Return why so many ranks cannot share a sample, and what would do; None if they may.

    Each has a part of the heads of attention, where alone tokens meet. A model's trial at the start
    of a run decides.
    """
    kind, heads = shape.get("model_type"), shape.get("num_attention_heads") or shape.get("n_head")
    if kind in STATEFUL:
        return f"tokens of {kind} meet outside attention, too. {NOT_SHARED}"
    if kind in OWN_ATTENTION:
        return f"{kind} has a mask or an attention of its own. {NOT_SHARED}"
    if not isinstance(heads, int) or heads % ranks == 0:
        return None
    fitting = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
    return f"it does not divide the model's {heads} heads of attention. {fitting} would"


def attention_of(shape: Shape, wanted: str | None) -> str | None:
    """Return the attention to load the model with; None: transformers' own choice."""
    return "eager" if wanted is None and attention_fault(shape, "sdpa") else wanted


def attention_fault(shape: Shape, wanted: str | None) -> str | None:
    """Return what the attention `wanted` would leave out; None if it is nothing.

    transformers' sdpa drops the soft cap of attention's logits without a word (Gemma 2). Its eager
    attention adds ALiBi twice for Falcon.
    """
    cap = shape.get("attn_logit_softcapping")
    if wanted == "sdpa" and cap:
        return f"sdpa leaves out attn_logit_softcapping {cap}. Give eager or flash_attention_2"
    if wanted == "sdpa" and shape.get("model_type") in NO_CAUSAL_SHORTCUT:
        return f"sdpa lets {shape['model_type']} see the tokens to come. Give eager"
    if wanted == "eager" and shape.get("model_type") == "falcon" and shape.get("alibi"):
        return "eager adds the ALiBi of falcon twice. Give sdpa"
    return None
