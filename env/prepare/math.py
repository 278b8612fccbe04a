"""`rollcall prepare math`: the competition problems of MATH, with the answers of their solutions.

A source is the data set's own tree (`train/algebra/1.json`), its layout on the hub (a folder of
Parquet files for each subject), or JSON Lines with `problem` and `solution` or `answer`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from env.data.rows import PromptError, Row, read_rows
from env.http.arguments import positive, sub_command
from env.prepare.hub import source_of
from env.prepare.output import PrepareError, prepare, sha256, write_jsonl
from env.rewards.answers import last_boxed

HUB = "EleutherAI/hendrycks_math"
TEMPLATE = "{}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
SPLITS = {"train": "train", "eval": "test"}
"""The file that is written, and the split that it holds."""
PATTERNS = ("{}.jsonl", "{}-*.parquet", "*/{}-*.parquet", "{}/*/*.json", "data/{}-*.parquet")
WITHOUT_BRACES = re.compile(r"\\boxed\s+([^\s$]+)")
"""A box that a few solutions of MATH have."""
BESIDE = ("level", "type", "subject")
"""Columns that are kept if the source has them."""


def add_math(tasks: Any) -> None:
    summary = "competition problems, answers in boxes"
    parser = sub_command(tasks, "math", summary)
    parser.set_defaults(run=_run)
    option = parser.add_argument
    option("--out", type=Path, required=True, help="directory to fill")
    option("--source", type=Path, help=f"directory of the data set; without it {HUB}")
    option("--template", default=TEMPLATE, help="the prompt; the first {} is for the problem")
    option("--max-samples", type=positive, help="problems of each split; without it all")
    option("--force", action="store_true", help="make it again whatever is there")


def _run(arguments: argparse.Namespace) -> bool:
    """Whether anything was to be made. Raises PrepareError and PromptError."""
    template, most = arguments.template, arguments.max_samples
    if "{}" not in template:
        raise PrepareError(f"--template {template!r} wants {{}} where the problem goes")
    source = source_of(arguments, HUB, ("*/*.parquet",))
    files = {name: split_files(source, split) for name, split in SPLITS.items()}

    def make(out: Path) -> None:
        for name, paths in files.items():
            rows = list(islice(problems(paths, template), most))
            if not rows:
                raise PrepareError(f"the split {SPLITS[name]} of MATH has no problems")
            write_jsonl(out / f"{name}.jsonl", rows)

    # The content, not the place, which differs from machine to machine.
    recipe = {
        "task": "math",
        "template": template,
        "max_samples": most,
        "source": {name: [sha256(path) for path in paths] for name, paths in files.items()},
    }
    return prepare(arguments.out, recipe, make, force=arguments.force)


def split_files(source: Path, split: str) -> list[Path]:
    """The files of a split below `source`. Raises PrepareError if there are none."""
    for pattern in PATTERNS:
        if found := sorted(source.glob(pattern.format(split)), key=_in_order):
            return found
    wanted = ", ".join(pattern.format(split) for pattern in PATTERNS)
    raise PrepareError(f"{source}: no {split} split of MATH; wanted is one of {wanted}")


def _in_order(path: Path) -> tuple[str, int, str]:
    """`2.json` before `10.json`."""
    number = int(path.stem) if path.stem.isdecimal() else -1
    return str(path.parent), number, path.name


def problems(paths: Sequence[Path], template: str) -> Iterator[dict[str, Any]]:
    """Rows with `prompt`, `answer` and what else is known. Raises PromptError."""
    for path in paths:
        for row in _rows(path):
            problem = row.fields["problem"]
            if not isinstance(problem, str) or not problem.strip():
                raise PromptError(f"{row.where}: 'problem' is not text")
            yield {
                "prompt": template.replace("{}", problem.strip(), 1),
                "answer": _answer(row),
                **{name: row.fields[name] for name in BESIDE if row.fields.get(name)},
            }


def _answer(row: Row) -> str:
    """The row's answer, or the last box of its solution. Raises PromptError if it has neither."""
    answer, solution = row.fields.get("answer"), row.fields.get("solution")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    if isinstance(answer, str) and answer.strip():
        return answer.strip()
    if isinstance(solution, str):
        boxed = last_boxed(solution) or next(iter(WITHOUT_BRACES.findall(solution)[-1:]), None)
        if boxed:
            return boxed
    raise PromptError(f"{row.where}: no 'answer', and no \\boxed{{}} in 'solution'")


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix != ".json":
        yield from read_rows(path, ("problem", *_columns(path)))
        return
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict) or "problem" not in fields:
        raise PromptError(f"{path}: no object with 'problem'")
    yield Row(str(path), fields)


def _columns(path: Path) -> list[str]:
    """The other columns of the file that are read."""
    first = next(read_rows(path, ("problem",), whole=True), None)
    return [name for name in ("answer", "solution", *BESIDE) if first and name in first.fields]
