"""`rollcall prepare mathv60k`: mathematics with pictures, as OpenRLHF-M's guide takes it.

The source has `mathv60k_message.jsonl`, whose rows name the images by the paths of their authors'
machine, and `mathv60k_img.tar.gz` with the images. The rows that are written name the extracted
images relative to their own file, so that the directory can be moved.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Set
from pathlib import Path, PurePosixPath
from typing import Any

from env.data.rows import PromptError, Row, is_chat, read_rows, refuse_halves
from env.http.arguments import positive, sub_command
from env.images.rows import references
from env.prepare.archive import extract_images
from env.prepare.hub import source_of
from env.prepare.output import PrepareError, prepare, sha256, write_jsonl

HUB = "VLM-Reasoner/VerMulti"
ROWS, ARCHIVE = "mathv60k_message.jsonl", "mathv60k_img.tar.gz"


def add_mathv60k(tasks: Any) -> None:
    parser = sub_command(tasks, "mathv60k", "mathematics with pictures, as chats with images")
    parser.set_defaults(run=_run)
    option = parser.add_argument
    option("--out", type=Path, required=True, help="directory to fill")
    option("--source", type=Path, help=f"directory of {ROWS} and {ARCHIVE}; without it {HUB}")
    option("--max-samples", type=positive, help="rows to write; without it all")
    option("--force", action="store_true", help="make it again whatever is there")


def _run(arguments: argparse.Namespace) -> bool:
    """Whether anything was to be made. Raises PrepareError and PromptError."""
    source = source_of(arguments, HUB, (ROWS, ARCHIVE))
    for name in (ROWS, ARCHIVE):
        if not (source / name).is_file():
            raise PrepareError(
                f"{source}: has no {name}. Give --source the directory of both files"
            )

    def make(out: Path) -> Set[str]:
        try:
            images = extract_images(source / ARCHIVE, arguments.out)
        except OSError as error:
            raise PrepareError(f"{arguments.out}: not writable: {error.strerror}") from error
        rows = _Rows(source / ROWS, images, arguments.max_samples)
        write_jsonl(out / ROWS, rows)
        print(f"{ROWS}: {rows.written} rows; {rows.dropped} name images that the archive lacks")
        if not rows.written:
            raise PrepareError(f"{source / ROWS}: no row names an image of {ARCHIVE}")
        return images

    recipe = {
        "task": "mathv60k",
        "max_samples": arguments.max_samples,
        "source": {name: sha256(source / name) for name in (ROWS, ARCHIVE)},
    }
    return prepare(arguments.out, recipe, make, force=arguments.force)


class _Rows:
    """The rows with the paths of extracted images. Iterate once."""

    def __init__(self, path: Path, images: Set[str], most: int | None) -> None:
        self._path, self._images, self._most = path, images, most
        self.written = self.dropped = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in read_rows(self._path, ("message",)):
            if self.written == self._most:
                return
            messages = _messages(row)
            if not _relocate(messages, self._images):
                self.dropped += 1
                continue
            self.written += 1
            yield {**row.fields, "message": messages}


def _messages(row: Row) -> list[dict[str, Any]]:
    value = row.fields["message"]
    refuse_halves(row.where, [*row.fields], row.fields)
    try:
        messages: list[dict[str, Any]] = json.loads(value) if isinstance(value, str) else value
        are_chat = is_chat(messages) and all(one.get("content") is not None for one in messages)
        are_paths = are_chat and all(isinstance(image, str) for image in references(messages))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        are_chat = False
    if not are_chat:
        raise PromptError(f"{row.where}: 'message' holds no messages")
    refuse_halves(row.where, ["message"], {"message": messages})
    if not are_paths:
        raise PromptError(f"{row.where}: 'message' has an image that is not a path")
    return messages


def _relocate(messages: list[dict[str, Any]], images: Set[str]) -> bool:
    """Write the archive's paths into image parts. Returns False if the archive lacks one."""
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part.get("type") != "image":
                continue
            found = extracted(part["image"], images)
            if found is None:
                return False
            part["image"] = found
    return True


def extracted(path: str, images: Set[str]) -> str | None:
    """Return the archive's path of an image: the longest end of `path` that is one."""
    parts = PurePosixPath(path.removeprefix("file://")).parts
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in images), None)
