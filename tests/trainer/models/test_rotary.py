"""Models whose rotary frequencies change with length: what a sample is worth is its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from env.types import RewardRequest
from tests.support.ragged import learn, mask_of, padded, scores
from tests.support.ranks import experience, settings
from tests.support.small_models import COMMON, batch
from tests.support.tiny_run import Tiny
from trainer.algorithms.objectives import PolicyObjective
from trainer.config.job_checks import engine_faults
from trainer.config.options.parallelism import Sharding
from trainer.models.causal_lm import LogProbModel
from trainer.models.loading import load_backbone, load_causal_lm, load_scorer
from trainer.models.settings import ModelSettings, RewardSettings
from trainer.types import UnfitModelError
from trainer.workers.policy import PolicyActor
from trainer.workers.reward import RewardActor

PRETRAINED = 8
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": PRETRAINED,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": PRETRAINED,
        "factor": 8.0,
        "short_factor": [1.0] * 2,
        "long_factor": [4.0, 64.0],
    },
}


def longrope(dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    config = CONFIG_MAPPING["phi3"](**{**COMMON, "head_dim": 4, **LONGROPE, **changes})
    torch.manual_seed(0)
    of = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for parameter in of.parameters():
        parameter.data *= 4
    return of


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("tokens", [None, 40])
def test_a_sample_s_log_probabilities_do_not_depend_on_the_others(
    packing: bool, tokens: int | None
) -> None:
    """Eight positions are a sample of nine tokens: its last does not pass through the model."""
    of, sequences = longrope(), batch([4, 8, 9, 10, 14, 5], 2)
    wanted = ModelSettings(
        model="",
        mixed_precision=False,
        micro_batch_size=6,
        max_tokens=tokens,
        temperature=0.7,
        packing=packing,
    )
    scorer = LogProbModel(of, torch.device("cpu"), wanted)
    assert scorer.packed == packing
    together = scores(scorer, sequences)
    rows, mask = padded(sequences.tokens, sequences), mask_of(sequences)
    for row, length in enumerate(sequences.lengths):
        alone = torch.from_numpy(rows[row : row + 1, : length - 1]).long()
        with torch.no_grad():
            expected = (of(input_ids=alone).logits[0] / 0.7).log_softmax(-1)
        for at in np.flatnonzero(mask[row]):
            exact = expected[at - 1, rows[row, at]].item()
            assert together[row, at] == pytest.approx(exact, abs=1e-5)


def test_an_update_does_not_depend_on_which_samples_share_a_pass(tmp_path: Path) -> None:
    longrope(torch.float32).save_pretrained(tmp_path / "model")
    norms = [
        learn(policy(tmp_path / "model", size), experience(1), 1)["grad_norm"] for size in (12, 1)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def policy(model: Path, size: int) -> PolicyActor:
    made = settings(model, Sharding(), train_batch_size=12, micro_train_batch_size=size)
    return PolicyActor(made, PolicyObjective())


def test_a_reward_does_not_depend_on_the_other_texts(tiny: Tiny, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    config = CONFIG_MAPPING["phi3"](
        **{**COMMON, "head_dim": 4, **LONGROPE, "vocab_size": len(tokenizer), "num_labels": 1}
    )
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        parameter.data *= 4
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    judge = RewardActor(
        RewardSettings(models=(str(tmp_path),), mixed_precision=False, micro_batch_size=4)
    )
    requests = [RewardRequest(text, "") for text in ("1+1=2", "1+1=234567890", "12", "9" * 20)]
    together = [score.reward for (score,) in judge.score(requests)]
    alone = [judge.score([one])[0][0].reward for one in requests]
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(("longest", "factors"), [(PRETRAINED, [1.0] * 2), (9, [4.0, 64.0])])
def test_the_longest_sample_of_a_run_chooses_the_frequencies_of_all(
    tmp_path: Path, longest: int, factors: list[float]
) -> None:
    """The export has them, too: it is the function that was trained, at each length."""
    longrope(torch.float32).save_pretrained(tmp_path / "base")
    rope = {**LONGROPE["rope_parameters"], "short_factor": factors, "long_factor": factors}
    of_one_set = CONFIG_MAPPING["phi3"](
        **{**COMMON, "head_dim": 4, **LONGROPE, "rope_parameters": rope}
    )
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "base", config=of_one_set)
    loaded = load_causal_lm(str(tmp_path / "base"), torch.float32, longest=longest)
    loaded.save_pretrained(tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]])
    with torch.no_grad():
        for length in (4, longest):
            logits = expected(input_ids=tokens[:, :length]).logits
            assert torch.equal(loaded(input_ids=tokens[:, :length]).logits, logits)
            assert torch.equal(exported(input_ids=tokens[:, :length]).logits, logits)


def test_frequencies_of_a_score_do_not_follow_the_longest_sequence_so_far() -> None:
    """Runs with longer samples are refused; a pass with one must not change the next."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = CONFIG_MAPPING["llama"](
        **{**COMMON, "max_position_embeddings": PRETRAINED, "rope_parameters": rope}
    )
    torch.manual_seed(0)
    of = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for parameter in of.parameters():
        parameter.data *= 10
    wanted = ModelSettings(model="", mixed_precision=False, micro_batch_size=6, temperature=1.0)
    scorer = LogProbModel(of, torch.device("cpu"), wanted)
    sequences = batch([6, 14, 8, 10], 2)
    together = scores(scorer, sequences)
    for row in range(len(sequences)):
        part = sequences.rows(np.array([row]))
        alone = scores(scorer, part)
        assert np.allclose(alone[0], together[row, : alone.shape[1]], atol=1e-6)


@pytest.mark.parametrize(("most", "refused"), [(64, False), (65, True)])
def test_frequencies_that_follow_the_longest_sequence_are_refused(
    tiny: Tiny, run_dir: Path, tmp_path: Path, most: int, refused: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((tiny.model / "config.json").read_text())
    changes = {
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    }
    (model / "config.json").write_text(json.dumps(config | changes))
    flags = {"generate_max_len": 4, "prompt_max_len": most - 4}
    faults = engine_faults(replace(tiny, model=model).config(run_dir, **flags))
    assert [("rope_type dynamic" in one and "--max_len 64" in one) for one in faults] == (
        [True] * refused
    )


def test_so_are_they_where_config_json_is_on_the_hub_alone(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = CONFIG_MAPPING["llama"](
        **{**COMMON, "max_position_embeddings": PRETRAINED, "rope_parameters": rope}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_causal_lm(str(tmp_path), torch.float32, longest=PRETRAINED)
    for load in (load_causal_lm, load_backbone, load_scorer):
        with pytest.raises(UnfitModelError, match=f"rope_type dynamic.*--max_len {PRETRAINED}"):
            load(str(tmp_path), torch.float32, longest=PRETRAINED + 1)
