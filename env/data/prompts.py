"""Prompts: read once, then dealt out in a new order every epoch, from a cursor that resumes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from env.data.prompt_rows import Render, RowReader, check_template
from env.data.rows import TRAIN, MissingKeyError, PromptError, RowError, read_rows
from env.images.rows import ImageColumn, references
from env.images.types import EMBEDDED
from env.types import Prompt

__all__ = [
    "MissingKeyError",
    "PromptError",
    "PromptStream",
    "ReadSettings",
    "Render",
    "RowError",
    "check_template",
    "load_prompts",
    "mixed",
]

EMBEDDED_BYTES = 4 << 30
"""Most bytes of images that a data set's rows themselves have. All stay in the driver's memory."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How the rows of a data set are read."""

    input_key: str = "input"
    label_key: str | None = None
    input_template: str | None = None
    """Has one `{}` for the text."""
    max_samples: int | None = None
    """Most rows of a data set, and of a mix of several; None: all."""
    render: Render | None = None
    """With it, a text becomes a user message, and lists of messages are read too."""
    columns: bool = False
    """Whether prompts have every column of their row."""
    images: ImageColumn | None = None
    """How rows have their images; None: images are refused."""
    split: str = TRAIN
    """Of a directory that has several."""


PLAIN = ReadSettings()


def load_prompts(path: str | Path, how: ReadSettings = PLAIN) -> list[Prompt]:
    """The first `how.max_samples` prompts of `path`, in file order.

    Raises PromptError for data that is missing, empty or broken.
    """
    path, images = Path(path), how.images
    check_template(how.input_template)
    if how.max_samples is not None and how.max_samples < 1:
        raise PromptError(f"max_samples is {how.max_samples}; at least 1 is wanted")
    keys = [how.input_key] if how.label_key is None else [how.input_key, how.label_key]
    read = [*keys, images.key] if images and images.required else keys
    rows = islice(read_rows(path, read, whole=how.columns, split=how.split), how.max_samples)
    directory = path if path.is_dir() else path.parent
    reader = RowReader(keys, how.input_template, how.render, images, directory)
    prompts, embedded = [], 0
    for index, row in enumerate(rows):
        prompt = reader.prompt(index, row)
        prompts.append(replace(prompt, columns=row.fields) if how.columns else prompt)
        embedded += sum(len(image) for image in images_of(prompt) if image.startswith(EMBEDDED))
        if embedded > EMBEDDED_BYTES:
            raise PromptError(
                f"{row.where}: the rows up to here have more than {EMBEDDED_BYTES >> 30} GiB of "
                "images in themselves. Save the images as files, and give their paths"
            )
    if not prompts:
        raise PromptError(f"{path}: holds no prompts. Give one with a row for each prompt")
    return prompts


