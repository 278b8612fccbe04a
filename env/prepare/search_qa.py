"""`rollcall prepare nq|hotpotqa`: questions for a model that searches, in Search-R1's rows.

A source is FlashRAG's copy (what Search-R1 takes), NQ-open, HotpotQA's own files, or their layout
on the hub. `train.parquet` and `test.parquet` have the columns that verl and Search-R1 read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from env.data.rows import PromptError, Row, read_rows, refuse_halves
from env.http.arguments import positive, sub_command
from env.prepare.hub import source_of
from env.prepare.output import PrepareError, prepare, sha256

HUB = "RUC-NLPIR/FlashRAG_datasets"
TEMPLATE = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every "
    "time you get new information. After reasoning, if you find you lack some knowledge, you can "
    "call a search engine by <search> query </search> and it will return the top searched results "
    "between <information> and </information>. You can search as many times as your want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside "
    "<answer> and </answer>, without detailed illustrations. For example, <answer> Beijing "
    "</answer>. Question: {}\n"
)
"""Search-R1's prompt, to the letter: its models were trained on it."""
TASKS = {"nq": "Natural Questions", "hotpotqa": "HotpotQA, questions over two passages"}
TRAIN = ("train",)
TEST = {"nq": ("test", "dev", "validation"), "hotpotqa": ("dev", "validation")}
"""Names of the splits; the first that is there is taken. HotpotQA's test split has no answers."""
CONFIGURATIONS = ("nq_open", "distractor", "fullwiki")
"""Folders of the hub's NQ-open and HotpotQA."""
READ = ("id", "_id", "question", "golden_answers", "answer")
"""Columns that are read, if they are there."""
BATCH = 4096


def add_search_qa(tasks: Any) -> None:
    for task, summary in TASKS.items():
        parser = sub_command(tasks, task, summary)
        parser.set_defaults(run=_run, task=task)
        option = parser.add_argument
        option("--out", type=Path, required=True, help="directory to fill")
        option("--source", type=Path, help=f"directory of the data set; without it {HUB}")
        option("--template", default=TEMPLATE, help="the prompt, with {} for the question")
        option("--max-samples", type=positive, help="questions of each split; without it all")
        option("--force", action="store_true", help="make it again whatever is there")


def _run(arguments: argparse.Namespace) -> bool:
    """Whether anything was to be made. Raises PrepareError and PromptError."""
    task, template = arguments.task, arguments.template
    if "{}" not in template:
        raise PrepareError(f"--template {template!r} wants {{}} where the question goes")
    source = source_of(arguments, HUB, (f"{task}/*",))
    files = {
        "train": split_files(source, task, TRAIN),
        "test": split_files(source, task, TEST[task]),
    }

    def make(out: Path) -> None:
        for split, paths in files.items():
            rows = islice(questions(paths), arguments.max_samples)
            write_split(out / f"{split}.parquet", Origin(task, split, template), rows)

    # The content, not the place, which differs from machine to machine.
    recipe = {
        "task": task,
        "template": template,
        "max_samples": arguments.max_samples,
        "source": {split: [sha256(path) for path in paths] for split, paths in files.items()},
    }
    return prepare(arguments.out, recipe, make, force=arguments.force)


def split_files(source: Path, task: str, splits: Sequence[str]) -> list[Path]:
    """The files of the first of `splits` that lies below `source`. Raises PrepareError."""
    for directory in (source, source / task, *(source / name for name in CONFIGURATIONS)):
        for split in splits:
            for pattern in (f"{split}.jsonl", f"{split}-*.parquet", f"*[-_.]{split}[._]*json*"):
                if found := sorted(path for path in directory.glob(pattern) if path.is_file()):
                    return found[:1] if pattern.startswith("*") else found
    raise PrepareError(
        f"{source}: no split {' or '.join(splits)} of {task}; wanted is {splits[0]}.jsonl, "
        f"{splits[0]}-*.parquet, NQ-open.{splits[0]}.jsonl or hotpot_{splits[0]}_….json, there or "
        f"in {task}/"
    )


def questions(paths: Sequence[Path]) -> Iterator[tuple[str, str, list[str]]]:
    """Id, question and right answers of each row. Raises PromptError."""
    for path in paths:
        for number, row in enumerate(_rows(path)):
            refuse_halves(row.where, [key for key in READ if key in row.fields], row.fields)
            question, answers = row.fields["question"], _answers(row)
            if not isinstance(question, str) or not question.strip():
                raise PromptError(f"{row.where}: 'question' is not text")
            name = row.fields.get("id", row.fields.get("_id"))
            yield str(number if name is None else name), question.strip(), answers


class Origin(NamedTuple):
    """What the rows of a file are made from."""

    task: str
    split: str
    template: str


def write_split(path: Path, origin: Origin, rows: Iterator[tuple[str, str, list[str]]]) -> None:
    """Write rows as verl's data. Raises PrepareError if there are none."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    texts = pyarrow.list_(pyarrow.string())
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    truth = pyarrow.struct([("target", texts)])
    reward = pyarrow.struct([("style", pyarrow.string()), ("ground_truth", truth)])
    extra = pyarrow.struct([("split", pyarrow.string()), ("index", pyarrow.int64())])
    schema = pyarrow.schema(
        [
            ("id", pyarrow.string()),
            ("question", pyarrow.string()),
            ("golden_answers", texts),
            ("data_source", pyarrow.string()),
            ("prompt", pyarrow.list_(message)),
            ("ability", pyarrow.string()),
            ("reward_model", reward),
            ("extra_info", extra),
        ]
    )
    count = 0
    with ParquetWriter(path, schema) as file:
        while batch := list(islice(rows, BATCH)):
            table = [_verl_row(origin, count + n, *row) for n, row in enumerate(batch)]
            file.write_table(pyarrow.Table.from_pylist(table, schema))
            count += len(batch)
    if not count:
        raise PrepareError(f"the split {origin.split} of {origin.task} has no questions")


def _verl_row(
    origin: Origin, index: int, name: str, question: str, answers: list[str]
) -> dict[str, Any]:
    task, split, template = origin
    question = question if question.endswith("?") else f"{question}?"
    return {
        "id": name,
        "question": question,
        "golden_answers": answers,
        "data_source": task,
        "prompt": [{"role": "user", "content": template.replace("{}", question)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": answers}},
        "extra_info": {"split": split, "index": index},
    }


def _rows(path: Path) -> Iterator[Row]:
    """With the keys `question` and `golden_answers` or `answer`."""
    if path.suffix == ".json" and _is_list(path):
        yield from _json_list(path)
    else:
        yield from read_rows(path, ("question", _answer_key(path)))


def _answer_key(path: Path) -> str:
    """`golden_answers` if the file has it; else `answer`, which the reader then asks for."""
    first = next(read_rows(path, ("question",), whole=True), None)
    return "golden_answers" if first and "golden_answers" in first.fields else "answer"


def _answers(row: Row) -> list[str]:
    value = row.fields.get("golden_answers", row.fields.get("answer"))
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not answers:
        raise PromptError(f"{row.where}: no answers: {value!r}")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise PromptError(f"{row.where}: an answer is not text: {value!r}")
    return answers


def _is_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"[")


def _json_list(path: Path) -> Iterator[Row]:
    """HotpotQA's own files are one JSON list, which is read whole: 0.5 GB."""
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{path}: not JSON: {error}") from error
    for number, fields in enumerate(rows, 1):
        if not isinstance(fields, Mapping) or "question" not in fields:
            raise PromptError(f"{path}, row {number}: no object with 'question'")
        yield Row(f"{path}, row {number}", fields)
