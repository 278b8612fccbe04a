"""For each architecture a row is worth the same alone, beside others, packed and decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.architectures import ARCHITECTURES, POSITIONS, config, model
from tests.support.row_differences import PADDED, differences
from trainer.config.architecture import STATEFUL, TABLE_OF_POSITIONS, packing_fault
from trainer.models.causal_lm import LogProbModel, separates_by_positions
from trainer.models.positions import shape_of
from trainer.models.settings import ModelSettings
from trainer.rollout.hf_engine.cache import holds

NATS = 1e-4
QUICK = ("gemma3_text+longrope", "phimoe", "llama+dynamic", "llama4_text", "gemma2", "mpt")
"""One architecture for each kind of dependence on length or on neighbours."""
UNPACKED = ("falcon", "stablelm", "qwen3_next", "llama", "deepseek_v32", "vaultgemma")
LIMITED = {
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa"), "index_topk"),
    "doge": "keep_window_size",
    "llama+dynamic": "rope_type dynamic",
}
"""Architectures that a run with longer samples refuses, and what the refusal names."""


def is_decoded(name: str) -> bool:
    return name.split("+")[0] not in STATEFUL | {"openai-gpt"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.faults) for n in ARCHITECTURES]
)
def test_a_row_is_worth_the_same_in_each_situation(name: str, tmp_path: Path) -> None:
    found = differences(name, tmp_path)
    refused = {
        situation: value
        for situation, value in found.items()
        if isinstance(value, str) and value != PADDED
    }
    if name in LIMITED:
        assert LIMITED[name] in refused.pop("at the limits")
    if name == "llama4_text":
        assert "depends on padding" in refused.pop("… decoded")
        assert found["… packed"] == PADDED
    expected = () if is_decoded(name) else ("decoded", "… decoded")
    assert refused.keys() == {situation for situation in expected if situation in found}
    assert max(value for value in found.values() if isinstance(value, float)) < NATS


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in (*QUICK, *UNPACKED) else pytest.mark.slow)
        for n in ARCHITECTURES
    ],
)
def test_what_cannot_be_packed_is_known_before_a_model_is_loaded(name: str) -> None:
    of = model(name)
    settings = ModelSettings(model="", mixed_precision=False, micro_batch_size=4, temperature=1.0)
    scorer = LogProbModel(of, torch.device("cpu"), settings)
    assert scorer.packed is (packing_fault(shape_of(of.config), None) is None)


def test_every_state_beside_keys_and_values_is_known_before_a_model_is_loaded() -> None:
    found = set()
    for name in ARCHITECTURES:
        made = config(name)
        if AutoModelForCausalLM._model_mapping[type(made)]._is_stateful or not holds(made):
            found.add(made.model_type)
    assert found <= STATEFUL
    assert STATEFUL - found <= {"qwen3_5_moe_text", "xlstm", "zaya"}  # variants, left out above


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        *((n, True) for n in ("llama", "qwen2", "gemma2", "gpt2", "mixtral", "ministral3")),
        *((n, False) for n in ("llama4_text", "bloom", "falcon+alibi", "mamba2", "lfm2", "rwkv")),
        *((n, False) for n in ("qwen3_next", "recurrent_gemma", "openai-gpt")),
    ],
)
def test_samples_end_to_end_are_told_apart_by_their_positions_or_padded(
    name: str, apart: bool
) -> None:
    assert separates_by_positions(model(name)) == apart


@pytest.mark.parametrize(
    "name", [n for n in ARCHITECTURES if not getattr(config(n), "rope_parameters", None)]
)
def test_every_table_of_positions_is_known_before_a_model_is_loaded(name: str) -> None:
    tokens = torch.full((1, POSITIONS + 1), 3)
    of = model(name)
    ends = False
    try:
        with torch.no_grad():
            of(input_ids=tokens, use_cache=False)
    except (IndexError, RuntimeError):
        ends = True
    assert ends == (name in TABLE_OF_POSITIONS)
