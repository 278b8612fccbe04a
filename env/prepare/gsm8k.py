"""GSM8K as prompts: from its JSON Lines, its layout on the hub, or a copy that `datasets` saved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from env.data.columns import GSM8K, KNOWN
from env.data.rows import PromptError, read_rows
from env.prepare.output import PrepareError, write_jsonl
from env.rewards.gsm8k import gold_answer

HUB = GSM8K
TEMPLATE = "Question: {}\nThink step by step and end with #### and the number.\nAnswer:"
KEYS = KNOWN[HUB]
SPLITS = ("train", "test")
# "48/2 = <<48/2=24>>24": the calculator's notes, which are no part of the text.
CALCULATOR = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    solution: str
    answer: str


@dataclass(frozen=True, slots=True)
class Problems:
    train: list[Problem]
    test: list[Problem]

    @property
    def digest(self) -> str:
        """SHA-256 of all texts: the same whatever the layout they were read from."""
        texts = [[(p.question, p.solution) for p in split] for split in (self.train, self.test)]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def read_gsm8k(source: Path, max_samples: int | None = None) -> Problems:
    """At most `max_samples` problems of each split.

    Raises PrepareError if `source` is not GSM8K's data, PromptError for a broken row.
    """
    found = {split: list(islice(_problems(source, split), max_samples)) for split in SPLITS}
    if empty := [split for split in SPLITS if not found[split]]:
        raise PrepareError(f"{source}: the split {empty[0]} of GSM8K has no problems")
    return Problems(**found)


def write_gsm8k(problems: Problems, template: str, out: Path) -> None:
    """`train.jsonl` and `eval.jsonl` (test split) with prompt, answer; `warmup.jsonl` with the
    training solutions as completions. `template` has `{}` where the question goes.
    """
    for name, split in (("train", problems.train), ("eval", problems.test)):
        rows = ({"prompt": _prompt(template, p), "answer": p.answer} for p in split)
        write_jsonl(out / f"{name}.jsonl", rows)
    solved = (
        {"prompt": _prompt(template, p), "completion": f" {p.solution}"} for p in problems.train
    )
    write_jsonl(out / "warmup.jsonl", solved)


def _prompt(template: str, problem: Problem) -> str:
    return template.replace("{}", problem.question)


def _problems(source: Path, split: str) -> Iterator[Problem]:
    for file in split_files(source, split):
        for row in read_rows(file, KEYS):
            question, answer = (row.fields[key] for key in KEYS)
            if not isinstance(question, str) or not isinstance(answer, str):
                raise PromptError(f"{row.where}: 'question' or 'answer' is not text")
            gold = gold_answer(answer)
            if gold is None:
                raise PromptError(f"{row.where}: no number after #### in 'answer'")
            yield Problem(question, CALCULATOR.sub("", answer), str(gold))


def split_files(source: Path, split: str) -> list[Path]:
    """Where the split lies below `source`, which may be any of the three layouts."""
    for directory in (source, source / "main"):
        if (directory / f"{split}.jsonl").is_file():
            return [directory / f"{split}.jsonl"]
        if (directory / split / "state.json").is_file():
            return [directory / split]
        if shards := sorted(directory.glob(f"{split}-*.parquet")):
            return shards
    raise PrepareError(
        f"{source}: no {split} split of GSM8K; wanted is {split}.jsonl, {split}-*.parquet "
        f"(the hub's main configuration) or a directory {split} that save_to_disk wrote"
    )
