"""Reward models that OpenRLHF's own code has made and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import RewardRequest
from tests.oracles.agreement import same
from tests.oracles.process import Peers
from trainer.models import value_model
from trainer.models.settings import RewardSettings
from trainer.workers.reward import RewardActor

TEXTS = ("1+1=2", "1+11=", "203+4=207")


@pytest.mark.parametrize("prefix", ["score", "value_head"])
def test_one_of_openrlhf_s_gives_the_rewards_that_it_gives_there(
    peers: Peers, tmp_path: Path, prefix: str
) -> None:
    base, saved = tmp_path / "base", tmp_path / "saved"
    write_model(TinyModel(hidden_size=16, layers=1, heads=2, max_length=32), "0123456789+=", base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.save_pretrained(saved)
    texts = [text + tokenizer.eos_token for text in TEXTS]
    batch = tokenizer(texts, padding=True, return_tensors="np")
    theirs = peers.openrlhf(
        "reward_model",
        source=str(base),
        out=str(saved),
        prefix=prefix,
        tokens=batch["input_ids"],
        mask=batch["attention_mask"],
    )
    ours = RewardActor(
        RewardSettings(models=(str(saved),), mixed_precision=False, micro_batch_size=4)
    )
    scores = [score for (score,) in ours.score([RewardRequest(text, "") for text in TEXTS])]
    same([score.reward for score in scores], theirs["rewards"])
    head = value_model.load_head(str(saved), prefix, hidden=16)
    assert head is not None
    assert np.array_equal(head.float().numpy(), theirs["head"])
