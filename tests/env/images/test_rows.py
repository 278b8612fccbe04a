"""Images of rows: as parts of messages, as OpenRLHF's column, as OpenRLHF-M's JSON text."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from env.data import prompts
from env.data.prompts import PromptError, PromptStream, ReadSettings, images_of, load_prompts
from env.images.rows import ImageColumn
from env.types import Prompt

IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "How many?"}


def load(root: Path, row: dict[str, Any], input_key: str = "q", **column: Any) -> Prompt:
    path = root / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (prompt,) = load_prompts(
        path, ReadSettings(input_key, render=json.dumps, images=ImageColumn(**column))
    )
    return prompt


def content_of(root: Path, row: dict[str, Any], **column: Any) -> Any:
    messages = load(root, row, **column).messages
    assert messages is not None
    return messages[-1]["content"]


def at(path: Path | str) -> dict[str, str]:
    return {"type": "image", "image": str(path)}


def test_the_rows_of_openrlhf_m_are_read(tmp_path: Path) -> None:
    """`message` is JSON text; its images are URIs of files, or paths."""
    parts = [{"type": "image", "image": "file:///data/a%20b.png"}, TEXT]
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": parts}]
    prompt = load(tmp_path, {"message": json.dumps(chat), "answer": "2"}, "message")
    assert prompt.messages == [chat[0], {"role": "user", "content": [at("/data/a b.png"), TEXT]}]
    assert list(images_of(prompt)) == ["/data/a b.png"]


@pytest.mark.parametrize("key", ["images", "pictures"])
@pytest.mark.parametrize("images", [["a.png"], "a.png"])
def test_images_of_a_column_come_before_the_first_text(
    tmp_path: Path, key: str, images: Any
) -> None:
    expected = [at(tmp_path / "a.png"), TEXT]
    assert content_of(tmp_path, {"q": "How many?", key: images}, key=key) == expected
    asked = [{"role": "user", "content": "How many?"}]
    assert content_of(tmp_path, {"q": asked, key: images}, key=key) == expected


def test_images_of_a_column_take_the_places_that_the_text_or_the_messages_have(
    tmp_path: Path,
) -> None:
    a, b = at(tmp_path / "a.png"), at(tmp_path / "b.png")
    between = {"type": "text", "text": " or "}
    row = {"q": "<image> or <image>", "images": ["a.png", "b.png"]}
    assert content_of(tmp_path, row) == [a, between, b]
    chat = [{"role": "user", "content": [TEXT, IMAGE, {"type": "image", "text": None}]}]
    assert content_of(tmp_path, {"q": chat, "images": ["a.png", "b.png"]}) == [TEXT, a, b]
    chat[0]["content"][1] = {"type": "image_url", "image_url": {"url": "c.png"}}  # type: ignore[index]
    found = content_of(tmp_path, {"q": chat, "images": ["a.png"]})
    assert found == [TEXT, at(tmp_path / "c.png"), a]


def test_a_row_without_images_stays_as_it_is(tmp_path: Path) -> None:
    assert content_of(tmp_path, {"q": "Is <image> a tag?", "images": []}) == "Is <image> a tag?"
    assert content_of(tmp_path, {"q": [{"role": "user", "content": [TEXT]}]}) == "How many?"


def test_bytes_of_a_table_stay_with_the_row_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset, Features, Image, List, Value

    kinds = Features({"q": Value("string"), "images": List(Image(decode=False))})
    images = [{"bytes": b"12", "path": None}]
    data = Dataset.from_list([{"q": "?", "images": images}], features=kinds)
    data.save_to_disk(str(tmp_path / "saved"))
    (prompt,) = load_prompts(
        tmp_path / "saved", ReadSettings("q", render=json.dumps, images=ImageColumn())
    )
    expected = f"data:image;base64,{base64.b64encode(b'12').decode()}"
    assert list(images_of(prompt)) == [expected]
    monkeypatch.setattr(prompts, "EMBEDDED_BYTES", len(expected) - 1)
    with pytest.raises(PromptError, match=r"row 1: .* Save the images as files"):
        load_prompts(tmp_path / "saved", ReadSettings("q", render=json.dumps, images=ImageColumn()))


def test_a_cursor_belongs_to_its_images(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def stream(image: str) -> PromptStream:
        path.write_text(json.dumps({"q": "?", "images": [image]}) + "\n")
        return PromptStream(path, ReadSettings("q", render=lambda _: "?", images=ImageColumn()))

    state = stream("a.png").state_dict()
    stream("a.png").load_state_dict(state)
    with pytest.raises(PromptError, match="belongs to other prompts"):
        stream("b.png").load_state_dict(state)


@pytest.mark.parametrize(
    ("row", "column", "says"),
    [
        ({"q": "<image>", "images": ["a", "b"]}, {}, "has 2 images .* and 1 places for them"),
        ({"q": "?", "images": ["https://x/a.png"]}, {}, "only files are read. Download"),
        ({"q": "?", "images": [7]}, {}, "an image of type int"),
        ({"q": "?", "images": ["a", "b"]}, {"most": 1}, "2 images, and --max_images_per_prompt"),
        ({"q": [{"role": "user", "content": [IMAGE]}]}, {}, "'image' without an image"),
        ({"q": [{"role": "user", "content": [{"type": "audio"}]}]}, {}, "type 'audio'"),
        ({"q": [{"role": "system", "content": "?"}], "images": ["a"]}, {}, "no message of the"),
        ({"q": [{"role": "user", "content": 5}], "images": ["a"]}, {}, "content of type int"),
        ({"q": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, {}, "text of type"),
        (
            {"q": "?", "images": ["http://[a"]},
            {},
            "names the image http://\\[a, which is not a path",
        ),
        ({"q": "?", "image": "a.png"}, {}, "Give --image_key image"),
        ({"q": "?", "video": "a.mp4"}, {}, "'video', and only text and images are"),
        ({"q": "?"}, {"key": "pictures", "required": True}, "the key 'pictures' is missing"),
    ],
)
def test_faults_are_named_with_the_row(
    tmp_path: Path, row: dict[str, Any], column: dict[str, Any], says: str
) -> None:
    with pytest.raises(PromptError, match=says) as caught:
        load(tmp_path, row, **column)
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}:1: ")
