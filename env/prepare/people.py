"""Where invented people live: passages to search, questions, and solved steps for a warm-up.

Only the passages say where a person lives, so a policy that does not search can only guess.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from env.prepare.output import PrepareError, write_jsonl

SYLLABLES = ["".join(pair) for pair in product("bcdfghjklmnpqrstvwxz", "aeiou")]
NAME, TOWN = 3, 2
"""Syllables of a name."""
TOWNS = 100
TAGS = ("think", "search", "information", "answer")
PHRASES = (
    *("Where does ", " live?", " lives in ", "Doc ", "(Title: ", ") ", "\n\n"),
    *(f"<{mark}{tag}>" for tag in TAGS for mark in ("", "/")),
)
LETTERS = "".join(map(chr, range(ord(" "), ord("~") + 1))) + "\n"
ALPHABET = (*LETTERS, *SYLLABLES, *PHRASES)
"""Tokens of the model: a name has three, a search with its tags five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    passages: int = 50_000
    """People; each has one passage."""
    train_size: int = 4096
    """Questions for training."""
    eval_size: int = 256
    """Questions that are held out, about other people."""
    warmup_size: int = 4096
    """Questions that are given solved, about people of neither set, if there are others."""
    searched: float = 0.2
    """Share of the solved questions that search; the others guess."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.searched <= 1:
            raise PrepareError(f"--searched {self.searched} is not a share from 0 to 1")
        if self.passages > len(SYLLABLES) ** NAME:
            raise PrepareError(f"--passages: there are only {len(SYLLABLES) ** NAME} names")
        if self.train_size + self.eval_size > self.passages:
            raise PrepareError(
                f"--train-size {self.train_size} and --eval-size {self.eval_size} want more people "
                f"than the {self.passages} of --passages"
            )


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    town: str

    @property
    def question(self) -> str:
        return f"Where does {self.name} live?"

    @property
    def fact(self) -> str:
        return f"{self.name} lives in {self.town}"

    @property
    def search(self) -> str:
        return f"<search>{self.name}</search>"

    @property
    def answer(self) -> str:
        return f"<answer>{self.town}</answer>"

    @property
    def found(self) -> str:
        """What the environment `search` writes if the passage is the only one found."""
        return f"\n\n<information>Doc 1(Title: {self.name}) {self.fact}</information>\n\n"


def draw(task: People) -> list[Person]:
    """Return people with different names."""
    rng = random.Random(task.seed)
    towns = [_word(code, TOWN) for code in rng.sample(range(len(SYLLABLES) ** TOWN), TOWNS)]
    codes = rng.sample(range(len(SYLLABLES) ** NAME), task.passages)
    return [Person(_word(code, NAME), rng.choice(towns)) for code in codes]


def write_people(task: People, out: Path) -> None:
    """Write `corpus.jsonl`, `train.jsonl`, `eval.jsonl` (prompt, answer) and `warmup.jsonl`."""
    people = draw(task)
    rows = ({"id": str(n), "contents": f'"{p.name}"\n{p.fact}'} for n, p in enumerate(people))
    write_jsonl(out / "corpus.jsonl", rows)
    train = people[: task.train_size]
    held_out = people[task.train_size : task.train_size + task.eval_size]
    for split, asked in (("train", train), ("eval", held_out)):
        questions = ({"prompt": p.question, "answer": p.town} for p in asked)
        write_jsonl(out / f"{split}.jsonl", questions)
    solved = people[task.train_size + task.eval_size :] or train
    write_jsonl(out / "warmup.jsonl", _solved(task, solved))


def _solved(task: People, people: list[Person]) -> Iterator[dict[str, str]]:
    """Yield three steps of each of `warmup_size` questions: to guess or search, a query, an answer.

    The first alone says how often to search; the others say how.
    """
    rng = random.Random(f"{task.seed}/warm-up")
    for _ in range(task.warmup_size):
        person, other = rng.choice(people), rng.choice(people)
        question = person.question
        first = person.search if rng.random() < task.searched else other.answer
        yield {"prompt": question, "completion": first}
        yield {"prompt": f"{question}<search>", "completion": f"{person.name}</search>"}
        yield {"prompt": f"{question}{person.search}{person.found}", "completion": person.answer}


def _word(code: int, length: int) -> str:
    syllables = []
    for _ in range(length):
        code, index = divmod(code, len(SYLLABLES))
        syllables.append(SYLLABLES[index])
    return "".join(syllables)
