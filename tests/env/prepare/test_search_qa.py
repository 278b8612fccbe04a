"""NQ and HotpotQA from the layouts in which they are published, as Search-R1's rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from env.prepare.__main__ import main
from tests.support.hub_server import Hub
from tests.support.repository import ROOT

FLASHRAG = [
    {
        "id": "train_0",
        "question": "total number of death row inmates in the us",
        "golden_answers": ["2,718"],
    },
    {
        "id": "train_1",
        "question": "big little lies season 2 how many episodes?",
        "golden_answers": ["seven", "7"],
    },
]
NQ = {"question": "who wrote it", "golden_answers": ["she"]}
NQ_OPEN = [{"question": "where did they film hot tub time machine", "answer": ["Fernie Alpine"]}]
HOTPOT = [
    {
        "_id": "5a7a06935542990198eaf050",
        "answer": "Arthur's Magazine",
        "question": "Which magazine was started first Arthur's Magazine or First for Women?",
        "supporting_facts": [["Arthur's Magazine", 0], ["First for Women", 0]],
        "context": [["Radio City", ["Radio City is India's first private FM station."]]],
        "type": "comparison",
        "level": "medium",
    }
]


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(task: str, source: Path, *flags: str) -> list[list[dict[str, Any]]]:
    """The rows of train.parquet and test.parquet."""
    out = source.parent / "out"
    assert main([task, "--source", str(source), "--out", str(out), *flags]) == 0
    return [parquet.read_table(out / f"{name}.parquet").to_pylist() for name in ("train", "test")]


def test_flashrags_rows_become_search_r1s(tmp_path: Path) -> None:
    jsonl(tmp_path / "flash" / "nq" / "train.jsonl", FLASHRAG)
    jsonl(tmp_path / "flash" / "nq" / "test.jsonl", FLASHRAG[1:])
    jsonl(tmp_path / "flash" / "nq" / "dev.jsonl", [{"question": "not this split"}])
    train, test = prepare("nq", tmp_path / "flash")
    assert (
        train[0]
        .pop("prompt")[0]["content"]
        .endswith(
            "For example, <answer> Beijing </answer>. "
            "Question: total number of death row inmates in the us?\n"
        )
    )
    assert train[0] == {
        "id": "train_0",
        "question": "total number of death row inmates in the us?",
        "golden_answers": ["2,718"],
        "data_source": "nq",
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["2,718"]}},
        "extra_info": {"split": "train", "index": 0},
    }
    assert [row["question"] for row in test] == ["big little lies season 2 how many episodes?"]
    assert test[0]["golden_answers"] == ["seven", "7"]
    assert test[0]["extra_info"] == {"split": "test", "index": 0}


def test_nq_opens_own_files(tmp_path: Path) -> None:
    jsonl(tmp_path / "nq" / "NQ-open.train.jsonl", NQ_OPEN)
    jsonl(tmp_path / "nq" / "NQ-open.dev.jsonl", NQ_OPEN)
    train, test = prepare("nq", tmp_path / "nq", "--template", "Q: {}")
    assert train[0]["prompt"] == [
        {"role": "user", "content": "Q: where did they film hot tub time machine?"}
    ]
    assert (test[0]["id"], test[0]["golden_answers"]) == ("0", ["Fernie Alpine"])


def test_hotpotqas_own_files(tmp_path: Path) -> None:
    source = tmp_path / "hotpot"
    source.mkdir()
    (source / "hotpot_train_v1.1.json").write_text(json.dumps(HOTPOT))
    for name in ("distractor", "fullwiki"):
        (source / f"hotpot_dev_{name}_v1.json").write_text(json.dumps(HOTPOT))
    without_answers = [{name: HOTPOT[0][name] for name in ("_id", "question")}]
    (source / "hotpot_test_fullwiki_v1.json").write_text(json.dumps(without_answers))
    train, test = prepare("hotpotqa", source)
    for (row,) in (train, test):
        assert row["id"] == "5a7a06935542990198eaf050"
        assert row["reward_model"]["ground_truth"]["target"] == ["Arthur's Magazine"]


def test_the_hubs_parquet_in_several_shards(tmp_path: Path) -> None:
    directory = tmp_path / "hub" / "distractor"
    directory.mkdir(parents=True)
    columns = {"id": ["a"], "question": ["who"], "answer": ["she"], "level": ["easy"]}
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        parquet.write_table(pyarrow.table(columns), directory / f"{name}.parquet")
    train, test = prepare("hotpotqa", tmp_path / "hub")
    assert [row["question"] for row in (*train, *test)] == ["who?"] * 3
    assert len(train) == 2
    assert [
        len(rows) for rows in prepare("hotpotqa", tmp_path / "hub", "--max-samples", "1", "--force")
    ] == [1, 1]


def test_the_same_command_keeps_and_other_data_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        jsonl(tmp_path / "nq" / f"{split}.jsonl", FLASHRAG)
    prepare("nq", tmp_path / "nq")
    prepare("nq", tmp_path / "nq")
    assert "already there, kept" in capsys.readouterr().out
    jsonl(tmp_path / "nq" / "train.jsonl", FLASHRAG[:1])
    command = ["nq", "--source", str(tmp_path / "nq"), "--out", str(tmp_path / "out")]
    assert main(command) == 64
    assert "made with other arguments: source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "golden_answers": []}, "train.jsonl:2: no answers: []"),
        ({"question": "q", "golden_answers": [7]}, "train.jsonl:2: an answer is not text: [7]"),
        ({"question": "q", "golden_answers": None}, "train.jsonl:2: no answers: None"),
        ({"question": " ", "golden_answers": ["a"]}, "train.jsonl:2: 'question' is not text"),
        ({"golden_answers": ["a"]}, "train.jsonl:2: the key 'question' is missing"),
        ({**NQ, "id": "\ud83d"}, "train.jsonl:2: 'id' is not Unicode: \\ud83d is incomplete"),
    ],
)
def test_a_bad_row_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], message: str
) -> None:
    jsonl(tmp_path / "nq" / "train.jsonl", [FLASHRAG[0], row])
    jsonl(tmp_path / "nq" / "test.jsonl", FLASHRAG)
    command = ["nq", "--source", str(tmp_path / "nq"), "--out", str(tmp_path / "out")]
    assert main(command) == 64
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "prepared.json").exists()


def test_half_a_character_is_named_in_the_first_row_and_in_hotpotqas_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonl(tmp_path / "train.jsonl", [{"question": "q", "golden_answers": ["\ud83d"]}])
    jsonl(tmp_path / "test.jsonl", FLASHRAG)
    assert main(["nq", "--source", str(tmp_path), "--out", str(tmp_path / "out")]) == 64
    assert "train.jsonl:1: 'golden_answers' is not Unicode" in capsys.readouterr().err
    own = tmp_path / "own"
    own.mkdir()
    (own / "hotpot_train_v1.1.json").write_text(
        json.dumps([*HOTPOT, HOTPOT[0] | {"_id": "\ud83d"}])
    )
    (own / "hotpot_dev_v1.json").write_text(json.dumps(HOTPOT))
    assert main(["hotpotqa", "--source", str(own), "--out", str(tmp_path / "other")]) == 64
    assert "train_v1.1.json, row 2: '_id' is not Unicode" in capsys.readouterr().err


def test_a_source_without_the_data_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["hotpotqa", "--source", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 64
    assert f"{tmp_path}: no split train of hotpotqa; wanted is" in capsys.readouterr().err
    jsonl(tmp_path / "train.jsonl", FLASHRAG)
    jsonl(tmp_path / "dev.jsonl", [])
    assert main(command) == 64
    assert "the split test of hotpotqa has no questions" in capsys.readouterr().err
    (tmp_path / "dev.jsonl").unlink()
    (tmp_path / "hotpot_dev_v1.json").write_text("[{")
    assert main(command) == 64
    assert "hotpot_dev_v1.json: not JSON" in capsys.readouterr().err


def test_without_a_source_the_hubs_copy_is_taken(tmp_path: Path) -> None:
    for split in ("train", "test"):
        jsonl(tmp_path / "flash" / "nq" / f"{split}.jsonl", [*FLASHRAG, {**NQ, "id": split}])
    jsonl(tmp_path / "flash" / "hotpotqa" / "train.jsonl", FLASHRAG)
    command = [sys.executable, "-m", "env.prepare", "nq", "--out", str(tmp_path / "out")]
    name = "RUC-NLPIR/FlashRAG_datasets"
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(**environ: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | home | environ
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    offline = run(HF_HUB_OFFLINE="1")
    assert offline.returncode == 64
    assert f"{name} cannot be fetched (HF_HUB_OFFLINE is set" in offline.stderr
    assert "Traceback" not in offline.stderr
    with Hub({name: tmp_path / "flash"}, "dataset") as hub:
        done = run(HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    assert sorted(hub.downloads) == [f"{name}/nq/test.jsonl", f"{name}/nq/train.jsonl"]
    assert parquet.read_table(tmp_path / "out" / "train.parquet").num_rows == 3
