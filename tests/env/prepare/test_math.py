"""MATH from its published layouts: prompts, answers in boxes, faults by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from env.data.prompts import ReadSettings, load_prompts
from env.prepare.__main__ import main
from env.rewards import mathematics
from env.types import RewardRequest

ROWS = [
    {
        "problem": "What is $1/4+1/4$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": r"It is $2/4 = \boxed{\frac{1}{2}}$.",
    },
    {"problem": "Two and two?", "level": "Level 1", "type": "Algebra", "solution": r"$\boxed 4$"},
]
ANSWERS = [r"\frac{1}{2}", "4"]


def tree(source: Path) -> None:
    for split in ("train", "test"):
        for number, row in enumerate(ROWS):
            path = source / split / "algebra" / f"{9 + number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row))


def lines(source: Path) -> None:
    source.mkdir()
    for split in ("train", "test"):
        text = "".join(json.dumps(row) + "\n" for row in ROWS)
        (source / f"{split}.jsonl").write_text(text)


def hub(source: Path) -> None:
    from datasets import Dataset

    for split in ("train", "test"):
        for subject, row in zip(("algebra", "geometry"), ROWS, strict=True):
            name = source / subject / f"{split}-00000-of-00001.parquet"
            Dataset.from_list([row]).to_parquet(str(name))


def prepared(source: Path, *flags: str) -> list[dict[str, Any]]:
    out = source.parent / "out"
    assert main(["math", "--source", str(source), "--out", str(out), *flags]) == 0
    assert (out / "train.jsonl").read_bytes() == (out / "eval.jsonl").read_bytes()
    assert not (out / "model").exists(), "nobody asked for a model"
    return [json.loads(line) for line in (out / "eval.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("layout", [tree, lines, hub])
def test_every_layout_gives_the_same_rows(layout: Any, tmp_path: Path) -> None:
    layout(tmp_path / "source")
    rows = prepared(tmp_path / "source")
    assert [row["answer"] for row in rows] == ANSWERS
    assert rows[0]["prompt"].startswith("What is $1/4+1/4$?\n\nPlease reason")
    assert rows[0]["prompt"].endswith(r"within \boxed{}.")
    assert rows[0]["type"] == "Algebra"


def test_the_rows_are_prompts_whose_labels_the_reward_reads(tmp_path: Path) -> None:
    tree(tmp_path / "source")
    prepared(tmp_path / "source", "--template", "{}")
    prompts = load_prompts(tmp_path / "out" / "train.jsonl", ReadSettings("prompt", "answer"))
    assert prompts[1].text == "Two and two?"
    right = [RewardRequest(f"Q\\boxed{{{one.label}}}", "Q", one.label) for one in prompts]
    assert [score.reward for score in mathematics.boxed()(right)] == [1.0, 1.0]


def test_an_answer_of_its_own_counts_before_the_solution(tmp_path: Path) -> None:
    for split in ("train", "test"):
        row = {**ROWS[0], "answer": "0.5"}
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    assert [row["answer"] for row in prepared(tmp_path / "source")] == ["0.5"]


def test_an_answer_may_be_a_number(tmp_path: Path) -> None:
    for split in ("train", "test"):
        text = "".join(json.dumps({"problem": "?", "answer": one}) + "\n" for one in (3, 0.5))
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / f"{split}.jsonl").write_text(text)
    assert [row["answer"] for row in prepared(tmp_path / "source")] == ["3", "0.5"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"problem": "1+1?", "solution": "two"}, r"no 'answer', and no \boxed{} in 'solution'"),
        ({"problem": "  ", "solution": r"\boxed{2}"}, "'problem' is not text"),
        ({"solution": r"\boxed{2}"}, "the key 'problem' is missing"),
        ({"problem": "1+1?", "answer": True}, "no 'answer', and no"),
        ({"problem": "1+1?", "solution": "\ud83d"}, "'solution' is not Unicode"),
    ],
)
def test_a_broken_row_is_named(
    row: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    command = ["math", "--source", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 64
    assert f"train.jsonl:1: {says}" in capsys.readouterr().err
    (tmp_path / "train.jsonl").write_text("")
    assert main(command) == 64
    assert "the split train of MATH has no problems" in capsys.readouterr().err
    assert main(["math", "--source", "/none", "--out", str(tmp_path / "out")]) == 64
    assert "/none: no train split of MATH; wanted is one of" in capsys.readouterr().err
