"""Sums such as "12+7=", and a held-out set that no training text gives away."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from env.prepare.output import PrepareError, write_jsonl

ALPHABET = "0123456789+="


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    max_operand: int = 99
    """Both operands are 0 to this."""
    train_size: int = 8192
    """Sums for training, or as many as there are."""
    warmup_size: int = 4096
    """Solved sums for supervised warm-up, out of the training sums."""
    eval_size: int = 256
    """Held-out sums. Neither a+b nor b+a of one of them is ever trained on."""
    seed: int = 0

    def __post_init__(self) -> None:
        pairs = (self.max_operand + 1) * (self.max_operand + 2) // 2
        if self.eval_size >= pairs:
            raise PrepareError(
                f"--eval-size {self.eval_size} leaves nothing to train on: operands up to "
                f"{self.max_operand} give {pairs} pairs; hold out fewer, or raise --max-operand"
            )


@dataclass(frozen=True, slots=True)
class Sum:
    a: int
    b: int

    @property
    def pair(self) -> tuple[int, int]:
        """The same for a+b and b+a."""
        return min(self.a, self.b), max(self.a, self.b)

    @property
    def prompt(self) -> str:
        return f"{self.a}+{self.b}="

    @property
    def answer(self) -> str:
        return str(self.a + self.b)


def draw(task: Arithmetic) -> tuple[list[Sum], list[Sum], list[Sum]]:
    """Sums to train, warm up and evaluate with, each without repetition."""
    rng = random.Random(task.seed)
    operands = task.max_operand + 1
    # Twice the held-out number: each held-out pair can take up two of the drawn sums.
    wanted = min(operands**2, task.train_size + 2 * task.eval_size)
    drawn = [Sum(*divmod(code, operands)) for code in rng.sample(range(operands**2), wanted)]
    held_out: dict[tuple[int, int], Sum] = {}
    for s in drawn:
        if len(held_out) < task.eval_size:
            held_out.setdefault(s.pair, s)
    train = [s for s in drawn if s.pair not in held_out][: task.train_size]
    warmup = rng.sample(train, min(task.warmup_size, len(train)))
    return train, warmup, list(held_out.values())


def write_arithmetic(task: Arithmetic, out: Path) -> None:
    """`train.jsonl` and `eval.jsonl` (prompt, answer), `warmup.jsonl` (prompt, completion)."""
    train, warmup, evaluate = draw(task)
    for name, sums in (("train", train), ("eval", evaluate)):
        write_jsonl(out / f"{name}.jsonl", ({"prompt": s.prompt, "answer": s.answer} for s in sums))
    write_jsonl(
        out / "warmup.jsonl", ({"prompt": s.prompt, "completion": s.answer} for s in warmup)
    )
