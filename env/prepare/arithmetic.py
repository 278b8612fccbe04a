"""Sums such as "12+7=", and a held-out set that no training text gives away."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from env.prepare.output import PrepareError, write_jsonl

DIGITS = "0123456789"
ALPHABET = f"{DIGITS}+="


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
    pairs_size: int = 0
    """Pairs of a right and a wrong answer, for a reward model; each training sum has as many."""
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


def wrong_answer(answer: str, rng: random.Random) -> str:
    """Return an answer near the right one: mostly with one other digit, or a carry too many."""
    near = list(answer)
    near[rng.randrange(len(near))] = rng.choice(DIGITS)
    carried = str(max(0, int(answer) + rng.choice((-10, -1, 1, 10))))
    longer, other = answer + rng.choice(ALPHABET), str(rng.randrange(2 * int(answer) + 2))
    kinds = ("".join(near), carried, answer[:-1] or "+", longer, other)
    wrong = rng.choices(kinds, weights=(12, 4, 1, 1, 2))[0]
    return wrong if wrong != answer else wrong_answer(answer, rng)


def write_arithmetic(task: Arithmetic, out: Path) -> None:
    """`train.jsonl` and `eval.jsonl` (prompt, answer), `warmup.jsonl` (prompt, completion).

    With `pairs_size` also `pairs.jsonl` (prompt, chosen, rejected).
    """
    train, warmup, evaluate = draw(task)
    for name, sums in (("train", train), ("eval", evaluate)):
        write_jsonl(out / f"{name}.jsonl", ({"prompt": s.prompt, "answer": s.answer} for s in sums))
    write_jsonl(
        out / "warmup.jsonl", ({"prompt": s.prompt, "completion": s.answer} for s in warmup)
    )
    if task.pairs_size:
        rng = random.Random(task.seed)
        pairs = (_pair(train[number % len(train)], rng) for number in range(task.pairs_size))
        write_jsonl(out / "pairs.jsonl", pairs)


def _pair(right: Sum, rng: random.Random) -> dict[str, str]:
    wrong = wrong_answer(right.answer, rng)
    return {"prompt": right.prompt, "chosen": right.answer, "rejected": wrong}
