"""Models and data that cannot be used: `plan` and `up` name the file, and nothing is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from contract.journal import EventSource, append_event, read_events
from contract.manifest import checkpoint_path, write_manifest
from contract.run_dir import RunFiles
from entrypoint.commands import plan
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity
from entrypoint.job.failures import resume_check
from entrypoint.job.recipes.builtin.recipe import RECIPE
from tests.support.model_files import write_files
from trainer.config.config import Config
from trainer.config.parse import parse

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
    lost = "model-00002-of-00002.safetensors"
    index = {"weight_map": {"lm_head.weight": shard.name, "b": lost}}
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
    "tokeniser cut off": (cut("tokenizer_config.json", 1), "tokenizer_config.json is damaged: "),
}


KEYS = ("--input_key", "prompt", "--label_key", "answer")


def flags(
    root: Path, *more: str, prompts: str = "prompts.jsonl", keys: tuple[str, ...] = KEYS
) -> list[str]:
    return [
        *("--pretrain", str(root / "model"), "--prompt_data", str(root / prompts)),
        *("--remote_rm_url", "arithmetic", *keys, *more),
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    return tmp_path


def problems(
    root: Path, *more: str, prompts: str = "prompts.jsonl", keys: tuple[str, ...] = KEYS
) -> list[str]:
    environ = {"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"}
    row = plan.plan(read_settings(environ, flags(root, *more, prompts=prompts, keys=keys)))
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
    assert "is still being written" in problem
    os.utime(path, (0, 0))
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


def rows(root: Path, *rows: Mapping[str, object]) -> None:
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_prompt_without_a_token_is_named(root: Path) -> None:
    rows(root, {"prompt": "1+1=", "answer": "2"}, {"prompt": " \t", "answer": "2"})
    (problem,) = problems(root)
    assert f"{root}/prompts.jsonl: the text of prompt 2, ' \\t', has no tokens" in problem


@pytest.mark.parametrize(
    ("given", "has"),
    [
        ({"vision_config": {}}, "vision_config"),
        ({"image_token_id": 7, "model_type": "gemma3"}, "image_token_id"),
    ],
)
def test_a_vision_model_is_refused_by_name(root: Path, given: dict[str, object], has: str) -> None:
    write_files(root / "model", **given)
    (problem,) = problems(root)
    said = f"--pretrain: {root}/model/config.json: a model of images and text (it has {has})"
    assert problem.startswith(f"{said}, and of those, qwen2_5_vl is trained")


def test_rows_of_a_model_that_takes_images(root: Path) -> None:
    """Its chat template renders every row, also without --apply_chat_template."""
    write_files(root / "model", model_type="qwen2_5_vl", vision_config={})
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "1+1="}]
    chat = json.dumps([{"role": "user", "content": parts}])
    rows(root, {"message": chat, "answer": "2"})
    flags = ("--input_key", "message", "--label_key", "answer")
    (problem,) = problems(root, *flags, keys=())
    assert problem.startswith(f"--pretrain: {root}/model/preprocessor_config.json cannot be read")
    (root / "model" / "preprocessor_config.json").write_text("{}")
    assert problems(root, *flags, keys=()) == []
    (problem,) = problems(root, *flags, "--image_key", "picture", keys=())
    assert "the key 'picture' is missing" in problem
    rows(root, {"message": chat, "answer": "2", "images": ["b.png"]})
    (problem,) = problems(root, *flags, "--max_images_per_prompt", "1", keys=())
    assert "prompts.jsonl:1: has 2 images, and --max_images_per_prompt is 1" in problem


def test_images_are_refused_by_name(root: Path) -> None:
    row = {"prompt": "1+1=", "answer": "2"}
    rows(root, {**row, "images": None}, {**row, "images": []})
    assert problems(root) == []
    rows(root, row, {**row, "images": ["/data/1.png"]})
    (problem,) = problems(root)
    assert "prompts.jsonl:2: has something in the column 'images', and only text" in problem


def test_images_in_messages_are_refused_for_a_text_model(root: Path) -> None:
    parts = [{"type": "image", "image": "/data/1.png"}, {"type": "text", "text": "1+1="}]
    chat = [{"role": "user", "content": parts}]
    rows(root, {"message": chat, "answer": "2"})
    (root / "model" / "chat_template.jinja").write_text("{{ messages }}")
    flags = ("--data.input_key", "message", "--apply_chat_template")
    (problem,) = problems(root, *flags, keys=())
    assert "prompts.jsonl:1: a message of 'message' has a part of type 'image'" in problem
    rows(root, {"message": json.dumps(chat), "answer": "2"})
    (problem,) = problems(root, *flags, keys=())
    assert "prompts.jsonl:1: a message of 'message' has a part of type 'image'" in problem
    rows(root, {"message": json.dumps([{"role": "user", "content": "1+1="}]), "answer": "2"})
    assert problems(root, *flags, "--label_key", "answer", keys=()) == []


STRUCT = {"prompt": "1+1=", "reward_model": {"style": "rule", "ground_truth": "2"}}


def test_a_label_may_be_nested(root: Path) -> None:
    table = pa.Table.from_pylist([STRUCT])
    parquet.write_table(table, root / "prompts.parquet")
    Dataset.from_list([STRUCT]).save_to_disk(root / "saved")
    rows(root, STRUCT)
    nested = ("--input_key", "prompt", "--label_key", "reward_model.ground_truth")
    for name in ("prompts.jsonl", "prompts.parquet", "saved"):
        assert problems(root, *nested, prompts=name, keys=()) == []
    (problem,) = problems(root, "--label_key", "reward_model.truth", keys=KEYS[:2])
    assert "the key 'reward_model.truth' is missing; 'reward_model' has: 'style'" in problem


def test_labels_that_no_reward_can_read_are_a_fault_with_what_would_be_right(root: Path) -> None:
    rows(root, STRUCT, STRUCT)
    (problem,) = problems(root, "--label_key", "reward_model", keys=KEYS[:2])
    assert problem.startswith(
        "--label_key reward_model: --remote_rm_url arithmetic can score none of the first 2 rows"
    )
    assert problem.endswith("as --label_key reward_model.ground_truth")
    rows(root, {"prompt": "1+1=", "answer": "two"}, {"prompt": "1+1=", "answer": "2"})
    assert problems(root) == []  # one can be scored


def test_a_run_directory_without_the_beginning_that_is_asked_for_is_a_fault(root: Path) -> None:
    run = RunFiles(root / "run")
    assert problems(root, "--load_checkpoint", "false") == []
    (problem,) = problems(root, "--load_step", "3")
    assert problem.endswith("no manifest: it was never finished. None is complete there")
    for step in (1, 2):
        directory = checkpoint_path(run.checkpoints, step)
        directory.mkdir(parents=True)
        write_manifest(directory, step)
    assert problems(root) == problems(root, "--load_step", "2") == []
    (problem,) = problems(root, "--load_checkpoint", "false")
    assert problem.startswith(f"--load_checkpoint false: {root}/run has a run of 2 steps already")
    (problem,) = problems(root, "--load_step", "3")
    assert problem.startswith(f"--load_step 3: {run.checkpoints}/global_step_3 is not a complete")
    assert problem.endswith("Complete are those of steps 1, 2")
    (problem,) = problems(root, "--load_step", "2", "--load_checkpoint", "false")
    assert problem.startswith("--load_step: contradicts --load_checkpoint false")


def flags_of(settings: Settings) -> Config:
    """Of the job, as the trainer reads them."""
    argv = RECIPE.command(settings, None).argv
    return parse(argv[argv.index("--pretrain") :])


@pytest.mark.parametrize("given", [("--load_checkpoint", "false"), ("--load_step", "3")])
def test_how_a_command_begins_is_done_once_and_after_it_the_newest_step_counts(
    root: Path, given: tuple[str, ...]
) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"}
    settings = read_settings(environ, flags(root, *given))
    config = flags_of(settings)
    wanted = (False, 0) if "false" in given else (True, 3)
    assert (config.load_checkpoint, config.load_step) == wanted
    assert RECIPE.begins_at(settings) == (wanted[1] or None)
    command = command_identity.fingerprint(settings)
    journal = RunFiles(root / "run").journal
    journal.parent.mkdir()
    append_event(
        journal, "attempt", "attempt 1 starts", {"command": command}, source=EventSource(attempt=1)
    )
    assert not resume_check.has_begun(read_events(journal), command)
    append_event(
        journal, "resume", "Training starts", {"step": wanted[1]}, source=EventSource(attempt=1)
    )
    (journal.parent / "progress.json").write_text('{"step": 5}')
    assert resume_check.has_begun(read_events(journal), command)
    assert problems(root, *given) == []
    later = flags_of(RECIPE.going_on(settings))
    assert (later.load_checkpoint, later.load_step) == (True, 0)
    append_event(
        journal,
        "attempt",
        "attempt 2 starts",
        {"command": "another"},
        source=EventSource(attempt=2),
    )
    append_event(journal, "resume", "Training goes on", {"step": 5}, source=EventSource(attempt=2))
    assert len(problems(root, *given)) == 1  # the run is another command's since


def test_the_plan_shows_every_warning_of_the_trainers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(root / "run"), "EXPECTED_WORKERS": "0"}
    given = ("--deepcompile", "--lora_alpha", "8")
    settings = read_settings(environ, flags(root, *given))
    said = [
        "--deepcompile has no effect: models run uncompiled",
        "--lora_alpha has no effect: it needs --lora_rank",
        "--prompt_data has 1 row, and a step takes 1024 prompts (--rollout_batch_size): each step "
        "has the same rows several times",
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