class PromptStream:
    """Endless batches of prompts, each epoch in an order of its own.

    The order depends on `seed` and the epoch only, so that the cursor is two numbers and a resumed
    stream deals exactly what an uninterrupted one would have. Several data sets are mixed once, by
    `shares` and `seed`: an epoch deals each prompt of the mix.
    """

    _epoch: int
    _position: int
    _order: list[int]

    def __init__(
        self,
        path: str | Path | Sequence[Path],
        how: ReadSettings = PLAIN,
        *,
        seed: int = 0,
        shares: Sequence[float] = (),
    ) -> None:
        paths = [path] if isinstance(path, str | Path) else path
        self._path = ",".join(map(str, paths))
        self._prompts = mixed([load_prompts(one, how) for one in paths], shares, seed)
        self._prompts = self._prompts[: how.max_samples]
        self._fingerprint = fingerprint(self._prompts)
        self._seed = seed
        self._seek(epoch=0, position=0)

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._prompts)

    def keep_only(self, wanted: Callable[[Prompt], bool]) -> int:
        """Leave out all other prompts, and begin anew. Returns how many are left out.

        Raises PromptError if none stays.
        """
        kept = [prompt for prompt in self._prompts if wanted(prompt)]
        left_out = len(self) - len(kept)
        if not kept:
            raise PromptError(f"{self._path}: none of the {left_out} prompts can be used")
        self._prompts, self._fingerprint = kept, fingerprint(kept)
        self._seek(epoch=0, position=0)
        return left_out

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All of them, in the order of the files or of the mix."""
        return self._prompts

    @property
    def epoch(self) -> int:
        """Whole epochs dealt so far."""
        return self._epoch

    def next_batch(self, size: int) -> list[Prompt]:
        """The next `size` prompts; a batch may begin in one epoch and end in the next."""
        if size < 1:
            raise ValueError(f"a batch of {size} prompts; at least 1 is wanted")
        batch: list[Prompt] = []
        while len(batch) < size:
            end = min(self._position + size - len(batch), len(self))
            batch += (self._prompts[row] for row in self._order[self._position : end])
            if end == len(self):
                self._seek(self._epoch + 1, 0)
            else:
                self._position = end
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as JSON; belongs to these prompts and this seed."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "prompts": len(self),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. Raises PromptError if it belongs to other prompts or seed."""
        for name, mine in self.state_dict().items():
            if name not in state:
                raise PromptError(f"the saved cursor has no '{name}'")
            if name not in {"epoch", "position"} and state[name] != mine:
                raise PromptError(
                    f"the saved cursor belongs to other prompts than {self._path}: "
                    f"{_difference(name, state[name], mine)}, or another --run_dir"
                )
        self._seek(state["epoch"], state["position"])

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = list(range(len(self)))
        # A string seeds by SHA-512: neighbouring seeds and epochs share nothing.
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)


def _difference(name: str, saved: object, here: object) -> str:
    """Return how a cursor of other prompts differs, and what would be right."""
    if name == "seed":
        return f"its seed is {saved}, here it is {here}. Give --seed {saved}"
    differs = "their texts, labels or order differ"
    if name == "prompts":
        differs = f"it had {saved} prompts, here are {here}"
    return f"{differs}. Give the data of that run, with the flags that say how they are read"


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over texts, labels and images: the same for one data set in any of the formats."""
    digest = hashlib.sha256()
    for prompt in prompts:
        images = list(images_of(prompt))
        told = [prompt.text, prompt.label, *([images] if images else [])]
        digest.update(json.dumps(told).encode())
    return digest.hexdigest()


def images_of(prompt: Prompt) -> Iterator[str]:
    """Yield the references of a prompt's images."""
    return references(prompt.messages or ())


MOST_ROWS = 10_000_000
"""Most rows of a mix: each of them is in the driver's memory."""


def mixed(
    sets: Sequence[Sequence[Prompt]], shares: Sequence[float] = (), seed: int = 0
) -> list[Prompt]:
    """Return the prompts of several data sets, with their place in the whole as their index.

    Without `shares`: all prompts, one data set behind the other. With them: each prompt is the next
    of a data set drawn by its share, until each data set was dealt whole. Until then a shorter one
    begins again. That is OpenRLHF's order to the row. Raises PromptError if the mix is too long.
    """
    rows = list(chain.from_iterable(sets))
    if len(sets) > 1 and shares:
        rows = [rows[place] for place in _drawn([len(one) for one in sets], shares, seed)]
    return [replace(prompt, index=index) for index, prompt in enumerate(rows)]


def _drawn(sizes: Sequence[int], shares: Sequence[float], seed: int) -> list[int]:
    """Return places among the rows of all data sets."""
    from datasets import Dataset, interleave_datasets

    total = sum(shares)
    expected = max(size * total / share for size, share in zip(sizes, shares, strict=True))
    if expected > MOST_ROWS:
        raise PromptError(
            f"the shares {', '.join(f'{share:g}' for share in shares)} of data sets with "
            f"{', '.join(map(str, sizes))} rows make a mix of some {expected:.0f} rows, and "
            f"{MOST_ROWS} are the most. Give the larger data sets larger shares, or use fewer of "
            "their rows"
        )
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    places = [
        Dataset.from_dict({"place": range(start, start + size)})
        for start, size in zip(starts, sizes, strict=True)
    ]
    # numpy takes no negative seed.
    drawn = interleave_datasets(
        places,
        probabilities=[share / total for share in shares],
        seed=seed % 2**64,
        stopping_strategy="all_exhausted",
    )
    return list(drawn["place"])
