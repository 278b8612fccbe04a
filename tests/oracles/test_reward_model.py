"""Reward models that OpenRLHF's own code has made and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import RewardRequest
from tests.oracles.agreement import same
from tests.oracles.process import Peers
from tests.support.tiny_reward_model import write_reward_model_of
from tests.support.tokenisers import KINDS
from trainer.models import value_model
from trainer.models.reward_model import ScalarRewardModel
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


LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n\n{% endfor %}"
ASKED = [{"role": "user", "content": "2+2=?"}]
ANSWER = {"role": "assistant", "content": "It is 4."}


def read(model: Path, *requests: RewardRequest) -> list[list[int]]:
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    reader = ScalarRewardModel(str(model), settings, torch.device("cpu"))
    tokens = [reader._tokens(request) for request in requests]
    return [one for one in tokens if isinstance(one, list)]


@pytest.mark.parametrize(
    ("kind", "template"),
    [("llama3", LLAMA), ("llama2", PLAIN), ("qwen", QWEN), ("gemma", PLAIN), ("gpt2", PLAIN)],
)
def test_one_of_openrlhf_s_reads_chats_and_texts_as_in_its_training(
    peers: Peers, tmp_path: Path, kind: str, template: str
) -> None:
    theirs = {"architectures": ["RewardModel"], "value_head_prefix": "score"}
    model = write_reward_model_of(kind, tmp_path / "model", template, **theirs)
    end = KINDS[kind].end
    chat, text, query = read(
        model,
        RewardRequest("It is 4.", "", messages=ASKED),
        RewardRequest(f"2+2=4 {end}", "2+2="),  # the space is of its training
        RewardRequest("2+2=4", "2+2="),
    )
    rows = {"prompt": ASKED, "chosen": [ANSWER]}
    trained = {"model": str(model), "rows": [rows], "chats": True}
    (expected,) = peers._call("openrlhf_data", "trained_on", trained)
    assert chat == expected
    trained = {"model": str(model), "rows": [{"prompt": "2+2=", "chosen": "4"}], "chats": False}
    assert [text] == peers._call("openrlhf_data", "trained_on", trained)
    asked = {"model": str(model), "query": f"2+2=4{end}"}
    assert query == peers._call("openrlhf_data", "served", asked)
