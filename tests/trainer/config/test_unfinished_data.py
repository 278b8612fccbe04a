"""A data file that is still being written, told from one that is broken."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from contract.options import UnfinishedFile
from trainer.config.data_sets import WRITING_SECONDS, DataSets, faults, is_being_written

ROW = json.dumps({"prompt": 'a "quoted" text, é', "label": [1, {"x": None}]}).encode()


def file(path: Path, content: bytes, *, age: float = 0.0) -> Path:
    path.write_bytes(content)
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


@pytest.mark.parametrize("cut", range(1, len(ROW)))
def test_a_row_that_is_cut_anywhere_is_being_written(cut: int, tmp_path: Path) -> None:
    content = ROW + b"\n" + ROW[:cut]
    assert is_being_written(file(tmp_path / "a.jsonl", content))
    assert not is_being_written(file(tmp_path / "a.jsonl", content, age=WRITING_SECONDS + 5))


@pytest.mark.parametrize(
    "content",
    [ROW, ROW + b"\n", b"", b"\n", ROW + b"\nno JSON", ROW + b'\n{"a": nope}', b'{"a": 1}}', b"7"],
)
def test_a_whole_file_and_a_broken_row_are_not(content: bytes, tmp_path: Path) -> None:
    assert not is_being_written(file(tmp_path / "a.jsonl", content))


def test_a_list_and_parquet_are_seen_by_their_ends(tmp_path: Path) -> None:
    rows = json.dumps([json.loads(ROW)] * 3, indent=1).encode()
    assert not is_being_written(file(tmp_path / "a.json", rows.replace(b"\n", b" ")))
    assert is_being_written(file(tmp_path / "a.json", rows.replace(b"\n", b" ")[:-3]))
    table = pyarrow.table({"prompt": ["a"] * 1000})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert not is_being_written(tmp_path / "a.parquet")
    half = (tmp_path / "a.parquet").read_bytes()[:-20]
    assert is_being_written(file(tmp_path / "a.parquet", half))


def test_the_fault_names_the_file_and_counts_as_one_that_passes(tmp_path: Path) -> None:
    path = file(tmp_path / "a.jsonl", ROW + b"\n" + ROW[:9])
    (fault,) = faults("--prompt_data", DataSets(str(path)))
    assert isinstance(fault, UnfinishedFile)
    assert f"{path}" in str(fault)
    assert "is still being written" in str(fault)
