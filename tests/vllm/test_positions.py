"""vLLM and the trainer take the same factors of longrope, at both ends of its limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from tests.support.tiny_run import Tiny
from tests.support.vllm import settings, worst
from trainer.config.options.rollout import SamplingSettings
from trainer.models.causal_lm import LogProbModel
from trainer.models.loading import load_causal_lm
from trainer.models.settings import ModelSettings
from trainer.types import Request

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]
NATS = 1e-4
PRETRAINED, POSITIONS = 24, 96


@pytest.fixture(scope="module")
def model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("longrope")
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    tokenizer.save_pretrained(path)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": PRETRAINED,
        "short_factor": [1.0] * 16,
        "long_factor": [float(2 + n) for n in range(16)],
    }
    config = CONFIG_MAPPING["phi3"](
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        original_max_position_embeddings=PRETRAINED,
        rope_parameters=rope,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    of = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in of.parameters():
            if parameter.dim() > 1:
                parameter *= 8
    of.save_pretrained(path)
    return path


@pytest.mark.parametrize("longest", [PRETRAINED, POSITIONS])
def test_a_completion_has_the_trainers_log_probabilities(
    tiny: Tiny, model: Path, longest: int
) -> None:
    from vllm.model_executor.layers import rotary_embedding

    from trainer.rollout.vllm_engine import VLLMEngine

    rotary_embedding._ROPE_DICT.clear()  # vLLM keeps the choice of a process's first engine
    most = longest // 2
    sampling = SamplingSettings(max_new_tokens=most)
    made = replace(
        settings(replace(tiny, model=model)),
        prompt_max_len=longest - most,
        max_len=longest,
        sampling=sampling,
    )
    texts = ["1+1=", "12+30=" * (longest // 16)]
    written = VLLMEngine(made).generate([Request(text, (0, 1)) for text in texts], sampling)
    wanted = ModelSettings(
        model=str(model),
        mixed_precision=False,
        micro_batch_size=8,
        temperature=1.0,
        longest=longest,
    )
    of = load_causal_lm(wanted.model, torch.float32, longest=longest).eval()
    scorer = LogProbModel(of, torch.device("cpu"), wanted)
    assert (max(len(one.tokens) for one in written) > PRETRAINED) == (longest > PRETRAINED)
    assert worst(scorer, written) < NATS
