"""Files that a trainer reads again, after storage has damaged them: the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.exit_codes import ExitCode
from contract.files.deepspeed_names import LATEST
from contract.manifest import MANIFEST, fault_of, newest_checkpoint, write_manifest
from contract.metrics.json_lines import JsonLines
from contract.run_dir import RunFiles
from tests.support.damage import damaged
from tests.support.tiny_run import Tiny
from trainer.__main__ import main
from trainer.checkpoint import openrlhf, replica_ring
from trainer.config.config import Config

FUZZED = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ROW = {"step": 2, "at": 1.5, "train/reward": 0.5}


@FUZZED
@given(st.lists(damaged(ROW), min_size=1, max_size=4))
def test_rows_of_metrics_that_are_damaged_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes]
) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = [json.dumps({"step": step, "train/reward": 0.5}).encode() for step in (1, 3)]
    path.write_bytes(b"\n".join([whole[0], b"\xff", *lines, whole[1], b""]))
    JsonLines(path, 2).log(3, {"train/reward": 1.0})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [rows[0]["step"], rows[-1]["step"]] == [1, 3]
    assert rows[-1]["train/reward"] == 1.0
    assert "left out" in capsys.readouterr().out


@FUZZED
@given(st.binary(max_size=40) | st.sampled_from([b"", b"\xff" * 32, b"0" * 32, b"0" * 31 + b"g"]))
def test_the_mark_of_a_runs_holders_is_made_anew_where_it_is_damaged(
    tmp_path: Path, content: bytes
) -> None:
    config = cast(Config, _Files(RunFiles(tmp_path)))
    config.files.peers.write_bytes(content)
    namespace = replica_ring.namespace_of(config)
    assert replica_ring.namespace_of(config) == namespace
    assert (config.files.peers.read_bytes() == content) == (content == b"0" * 32)


class _Files:
    """What `namespace_of` asks of a Config."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "global_step_3"
    (directory / "sub").mkdir(parents=True)
    (directory / "policy.pt").write_bytes(b"weights")
    (directory / "sub" / "run.json").write_bytes(b"{}")
    write_manifest(directory, 3)
    return directory


@FUZZED
@given(st.data())
def test_a_damaged_manifest_makes_no_whole_checkpoint_of_a_broken_one(
    checkpoint: Path, data: st.DataObject
) -> None:
    whole = (checkpoint / MANIFEST).read_bytes()
    try:
        content = data.draw(damaged(json.loads(whole)))
        (checkpoint / MANIFEST).write_bytes(content)
        fault = fault_of(checkpoint)
        assert newest_checkpoint(checkpoint.parent) == (None if fault else 3)
        (checkpoint / "policy.pt").write_bytes(b"Weights")
        assert fault_of(checkpoint) or b"policy.pt" not in content
    finally:
        (checkpoint / "policy.pt").write_bytes(b"weights")
        (checkpoint / MANIFEST).write_bytes(whole)


def test_a_file_of_the_run_that_cannot_be_used_ends_a_trainer_with_73_and_its_name(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Ray is there: the first thing that a trainer does to its run directory."""
    config = tiny.config(run_dir)
    config.files.metrics.mkdir(parents=True)
    monkeypatch.setattr(
        "trainer.training.run.run", lambda config: JsonLines(config.files.metrics, 0)
    )
    assert main(flags_of(tiny, run_dir)) == ExitCode.RUN_DIR
    assert f"{config.files.metrics}: Is a directory: " in capsys.readouterr().err


def test_a_users_file_that_is_missing_is_not_the_runs(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.training.run.run", lambda config: (run_dir / "model").read_bytes())
    with pytest.raises(FileNotFoundError):
        main(flags_of(tiny, run_dir))


def flags_of(tiny: Tiny, run_dir: Path) -> list[str]:
    return [
        *("--run_dir", str(run_dir), "--pretrain", str(tiny.model)),
        *("--prompt_data", str(tiny.prompts), "--input_key", "prompt", "--label_key", "answer"),
        *("--remote_rm_url", "arithmetic"),
    ]


@FUZZED
@given(st.binary(max_size=20) | st.sampled_from([b"\xff", b"\0", b"", b"x" * 300, b"../x"]))
def test_the_name_of_openrlhfs_newest_step_may_be_anything(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / openrlhf.FOLDERS["policy"]
    folder.mkdir(exist_ok=True)
    (folder / LATEST).write_bytes(content)
    with pytest.raises(openrlhf.IncompleteError):
        openrlhf.find(tmp_path, ["policy"])
