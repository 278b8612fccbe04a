"""Models and data that cannot be used: `plan` and `up` name the file, and nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from entrypoint import plan
from entrypoint.settings import Settings
from tests.entrypoint.models import write_files

Damage = Callable[[Path], object]


def cut(name: str, by: int) -> Damage:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:-by])


def lose(name: str) -> Damage:
    return lambda model: (model / name).unlink()


def write(name: str, text: str) -> Damage:
    return lambda model: (model / name).write_text(text)


def name_a_lost_shard(model: Path) -> None:
    shard = model / "model-00001-of-00002.safetensors"
    (model / "model.safetensors").rename(shard)
    index = {"weight_map": {"a": shard.name, "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def keep_a_cut_pickle(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(40))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "config cut off": (cut("config.json", 3), "config.json is damaged: "),
    "config of no text": (
        lambda model: (model / "config.json").write_bytes(b"\xff{"),
        "config.json is damaged: not UTF-8 at byte 0",
    ),
    "config that is a list": (write("config.json", "[]"), "config.json is damaged: it holds no"),
    "no type": (write("config.json", "{}"), "config.json has no model_type"),
    "unknown type": (
        write("config.json", '{"model_type": "qwen99"}'),
        "config.json: the model_type 'qwen99' is none that transformers has here",
    ),
    "weights cut off": (cut("model.safetensors", 5), "model.safetensors is damaged or cut off: "),
    "weights damaged": (
        write("model.safetensors", "not a tensor at all, whatever its name says"),
        "model.safetensors is damaged or cut off: ",
    ),
    "no weights": (lose("model.safetensors"), "model has no weights: neither model.safetensors"),
    "a shard lost": (
        name_a_lost_shard,
        "model-00002-of-00002.safetensors is missing, and the index names it",
    ),
    "pickle cut off": (keep_a_cut_pickle, "pytorch_model.bin is cut off (it has 44 bytes)"),
    "no tokeniser": (lose("tokenizer.json"), "model has no tokeniser: none of tokenizer.json"),
    "tokeniser cut off": (cut("tokenizer.json", 1), "tokenizer.json is damaged: "),
}


def flags(root: Path, *more: str, prompts: str = "prompts.jsonl") -> list[str]:
    return [
        *("--pretrain", str(root / "model"), "--prompt_data", str(root / prompts)),
        *("--remote_rm_url", "arithmetic", "--input_key", "prompt", "--label_key", "answer", *more),
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    return tmp_path


def problems(root: Path, *more: str, prompts: str = "prompts.jsonl") -> list[str]:
    environ = {"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"}
    row = plan.plan(Settings.read(environ, flags(root, *more, prompts=prompts)))
    return [fault["problem"] for fault in row["faults"]]


def test_whole_files_are_no_fault(root: Path) -> None:
    assert problems(root) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_named_by_its_file(root: Path, damage: str) -> None:
    do, said = DAMAGES[damage]
    do(root / "model")
    (problem,) = problems(root)
    assert problem.startswith(f"--pretrain: {root}")
    assert said in problem


def test_the_critics_files_are_looked_at_where_there_is_a_critic(root: Path) -> None:
    critic = write_files(root / "critic")
    (critic / "model.safetensors").unlink()
    given = ("--critic_pretrain", str(critic))
    assert problems(root, *given)[0].startswith(f"--critic_pretrain: {critic} has no weights")
    assert problems(root, *given, "--advantage_estimator", "reinforce") == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--actor_learning_rate", "inf"], "--actor_learning_rate: must be finite (given: inf)"),
        (["--gamma", "0.9", "--gamma", "0.8"], "--gamma: is given twice"),
        (["--run_dir", "/elsewhere"], "--run_dir /elsewhere is not ROLLCALL_RUN_DIR="),
    ],
)
def test_a_flag_that_would_be_passed_over_is_a_fault(
    root: Path, given: list[str], said: str
) -> None:
    (problem,) = problems(root, *given)
    assert problem.startswith(said)


def test_parquet_is_opened(root: Path) -> None:
    path = root / "prompts.parquet"
    parquet.write_table(pa.table({"prompt": ["1+1="], "answer": ["2"]}), path)
    assert problems(root, prompts=path.name) == []
    parquet.write_table(pa.table({"prompt": ["1+1="], "anwser": ["2"]}), path)
    (problem,) = problems(root, prompts=path.name)
    assert "the key 'answer' is missing" in problem
    path.write_bytes(path.read_bytes()[:-9])
    (problem,) = problems(root, prompts=path.name)
    assert problem.startswith(f"--prompt_data: {path}: not readable as Parquet: ")


def test_a_saved_data_set_is_opened(root: Path) -> None:
    path = root / "saved"
    Dataset.from_dict({"prompt": ["1+1="], "answer": ["2"]}).save_to_disk(path)
    assert problems(root, prompts=path.name) == []
    arrow = next(path.glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])
    (problem,) = problems(root, prompts=path.name)
    assert problem.startswith(f"--prompt_data: {path}: not readable as a saved data set: ")


def test_the_plan_shows_every_warning_of_the_trainers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"}
    given = ("--deepcompile", "--lora_alpha", "8")
    settings = Settings.read(environ, flags(root, *given))
    said = [
        "--deepcompile has no effect: models run as they are",
        "--lora_alpha has no effect: it needs --lora_rank",
    ]
    assert plan.main(settings, True) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == said
    assert plan.main(settings, False) == 0
    assert [f"warning: {one}" for one in said] == capsys.readouterr().err.splitlines()


def test_up_ends_with_64_and_no_traceback(root: Path) -> None:
    (root / "model" / "config.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint", *flags(root)],
        env={"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 64
    assert done.stderr.startswith(f"--pretrain: {root}/model/config.json is damaged: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (root / "run").exists()
