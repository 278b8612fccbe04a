"""Several data sets as one: one behind the other, or drawn from by shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from env.data.rows import PromptError
from env.types import Prompt

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
