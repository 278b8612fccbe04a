"""Rows of files and of the hub, which the ranks of a run read once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from contract.options import ConfigError
from env.data.prompts import PromptError
from tests.support.hub_server import Hub, ask
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised import data
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import content_faults, parse

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PROMPT = {"prompt_key": "prompt"}
ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(8)]


def flags(stage: str, file: object, **more: Any) -> StageFlags:
    given = {"pretrain": "o/m", "dataset": file, "save_path": "/out", **more}
    return parse(stage, to_argv(given)).flags


def written(file: Path, rows: list[Any]) -> Path:
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_rows_are_kept_for_other_ranks_and_attempts(tmp_path: Path) -> None:
    given = flags("sft", written(tmp_path / "rows.jsonl", ROWS))
    first = data.load(given, given.dataset, tmp_path / "data")
    (kept,) = (tmp_path / "data").iterdir()
    before = (kept / "state.json").stat().st_mtime_ns
    again = data.load(given, given.dataset, tmp_path / "data")
    assert (kept / "state.json").stat().st_mtime_ns == before
    assert first[:] == again[:]
    assert [dict(row) for row in first] == ROWS


@pytest.mark.parametrize("kept", [True, False])
def test_messages_and_tool_calls_stay_as_they_are(tmp_path: Path, kept: bool) -> None:
    def called(**arguments: Any) -> list[dict[str, Any]]:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [CHAT[0], {"role": "assistant", "content": None, "tool_calls": [call]}]

    end = [{"role": "tool", "content": "3", "name": "f"}, CHAT[1]]
    rows = [{"chat": called(**one) + end} for one in ({"a": 1}, {"b": "z"}, {"a": "text"}, {})]
    file = written(tmp_path / "rows.jsonl", [*rows, {"chat": CHAT}])
    given = flags("sft", file, input_key="chat", output_key="none")
    found = data.load(given, given.dataset, tmp_path / "data" if kept else None)
    whole = [row["prompt"] + row["completion"] for row in found]
    assert whole == [*(row["chat"] for row in rows), CHAT]


@pytest.mark.parametrize("indent", [None, 1])
def test_messages_may_be_json_text(tmp_path: Path, indent: int | None) -> None:
    file = written(tmp_path / "rows.jsonl", [{"chat": json.dumps(CHAT, indent=indent)}])
    given = flags("sft", file, input_key="chat", output_key="none", tokenizer_chat_template="{{m}}")
    assert not list(content_faults(given))
    assert data.load(given, given.dataset, None)[0] == {"prompt": CHAT[:1], "completion": CHAT[1:]}


def test_other_rows_or_flags_are_read_anew(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", ROWS)
    given = flags("sft", file)
    data.load(given, given.dataset, tmp_path / "data")
    written(file, ROWS[:3])
    assert len(data.load(given, given.dataset, tmp_path / "data")) == 3
    shaped = flags("sft", file, input_template="Q: {}")
    assert data.load(shaped, shaped.dataset, tmp_path / "data")[0]["prompt"] == "Q: 0+1="


def test_several_data_sets_in_several_formats_are_one(tmp_path: Path) -> None:
    lines = written(tmp_path / "rows.jsonl", ROWS)
    Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    names = ",".join(map(str, (lines, tmp_path / "rows.parquet", tmp_path / "saved")))
    given = flags("sft", names, max_samples=2)
    assert [dict(row) for row in data.load(given, names, None)] == ROWS[:2] * 3


@pytest.mark.parametrize(
    ("stage", "row", "more", "said"),
    [
        ("sft", {"prompt": 3, "completion": "x"}, {}, "3 is neither a text nor a list"),
        ("rm", {"chosen": "a", "rejected": "b", "margin": "c"}, {"margin_loss": True}, "'margin'"),
        ("sft", {"prompt": [{"role": "user", "content": "a"}]}, {"output_key": "none"}, "the last"),
        ("rm", {"prompt": "a", "chosen": CHAT, "rejected": CHAT}, PROMPT, "texts and messages"),
        ("dpo", {"prompt": CHAT[:1], "chosen": CHAT, "rejected": CHAT}, PROMPT, "repeats the"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, stage: str, row: Any, more: dict[str, Any], said: str
) -> None:
    given = flags(stage, written(tmp_path / "rows.jsonl", [row]), **more)
    with pytest.raises(PromptError, match=f"rows.jsonl:1: .*{said}"):
        data.load(given, given.dataset, None)


def test_a_data_set_of_the_hub_is_refused_as_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the columns that it has, and before its other rows are read."""
    (tmp_path / "repository").mkdir()
    rows = [{"prompt": CHAT}, {"prompt": None}]
    written(tmp_path / "repository" / "train.jsonl", rows)
    with Hub({"owner/chats": tmp_path / "repository"}, kind="dataset") as served:
        ask(monkeypatch, served.url, tmp_path / "home")
        with pytest.raises(ConfigError) as caught:
            data.load(flags("sft", "owner/chats"), "owner/chats", tmp_path)
    (fault,) = caught.value.faults
    assert fault.path == "--output_key"
    assert fault.remedy.startswith("It has prompt; --output_key none takes the last message")


@pytest.mark.cluster
def test_two_ranks_of_torchrun_read_a_data_set_of_the_hub_once(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    written(tmp_path / "repository" / "train.jsonl", ROWS)
    given = {
        "pretrain": tiny.model,
        "dataset": "owner/sums",
        "run_dir": tmp_path / "run",
        "train_batch_size": 4,
        "max_steps": 2,
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with Hub({"owner/sums": tmp_path / "repository"}, kind="dataset") as hub:
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "trainer.supervised", "sft", *to_argv(given)],
            env=os.environ
            | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
            | {"HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert hub.downloads == {"owner/sums/train.jsonl": 1}
    assert (tmp_path / "run/hf/model.safetensors").is_file()
