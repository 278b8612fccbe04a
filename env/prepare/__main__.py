"""`rollcall prepare TASK --out DIR`: prompts with a tiny model, or the index of a retriever."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from env.data.rows import PromptError
from env.http.arguments import Parser, positive, sub_command
from env.prepare.arithmetic import ALPHABET, Arithmetic, write_arithmetic
from env.prepare.gsm8k import HUB, TEMPLATE, read_gsm8k, write_gsm8k
from env.prepare.hub import source_of
from env.prepare.index import add_index
from env.prepare.math import add_math
from env.prepare.mathv60k import add_mathv60k
from env.prepare.model import ARCHITECTURES, write_model
from env.prepare.output import PrepareError, prepare
from env.prepare.people import ALPHABET as SYLLABLES
from env.prepare.people import People, write_people
from env.prepare.search_qa import add_search_qa
from env.prepare.tiny_model import TinyModel

SHAPES = {
    "arithmetic": TinyModel(max_length=64),
    # Its text is bytes: a problem with its solution is about a thousand tokens.
    "gsm8k": TinyModel(layers=2, max_length=2048),
    "people": TinyModel(layers=1, hidden_size=64, max_length=256),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        made = arguments.run(arguments)
    except (PrepareError, PromptError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return os.EX_USAGE
    except ModuleNotFoundError as error:
        print(
            f"prepare: the package {error.name} is not installed here: run the image, or "
            "`pip install 'rollcall-rlhf[trainer]'`",
            file=sys.stderr,
        )
        return os.EX_USAGE
    except OSError as error:  # of a source; `prepare` reports those of --out
        print(f"prepare: {error.filename}: not readable: {error.strerror}", file=sys.stderr)
        return os.EX_USAGE
    print(f"{arguments.out}: {'made' if made else 'already there, kept'}")
    for line in _what_is_there(arguments.out):
        print(line)
    return 0


FILES = {
    "model": "a tiny model with random weights",
    "train.jsonl": "prompts to train on",
    "warmup.jsonl": "prompts with their answers, for a supervised warm-up",
    "eval.jsonl": "held-out prompts",
    "pairs.jsonl": "pairs of a right and a wrong answer",
}
"""File or directory of prepared data → what it is."""


def _what_is_there(out: Path) -> Iterator[str]:
    """Yield what the directory has, and the command that uses it."""
    for name, what in FILES.items():
        if (out / name).exists():
            yield f"  {out / name}: {what}"
    if (train := out / "train.jsonl").exists():
        model = out / "model" if (out / "model").exists() else "MODEL"
        words = shlex.join(["--data", str(train), "--model", str(model)])
        yield f"next: rollcall init {words}   writes the files of a run with this data"


Plan = tuple[Mapping[str, Any], Callable[[Path], None]]
"""What identifies the output, and the function that writes it."""


def _prepare(arguments: argparse.Namespace) -> bool:
    recipe, make = arguments.plan(arguments)
    with _clock(f"making {recipe['task']}"):
        return prepare(arguments.out, recipe, make, force=arguments.force)


@contextlib.contextmanager
def _clock(what: str) -> Iterator[None]:
    """Show the seconds in a row of a terminal until the block ends."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    from rich import progress  # 0.1 s, which a log does not need
    from rich.console import Console

    columns = progress.TextColumn("{task.description}:"), progress.TimeElapsedColumn()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as row:
        row.add_task(what, total=None)
        yield


def _plan_arithmetic(arguments: argparse.Namespace) -> Plan:
    task = Arithmetic(**_given(Arithmetic, arguments))
    shape = TinyModel(**_given(TinyModel, arguments))

    def make(out: Path) -> None:
        write_arithmetic(task, out)
        write_model(shape, ALPHABET, out / "model")

    return {"task": "arithmetic", **asdict(task), **asdict(shape)}, make


def _plan_gsm8k(arguments: argparse.Namespace) -> Plan:
    shape = TinyModel(**_given(TinyModel, arguments)) if arguments.tiny_model else None
    template = arguments.template
    if "{}" not in template:
        raise PrepareError(f"--template {template!r} wants {{}} where the question goes")
    source = source_of(arguments, HUB, ("main/*",))
    problems = read_gsm8k(source, arguments.max_samples)

    def make(out: Path) -> None:
        write_gsm8k(problems, template, out)
        if shape:
            write_model(shape, None, out / "model")

    # The texts, not where they lie, which differs from machine to machine.
    recipe = {"task": "gsm8k", "template": template, "problems": problems.digest}
    return recipe | (asdict(shape) if shape else {}), make


def _plan_people(arguments: argparse.Namespace) -> Plan:
    task = People(**_given(People, arguments))
    shape = TinyModel(**_given(TinyModel, arguments))

    def make(out: Path) -> None:
        write_people(task, out)
        write_model(shape, SYLLABLES, out / "model")

    return {"task": "people", **asdict(task), **asdict(shape)}, make


def _given(kind: type[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    return {field.name: getattr(arguments, field.name) for field in fields(kind)}


def _parser() -> Parser:
    parser = Parser(prog="rollcall prepare", description=__doc__)
    tasks = parser.add_subparsers(required=True, metavar="TASK")

    option = _task(tasks, "arithmetic", "sums such as 12+7=", _plan_arithmetic)
    option("--max-operand", type=positive, default=99, help="operands are 0 to this")
    option("--train-size", type=positive, default=8192, help="sums, or as many as there are")
    option("--warmup-size", type=positive, default=4096, help="training sums that are given solved")
    option("--eval-size", type=positive, default=256, help="sums that are held out")
    option("--pairs-size", type=positive, default=0, help="pairs of a right and a wrong answer")

    option = _task(tasks, "gsm8k", "grade-school problems in words", _plan_gsm8k)
    option("--source", type=Path, help=f"directory of the data set; without it {HUB}")
    option("--template", default=TEMPLATE, help="the prompt, with {} for the question")
    option("--max-samples", type=positive, help="problems of each split; without it all")
    option("--tiny-model", action="store_true", help="make a tiny model with random weights, too")

    option = _task(tasks, "people", "questions that only a search answers", _plan_people)
    option("--passages", type=positive, default=50_000, help="people, each with a passage")
    option("--train-size", type=positive, default=4096, help="questions to train on")
    option("--warmup-size", type=positive, default=4096, help="questions that are given solved")
    option("--searched", type=float, default=0.2, help="share of solved questions that search")
    option("--eval-size", type=positive, default=256, help="questions that are held out")
    add_math(tasks)
    add_mathv60k(tasks)
    add_search_qa(tasks)
    add_index(tasks)
    return parser


def _task(tasks: Any, name: str, summary: str, plan: Callable[..., Plan]) -> Callable[..., Any]:
    """A sub-command with the flags that every task has; returns what adds another flag."""
    shape = SHAPES[name]
    parser = sub_command(tasks, name, summary)
    parser.set_defaults(run=_prepare, plan=plan)
    option = parser.add_argument
    option("--out", type=Path, required=True, help="directory to fill")
    option("--force", action="store_true", help="make it again whatever is there")
    option("--seed", type=int, default=0, help="of the data and of the weights")
    option("--architecture", choices=ARCHITECTURES, default=shape.architecture, help="of the model")
    option("--hidden-size", type=positive, default=shape.hidden_size, help="width")
    option("--layers", type=positive, default=shape.layers, help="depth")
    option("--heads", type=positive, default=shape.heads, help="of attention")
    option("--max-length", type=positive, default=shape.max_length, help="tokens with completion")
    return option


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for no GPU
    sys.exit(main())
