"""The transformers engine with images: transformers' own greedy tokens, partial rollouts too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from env.episodes.types import Context
from tests.support.ragged import scores
from tests.support.vision import Seeing, picture, sequences, tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.models.causal_lm import LogProbModel
from trainer.models.loading import load_causal_lm
from trainer.models.settings import ModelSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import PartialRollout, Request, Sequences

SAMPLING = SamplingSettings(max_new_tokens=6, temperature=0.0)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return tiny(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def contexts(seeing: Seeing) -> list[Context]:
    wide, high = (seeing.processor.fit(picture(*size)) for size in ((150, 70), (60, 90)))
    rows = [
        seeing.tokens("ab", wide, "12?"),
        seeing.tokens(high, "a", wide, "?"),
        seeing.tokens("12?"),
    ]
    return [Context(tuple(tokens), 6, images=placed) for tokens, placed in rows]


@pytest.fixture
def engine(seeing: Seeing) -> HFEngine:
    return HFEngine(
        EngineSettings(
            model=str(seeing.model),
            add_special_tokens=False,
            prompt_max_len=64,
            sampling=SAMPLING,
            mixed_precision=False,
            slots=2,
        )
    )


def own(seeing: Seeing, context: Context) -> list[int]:
    """Return what transformers' `generate` writes, from its own inputs."""
    model: Any = load_causal_lm(str(seeing.model), torch.float32).eval()
    tokens = torch.tensor([context.tokens])
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if context.images:
        patches, grids = seeing.processor.patches([placed.image for placed in context.images])
        inputs["pixel_values"] = torch.from_numpy(patches)
        inputs["image_grid_thw"] = torch.from_numpy(grids)
        inputs["mm_token_type_ids"] = (tokens == seeing.ids["<|image_pad|>"]).int()
    whole = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    written: list[int] = whole[0, tokens.shape[1] :].tolist()
    return written


def scored(seeing: Seeing, found: Sequences) -> Any:
    settings = ModelSettings(
        model=str(seeing.model), mixed_precision=False, micro_batch_size=4, temperature=1.0
    )
    model = load_causal_lm(str(seeing.model), torch.float32).eval()
    return scores(LogProbModel(model, torch.device("cpu"), settings), found)


def test_it_writes_the_tokens_of_transformers_with_the_trainers_log_probabilities(
    seeing: Seeing, contexts: list[Context], engine: HFEngine
) -> None:
    asked = [Request("", (1, 2), context) for context in contexts]
    written = engine.generate(asked, SAMPLING)
    for context, one, other in zip(contexts, written[::2], written[1::2], strict=True):
        start = len(context.tokens)
        assert one.tokens[start:].tolist() == other.tokens[start:].tolist()
        assert one.tokens[start:].tolist() == own(seeing, context)
    for context, completion in zip(contexts, written[::2], strict=True):
        rows = [(completion.tokens.tolist(), context.images)]
        scores = scored(seeing, sequences(rows, completion.length))
        assert np.allclose(scores[0], completion.log_probs, atol=1e-4)


def test_partial_rollouts_see_their_images_also_after_new_weights(
    seeing: Seeing, contexts: list[Context], engine: HFEngine
) -> None:
    partials = [
        PartialRollout((number, 0), "", 1, context=context)
        for number, context in enumerate(contexts)
    ]
    engine.write(partials, SAMPLING, seconds=0.0)
    assert engine._partials is not None
    engine._partials = engine._partials.with_weights_of(1)  # its keys and values are gone
    found = engine.write([], SAMPLING, seconds=60.0).ended
    assert len(found) == 3
    for rollout in found:
        context = contexts[rollout.key[0]]
        written = rollout.completion.tokens[len(context.tokens) :]
        assert written.tolist() == own(seeing, context)
