"""Chats with images: places for each image, one copy of its pixels, and faults by name."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from env.episodes.chat import ChatError, PlainChat
from env.episodes.environment import Environment, SingleTurn
from env.episodes.episode import run_episode
from env.episodes.types import (
    Context,
    Generated,
    Limits,
    Reply,
    ReplyStop,
    Task,
    Turn,
    UnusableTaskError,
)
from env.images.load import ImageError
from env.types import Messages, Prompt
from tests.support.vision import Seeing, picture, tiny
from trainer.rollout.episodes import completion_of
from trainer.rollout.image_chat import ImageChat, first_fault
from trainer.types import Sequences

LIMITS = Limits(turns=2, prompt=60, reply=4, total=200)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return tiny(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def chat(seeing: Seeing) -> ImageChat:
    tokenizer: Any = AutoTokenizer.from_pretrained(seeing.model)
    return ImageChat(tokenizer, seeing.processor, seeing.ids["<|image_pad|>"])


def asking(*images: Path | str) -> Messages:
    parts = [{"type": "image", "image": str(image)} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "12?"}]}]


def saved(root: Path, name: str = "a.png", size: tuple[int, int] = (60, 90)) -> Path:
    picture(*size).save(root / name)
    return root / name


def test_each_image_takes_as_many_tokens_as_the_model_has_features(
    seeing: Seeing, chat: ImageChat, tmp_path: Path
) -> None:
    messages = asking(saved(tmp_path), saved(tmp_path, "b.png", (150, 70)))
    images = asyncio.run(chat.images(messages))
    tokens = chat.begin(messages, (), images)
    expected, places = seeing.tokens(images[0], images[1], "12?")
    start, end = seeing.ids["<|im_start|>"], seeing.ids["<|im_end|>"]
    assert tokens == [start, *expected, end, start]
    assert [placed.start for placed in chat.placed(tokens, images)] == [
        placed.start + 1 for placed in places
    ]


def test_a_text_shows_the_image_token_once_for_each_image(chat: ImageChat, tmp_path: Path) -> None:
    messages = asking(saved(tmp_path), saved(tmp_path, "b.png", (150, 70)))
    images = asyncio.run(chat.images(messages))
    shown = chat.decode(chat.begin(messages, (), images))
    assert shown.count("<|image_pad|>") == 2
    assert shown.count("<|im_start|>") == 2


def test_episodes_share_the_pixels_of_an_image_while_they_live(
    chat: ImageChat, tmp_path: Path
) -> None:
    messages = asking(saved(tmp_path))
    first, again = asyncio.run(chat.images(messages)), asyncio.run(chat.images(messages))
    assert first[0] is again[0]
    assert len(chat._living) == 1
    del first, again
    gc.collect()
    assert not chat._living


class Shows(Environment):
    """Shows another image after the first reply."""

    def __init__(self, image: Path) -> None:
        self._image = image

    async def step(self, reply: Reply) -> Turn:
        return Turn(asking(self._image))


class Policy:
    """Writes the image token, and is shown its contexts."""

    def __init__(self, token: int) -> None:
        self._token = token
        self.contexts: list[Context] = []

    async def __call__(self, context: Context) -> Generated:
        self.contexts.append(context)
        return Generated([self._token] * 2, [-1.0] * 2, [0] * 2, ReplyStop.END)


def test_an_environment_shows_images_in_later_turns(
    seeing: Seeing, chat: ImageChat, tmp_path: Path
) -> None:
    policy = Policy(seeing.ids["<|image_pad|>"])
    task = Task(0, asking(saved(tmp_path)))
    environment = Shows(saved(tmp_path, "b.png", (150, 70)))
    episode = asyncio.run(run_episode(environment, task, chat, policy, LIMITS))
    assert [len(context.images) for context in policy.contexts] == [1, 2]
    for placed in episode.images:
        span = slice(placed.start, placed.start + placed.image.tokens)
        assert set(episode.tokens[span]) == {seeing.ids["<|image_pad|>"]}
        assert not any(episode.action_mask[span])
        assert episode.tokens[placed.start - 1] == seeing.ids["<|vision_start|>"]
    sequences = Sequences.collate([completion_of(episode)])
    assert sequences.images == (tuple(episode.images),)


def fail(chat: Any, *images: Path | str) -> str:
    with pytest.raises(UnusableTaskError) as caught:
        asyncio.run(run_episode(SingleTurn(), Task(0, asking(*images)), chat, Policy(0), LIMITS))
    return str(caught.value)


def test_an_image_that_cannot_be_used_fails_its_episode_by_name(
    chat: ImageChat, tmp_path: Path
) -> None:
    assert "none.png: no such file" in fail(chat, tmp_path / "none.png")
    whole = saved(tmp_path)
    whole.write_bytes(whole.read_bytes()[:500])
    assert "a.png: truncated or damaged" in fail(chat, whole)
    assert "aspect ratio" in fail(chat, saved(tmp_path, "thin.png", (3000, 3)))
    large = [saved(tmp_path, f"{n}.png", (200, 200)) for n in range(4)]
    assert "tokens with its 4 images, and --prompt_max_len is 60" in fail(chat, *large)


def test_a_text_with_the_models_own_image_token_is_refused(chat: ImageChat) -> None:
    with pytest.raises(ChatError, match="a text has the model's own"):
        chat.begin([{"role": "user", "content": "<|image_pad|>"}], ())


def test_a_model_of_text_is_shown_no_image(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="takes only text"):
        asyncio.run(PlainChat(None).images(asking("a.png")))


def prompts(*messages: Messages) -> list[Prompt]:
    return [Prompt(index, "", messages=found) for index, found in enumerate(messages)]


def test_a_wrong_folder_is_found_before_the_first_step(chat: ImageChat, tmp_path: Path) -> None:
    text: Sequence[Any] = [{"role": "user", "content": "1"}]
    wrong, right = asking(tmp_path / "no.png"), asking(saved(tmp_path))
    assert first_fault(chat, prompts(text), 60) is None
    assert first_fault(chat, prompts(wrong, right), 60) is None
    assert first_fault(chat, prompts(text, wrong), 60) == (
        f"row 2: {tmp_path / 'no.png'}: no such file"
    )
    fault = first_fault(chat, prompts(right), 10)
    assert fault is not None
    assert "tokens with its images, and --prompt_max_len is 10" in fault
    with pytest.raises(ImageError):
        asyncio.run(chat.images(wrong))
