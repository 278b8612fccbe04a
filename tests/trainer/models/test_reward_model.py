"""The tokens in which a reward model reads a sample, by the format of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from env.types import RewardRequest
from tests.support.tiny_reward_model import write_reward_model_of
from tests.support.tokenisers import KINDS
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings

OPENRLHF: dict[str, Any] = {"architectures": ["RewardModel"], "value_head_prefix": "score"}
WITH_BOS = [name for name, kind in KINDS.items() if kind.adds_bos]


def reader(model: Path) -> ScalarRewardModel:
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    return ScalarRewardModel(str(model), settings, torch.device("cpu"))


def read(model: ScalarRewardModel, query: str) -> list[int]:
    tokens = model._tokens(RewardRequest(query, ""))
    assert isinstance(tokens, list)
    return tokens


@pytest.mark.parametrize("kind", WITH_BOS)
@pytest.mark.parametrize("config", [{}, OPENRLHF], ids=["trl", "openrlhf"])
def test_a_text_has_bos_if_the_training_had_it(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    model = reader(write_reward_model_of(kind, tmp_path, **config))
    tokenizer = model._tokenizer
    tokens = read(model, f"2+2=4{KINDS[kind].end}")
    assert (tokens[0] == tokenizer.bos_token_id) is (not config)
    ended = tokenizer(f"2+2=4{KINDS[kind].end}", add_special_tokens=not config)["input_ids"]
    if not KINDS[kind].adds_end and ended[-1] != model._never_scored:
        assert tokens == ended, "as TRL and OpenRLHF tokenise it"


@pytest.mark.parametrize("kind", WITH_BOS)
@pytest.mark.parametrize("config", [{}, OPENRLHF], ids=["trl", "openrlhf"])
def test_a_query_that_has_bos_already_gets_no_second(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    """A policy's chat template writes it; OpenRLHF's client sends it to `serve-reward`."""
    model = reader(write_reward_model_of(kind, tmp_path, **config))
    tokens = read(model, f"{KINDS[kind].bos}2+2=4{KINDS[kind].end}")
    assert tokens.count(model._tokenizer.bos_token_id) == 1
    assert tokens.count(model._tokenizer.eos_token_id) <= 1
