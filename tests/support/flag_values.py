"""Random values of single flags, and their texts in each spelling."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from hypothesis import strategies as st

from trainer.config.config import Config
from trainer.config.data_sets import DataSets, Shares
from trainer.config.schema import Flag, flags_of
from trainer.config.values import Arguments, Resources

TABLE = flags_of(Config)
WORDS = st.text("abcdefghij_/", min_size=1, max_size=8)


def _single(kind: Any, about: Flag) -> st.SearchStrategy[Any]:
    if about.choices:
        return st.sampled_from(about.choices)
    if kind is bool:
        return st.just(True)
    if kind is Path:
        return WORDS.map(lambda word: Path(word).absolute())
    if kind is PurePath:
        return WORDS.map(PurePath)
    if kind is str:
        return WORDS
    if kind is Resources:
        return WORDS.map(lambda word: Resources(json.dumps({word: 1})))
    if kind is Arguments:
        return WORDS.map(lambda word: Arguments(json.dumps({word: 1})))
    if kind is DataSets:
        names = st.lists(WORDS | st.just("owner/name:main"), min_size=1, max_size=3)
        return names.map(lambda words: DataSets(",".join(words)))
    if kind is Shares:
        shares = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3)
        return shares.map(lambda numbers: Shares(",".join(map(str, numbers))))
    # One step of 0.25 inside of an open bound.
    low = about.at_least if about.above is None else about.above + (1 if kind is int else 0.25)
    low = -4 if low is None else low
    high = 64 if about.at_most is None else about.at_most
    if kind is int:
        return st.integers(int(low), int(high))
    return st.floats(low, high, width=32)


def value_of(name: str) -> st.SearchStrategy[Any]:
    """A value that the flag `name` takes; its default alone where it takes no other."""
    about, kind = TABLE[name].about, TABLE[name].kind
    if about.unsupported:
        return st.just(TABLE[name].default)
    if typing.get_origin(kind) is not tuple:
        return _single(kind, about)
    parts = typing.get_args(kind)
    if parts[-1] is Ellipsis:
        return st.lists(_single(parts[0], about), min_size=1, max_size=3).map(tuple)
    return st.tuples(*(_single(part, about) for part in parts))


@st.composite
def given_values(draw: st.DrawFn) -> dict[str, Any]:
    """Values of some flags. With a flag that others follow, those others too."""
    names = draw(st.sets(st.sampled_from(sorted(TABLE)), max_size=12))
    names |= {name for name, flag in TABLE.items() if flag.about.follows in names}
    drawn = {name: draw(value_of(name)) for name in sorted(names)}
    return {n: v for n, v in drawn.items() if v is not None and v is not False and v != ""}


def argv(given: Mapping[str, Any], dotted: bool) -> list[str]:
    words: list[str] = []
    for name, value in given.items():
        words.append(f"--{spelling(name) if dotted else name}")
        if value is not True:
            words += [str(part) for part in (value if isinstance(value, tuple) else (value,))]
    return words


def spelling(name: str) -> str:
    """The dotted spelling, where the flag has one."""
    return next(iter(TABLE[name].about.dotted_spellings), name)


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a file, in the dotted spelling."""
    top: dict[str, Any] = {}
    for name, value in given.items():
        *sections, key = spelling(name).split(".")
        place = top
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = _plain(value)
    return top


def flat_toml(given: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(_plain(value))}\n" for name, value in given.items())


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return (
        str(value)
        if isinstance(value, PurePath | Resources | Arguments | DataSets | Shares)
        else value
    )


def plain(text: str) -> object:
    """A default's text, such that 1 and 1.0, none and nothing are the same."""
    try:
        return [float(part) for part in text.split()]
    except ValueError:
        return [] if text == "None" else text
