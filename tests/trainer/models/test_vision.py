"""Images in a forward pass: the log-probabilities of transformers' own Qwen2.5-VL."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from env.images.types import PlacedImage
from tests.support.ragged import mask_of, padded, scores
from tests.support.vision import Seeing, picture, sequences, tiny
from trainer.models import vision
from trainer.models.causal_lm import LogProbModel
from trainer.models.image_processor import ImageProcessor
from trainer.models.loading import load_causal_lm
from trainer.models.settings import ModelSettings
from trainer.types import Sequences

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return tiny(tmp_path_factory.mktemp("vision"))


@pytest.fixture
def scorer(seeing: Seeing) -> LogProbModel:
    model = load_causal_lm(str(seeing.model), torch.float32).eval()
    settings = ModelSettings(
        model=str(seeing.model), mixed_precision=False, micro_batch_size=4, temperature=1.0
    )
    return LogProbModel(model, CPU, settings)


def rows(seeing: Seeing) -> Sequences:
    """One image, two images, none."""
    wide, high = (seeing.processor.fit(picture(*size)) for size in ((150, 70), (60, 90)))
    return sequences(
        [
            seeing.tokens("ab", wide, "12?34"),
            seeing.tokens(high, "a", wide, "?5678"),
            seeing.tokens("12?345"),
        ],
        actions=4,
    )


def own(model: Any, seeing: Seeing, found: Sequences) -> Tensor:
    """Return transformers' log-probabilities of the actions, from its own inputs."""
    assert found.images is not None
    shown = [placed.image for row in found.images for placed in row]
    patches, grids = seeing.processor.patches(shown)
    tokens = torch.from_numpy(padded(found.tokens, found)).long()
    mask = torch.arange(tokens.shape[1]) < torch.from_numpy(found.lengths)[:, None]
    seen = tokens == seeing.ids["<|image_pad|>"]
    output = model(
        input_ids=tokens,
        attention_mask=mask.long(),
        pixel_values=torch.from_numpy(patches),
        image_grid_thw=torch.from_numpy(grids),
        mm_token_type_ids=seen.int(),
    )
    each = output.logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    chosen: Tensor = each[torch.from_numpy(mask_of(found)[:, 1:])]
    return chosen


@pytest.mark.parametrize("size", [(150, 70), (60, 90), (1000, 900), (20, 30), (28, 28)])
def test_an_image_has_the_patches_of_transformers_own_processor(
    seeing: Seeing, size: tuple[int, int]
) -> None:
    image = seeing.processor.fit(picture(*size))
    patches, grids = seeing.processor.patches([image])
    whole = seeing.processor._own(picture(*size), return_tensors="np")
    assert np.array_equal(patches, whole["pixel_values"])
    assert np.array_equal(grids, whole["image_grid_thw"])
    assert image.tokens == grids.prod() // 4
    assert image.pixels.dtype == np.uint8


def test_a_limit_of_pixels_makes_images_smaller(seeing: Seeing) -> None:
    small = ImageProcessor(str(seeing.model), max_pixels=6 * 28**2).fit(picture(500, 500))
    assert (small.tokens, small.pixels.shape) == (4, (56, 56, 3))
    with pytest.raises(ValueError, match="aspect ratio"):
        seeing.processor.fit(picture(2000, 2))


def test_positions_are_those_of_transformers(seeing: Seeing, scorer: LogProbModel) -> None:
    found = rows(seeing)
    assert found.images is not None
    shown = [placed.image for row in found.images for placed in row]
    _, grids = seeing.processor.patches(shown)
    each = np.split(found.tokens, np.cumsum(found.lengths)[:-1])
    for tokens, length, placed in zip(each, found.lengths, found.images, strict=True):
        ids = torch.from_numpy(tokens[None]).long()
        expected, shift = scorer.model.model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == seeing.ids["<|image_pad|>"]).int(),
            image_grid_thw=torch.from_numpy(grids[: len(placed)]),
        )
        grids = grids[len(placed) :]
        positions, after = vision.positions(length, placed, seeing.processor.unit)
        assert np.array_equal(positions, expected[:, 0].numpy())
        assert after == length + shift.item()


def test_log_probabilities_are_those_of_transformers(seeing: Seeing, scorer: LogProbModel) -> None:
    found = rows(seeing)
    with torch.no_grad():
        got = scorer(found)[0]
        expected = own(scorer.model, seeing, found)
        blind = scorer(replace(found, images=None))[0]
    assert not scorer.packed
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    moved = (got - blind).abs()
    assert moved[:8].min() > 1e-5  # the images are seen
    assert moved[8:].max() < 1e-6


def test_each_pass_has_the_images_of_its_rows(seeing: Seeing, scorer: LogProbModel) -> None:
    found = rows(seeing)
    with torch.no_grad():
        expected = own(scorer.model, seeing, found).numpy()
    scorer._limits = replace(scorer._limits, samples=1)
    assert np.allclose(scores(scorer, found)[mask_of(found)], expected, atol=1e-5)


def test_an_image_token_that_the_policy_writes_is_a_token_like_any_other(
    seeing: Seeing, scorer: LogProbModel
) -> None:
    found = rows(seeing)
    written = found.tokens.copy()
    written[found.lengths[0] - 2] = seeing.ids["<|image_pad|>"]
    with torch.no_grad():
        before, after = (scorer(replace(found, tokens=t))[0] for t in (found.tokens, written))
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2:4], after[2:4])


def test_gradients_reach_the_encoder_unless_it_is_frozen(
    seeing: Seeing, scorer: LogProbModel
) -> None:
    encoder = scorer.model.model.visual
    scorer(rows(seeing))[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
    scorer.zero_grad()
    text = sequences([seeing.tokens("12?345")], actions=4)
    scorer(text)[0].sum().backward()
    # Ranks reduce the same gradients, also if one of them has no image.
    assert all(p.grad is not None and not p.grad.any() for p in encoder.parameters())
    scorer.zero_grad()
    vision.freeze(scorer.model)
    scorer(rows(seeing))[0].sum().backward()
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad is not None for p in scorer.model.model.language_model.parameters())


def test_the_images_of_a_batch_travel_once_each(seeing: Seeing) -> None:
    """A prompt's completions share its images, also in another process."""
    image = seeing.processor.fit(picture(60, 90))
    row = seeing.tokens(image, "12?345")
    sent = pickle.dumps(sequences([row] * 4, actions=4))
    assert len(sent) < 1.2 * image.pixels.nbytes
    found = pickle.loads(sent).images
    assert len({id(placed.image) for (placed,) in found}) == 1
    assert np.array_equal(found[0][0].image.pixels, image.pixels)


def test_collated_rows_keep_their_images(seeing: Seeing) -> None:
    found = rows(seeing)
    assert found.images is not None
    picked = found.rows(np.array([2, 0]))
    assert picked.images == ((), found.images[0])
    assert isinstance(found.images[0][0], PlacedImage)
