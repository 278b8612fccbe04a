"""Words of a command line → flags as they were given, every fault at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.config.schema import Fault
from trainer.config.spellings import Given, unknown
from trainer.config.values import FALSE, TRUE


@dataclass(frozen=True, slots=True)
class Shape:
    """How many words may follow a flag."""

    most: int
    switch: bool = False
    """A flag that is true by itself: only a word for true or false is its value."""


@dataclass
class _Words:
    """What is left of a command line."""

    words: list[str]

    def next(self) -> str:
        return self.words.pop(0)

    def values(self, shape: Shape) -> tuple[str, ...]:
        taken: list[str] = []
        while self.words and len(taken) < shape.most and not self.words[0].startswith("--"):
            if shape.switch and self.words[0].lower() not in TRUE + FALSE:
                break
            taken.append(self.next())
        return tuple(taken)

    def skip_values(self) -> None:
        while self.words and not self.words[0].startswith("--"):
            self.next()


def given_in(argv: Sequence[str], shapes: Mapping[str, Shape]) -> tuple[list[Given], list[Fault]]:
    """`--name value …` and `--name=value`, for the names in `shapes`; several after = by commas.

    Whether the values are enough, and right, is for the reader of the flag to say.
    """
    left = _Words(list(argv))
    givens: list[Given] = []
    faults: list[Fault] = []
    while left.words:
        word = left.next()
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--") or not name:
            faults.append(Fault(word, "", "belongs to no flag", "See --help"))
        elif name not in shapes:
            faults.append(unknown(name, shapes))
            left.skip_values()
        else:
            shape = shapes[name]
            givens.append(Given(name, _split(value, shape) if equals else left.values(shape)))
    return givens, faults


def _split(value: str, shape: Shape) -> tuple[str, ...]:
    return tuple(value.replace(",", " ").split()) if shape.most > 1 else (value,)
