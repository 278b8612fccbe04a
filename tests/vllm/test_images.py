"""vLLM with images: the transformers engine's tokens, and new weights of the visual encoder.

vLLM reads images with torchvision, which has no build for CPUs beside torch's own. Images on GPUs
have it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from env.episodes.types import Context
from env.images.types import PlacedImage
from env.prepare.tiny_model import TinyModel
from tests.support import vision
from tests.support.engines import staged
from tests.support.vision import Seeing
from trainer.config.options.parallelism import VLLMSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.models.loading import load_causal_lm
from trainer.rollout import vllm_images
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import Completion, EngineFailedError, FinishedRollout, PartialRollout, Request
from trainer.weight_sync import shared_memory

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]
SAMPLING = SamplingSettings(max_new_tokens=6, temperature=0.0)
SHAPE = TinyModel(architecture="qwen2_5_vl", hidden_size=64, layers=2, heads=2, max_length=256)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return vision.tiny(tmp_path_factory.mktemp("vllm"), SHAPE)


def settings(model: Path) -> EngineSettings:
    return EngineSettings(
        model=str(model),
        add_special_tokens=False,
        prompt_max_len=100,
        sampling=SAMPLING,
        mixed_precision=False,
        slots=4,
        max_images=2,
        vllm=VLLMSettings(
            enforce_eager=True, enable_prefix_caching=True, sync_backend="shared_memory"
        ),
    )


def contexts(seeing: Seeing) -> list[Context]:
    sizes = ((150, 70), (60, 90))
    wide, high = (seeing.processor.fit(vision.picture(*size)) for size in sizes)
    rows = [
        seeing.tokens("ab", wide, "12?"),
        seeing.tokens(high, "a", wide, "?"),
        seeing.tokens("12?"),
        after_an_image_token_of_the_policy(seeing),
    ]
    return [Context(tuple(tokens), 6, images=placed) for tokens, placed in rows]


def after_an_image_token_of_the_policy(
    seeing: Seeing,
) -> tuple[list[int], tuple[PlacedImage, ...]]:
    """Return a later turn's context: an image, a reply with the image token, another image."""
    image, other = (seeing.processor.fit(vision.picture(60, 90, seed)) for seed in (1, 2))
    tokens, placed = seeing.tokens(image, "1ab", other, "2?")
    tokens[placed[0].start + image.tokens + 2] = seeing.ids["<|image_pad|>"]  # was an "a"
    return tokens, placed


def assert_same(one: list[Completion], other: list[Completion]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert np.allclose(a.log_probs, b.log_probs, atol=1e-4)


class Renderer:
    """vLLM's renderer without its image processor: it finds the places of images in tokens."""

    def __init__(self, token: int, images: tuple[PlacedImage, ...]) -> None:
        self._token = token
        self._images = images

    def render_cmpl(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from vllm.multimodal.processing import PromptReplacement
        from vllm.multimodal.processing.processor import _apply_token_matches_with_placeholders

        def repeated(number: int) -> list[int]:
            return [self._token] * self._images[number].image.tokens

        update = PromptReplacement("image", [self._token], repeated)
        updates = {"image": [[update.resolve(number)] for number in range(len(self._images))]}
        tokens, _, found = _apply_token_matches_with_placeholders(
            prompts[0]["prompt_token_ids"], updates
        )
        places = [place.to_range() for place in found["image"]]
        return [{"prompt_token_ids": tokens, "mm_placeholders": {"image": places}}]


def test_images_have_their_places_also_if_the_policy_wrote_their_token(seeing: Seeing) -> None:
    tokens, placed = after_an_image_token_of_the_policy(seeing)
    renderer = Renderer(seeing.ids["<|image_pad|>"], placed)
    rendered = vllm_images.engine_input(renderer, tokens, placed)
    assert rendered["prompt_token_ids"] == tokens
    places = [(place.offset, place.length) for place in rendered["mm_placeholders"]["image"]]
    assert places == [(one.start, one.image.tokens) for one in placed]


def test_an_image_that_vllm_would_cut_otherwise_ends_the_engine(seeing: Seeing) -> None:
    tokens, placed = after_an_image_token_of_the_policy(seeing)
    larger = seeing.processor.fit(vision.picture(150, 70))
    other = (placed[0], replace(placed[1], image=larger))
    renderer = Renderer(seeing.ids["<|image_pad|>"], other)
    with pytest.raises(EngineFailedError, match="its image processor differs from the trainer's"):
        vllm_images.engine_input(renderer, tokens, placed)


@pytest.mark.skipif(not vision.HAS_TORCHVISION, reason="vLLM reads images with torchvision")
def test_vllm_sees_what_the_transformers_engine_sees(seeing: Seeing) -> None:
    from trainer.rollout.vllm_engine import VLLMEngine

    engine, other = VLLMEngine(settings(seeing.model)), HFEngine(settings(seeing.model))
    asked = [Request("", (1, 2), context) for context in contexts(seeing)]
    before = engine.generate(asked, SAMPLING)
    assert_same(before, other.generate(asked, SAMPLING))

    partials = [
        PartialRollout((number, 0), "", 1, context=context)
        for number, context in enumerate(contexts(seeing))
    ]
    finished: list[FinishedRollout] = []
    while len(finished) < len(contexts(seeing)):
        finished += engine.write(partials, SAMPLING, seconds=5.0).ended
        partials = []
    ordered = [r.completion for r in sorted(finished, key=lambda rollout: rollout.key)]
    assert_same(ordered, before[::2])

    model = load_causal_lm(str(seeing.model), torch.float32)
    with torch.no_grad():
        for parameter in model.model.visual.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.5)
    outbox = shared_memory.SharedMemorySender()
    bucket = staged(outbox, dict(model.named_parameters()))
    for receiver in (engine, other):
        receiver.begin()
        receiver.load(bucket)
        receiver.commit(1)
    after = engine.generate(asked, SAMPLING)
    assert_same(after, other.generate(asked, SAMPLING))
    assert not np.allclose(after[0].log_probs, before[0].log_probs, atol=1e-3)
