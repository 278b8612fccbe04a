"""How the program ends, without a cluster: what is wrong is found before one is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.progress import Progress
from contract.run_dir import RunFiles
from tests.support.hub_server import Hub, ask
from tests.support.tiny_run import Tiny, to_argv
from trainer.__main__ import main
from trainer.cluster import placement
from trainer.cluster.stop import Stopped
from trainer.config.layout import Layout
from trainer.models import hub
from trainer.training import run
from trainer.types import TrainingError, UnfitModelError


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(layout: Layout) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(placement, "join", refuse)


def end_of(tiny: Tiny, run_dir: Path, **flags: Any) -> int:
    values = {
        **tiny.needed(run_dir),
        "rollout_batch_size": 8,
        "train_batch_size": 8,
        **flags,
    }
    return main(to_argv(values))


def test_broken_prompts_end_with_file_and_line(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": \n')
    assert end_of(tiny, run_dir, prompt_data=broken) == ExitCode.USAGE
    assert f"{broken}:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"prompt_data": "/nowhere.jsonl"}, "/nowhere.jsonl"),
        ({"remote_rm_url": "arithmatic"}, "Did you mean 'arithmetic'"),
        ({"train_batch_size": 3}, "2 or 4 would"),
        ({"eps_clp": 3}, "Did you mean --eps_clip?"),
        ({"input_key": "prmpt"}, "prmpt"),
    ],
)
def test_bad_usage_is_one_message_and_64(
    tiny: Tiny,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    flags: dict[str, Any],
    said: str,
) -> None:
    assert end_of(tiny, run_dir, **flags) == ExitCode.USAGE
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_other_weights_end_a_run_that_has_no_head_once_it_has_finished_a_step(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny.model, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    for _ in range(2):  # before the first step, any model may be given
        with pytest.raises(AssertionError, match="a cluster was started"):
            end_of(tiny, run_dir, pretrain=tmp_path / "model")
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    told = Progress(step=1, total_steps=2, samples=8, attempt=1)
    told.write(RunFiles(run_dir).progress)
    assert end_of(tiny, run_dir, pretrain=tmp_path / "model") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"--pretrain {tmp_path / 'model'} has other weights than the run was begun with" in said
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(AssertionError, match="a cluster was started"):
        end_of(tiny, run_dir, pretrain=tmp_path / "model")


def test_a_damaged_model_ends_before_a_cluster_is_asked_for(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.model, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert end_of(tiny, run_dir, pretrain=model) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"--pretrain: {weights} is damaged or cut off: ")


def test_labels_that_no_server_can_score_end_before_a_cluster_is_asked_for(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picky = tmp_path / "reward.py"
    picky.write_text("def reward_func(queries, prompts, labels):\n    return [float('nan')] * 4\n")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1+1=", "answer": {"ground_truth": "2"}}\n' * 4)
    flags = {"prompt_data": prompts, "remote_rm_url": picky}
    assert end_of(tiny, run_dir, **flags) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"--remote_rm_url {picky} can score none of the first 4 rows of {prompts}" in said
    assert "as --label_key answer.ground_truth" in said
    picky.write_text("def reward_func(queries, prompts, labels):\n    return [1.0] * 4\n")
    with pytest.raises(AssertionError, match="a cluster was started"):
        end_of(tiny, run_dir, **flags)


FAILS = """
def reward_func(queries, prompts, labels):
    raise TimeoutError("429 Too Many Requests")
"""


def test_a_reward_of_the_users_that_fails_at_the_start_is_a_warning(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(FAILS)
    with pytest.raises(AssertionError, match="a cluster was started"):
        end_of(tiny, run_dir, remote_rm_url=reward)
    events = read_events(RunFiles(run_dir).journal)
    (told,) = (event for event in events if event["kind"] == "first-rows")
    assert told["sentence"] in capsys.readouterr().out
    assert told["sentence"] == (
        f"--remote_rm_url {reward} can score none of the first 4 rows of {tiny.prompts}: the "
        "reward function raised TimeoutError: 429 Too Many Requests. The run begins nevertheless."
    )


def test_labels_that_a_reward_of_our_own_cannot_read_are_refused(
    tiny: Tiny, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1+1=", "answer": "two"}\n' * 4)
    assert end_of(tiny, run_dir, prompt_data=prompts) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("--label_key answer: --remote_rm_url arithmetic can")


def test_a_flag_without_effect_is_said_at_the_start(
    tiny: Tiny, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="a cluster was started"):
        end_of(tiny, run_dir, deepcompile=True)
    assert "warning: --deepcompile has no effect: models run uncompiled" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (hub.HubError("no such name"), ExitCode.USAGE),
        (hub.HubUnreachableError("no answer"), ExitCode.UNREACHABLE),
        (UnfitModelError("no chat template"), ExitCode.USAGE),
        (TrainingError("the loss is not finite"), ExitCode.JOB_FAILED),
        (Stopped("after step 3"), ExitCode.STOPPED),
        (ValueError("a bug"), None),
    ],
)
def test_the_nearest_kind_of_an_error_decides_on_the_exit_code(
    error: Exception, code: ExitCode | None
) -> None:
    assert run.exit_code(error) is code


@pytest.mark.parametrize("occupied", [".progress.json.{pid}.tmp", "progress.json"])
def test_progress_that_cannot_be_written_is_the_run_directorys_fault(
    tiny: Tiny,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    occupied: str,
) -> None:
    progress = RunFiles(run_dir).progress

    def go_on(layout: Layout) -> None:
        (run_dir / occupied.format(pid=os.getpid())).mkdir()
        Progress(step=1).write(progress)

    monkeypatch.setattr(placement, "join", go_on)
    assert end_of(tiny, run_dir) == ExitCode.RUN_DIR
    assert f"{progress}: Is a directory: " in capsys.readouterr().err


REWARDED = {"remote_rm_url": None, "reward_pretrain": "owner/model"}


@pytest.mark.parametrize(
    ("flags", "more", "said"),
    [
        ({}, {"vision_config": {}}, "a model of images and text (it has vision_config)"),
        (
            {},
            {"max_position_embeddings": 16, "rope_scaling": {"rope_type": "dynamic"}},
            "beyond 16 tokens its positions are scaled by the longest sequence of a pass",
        ),
        ({}, {"vocab_size": 5}, "tokens without a row in the embedding of"),
        (
            {"critic_pretrain": "owner/model", "advantage_estimator": "gae"},
            {"vocab_size": 5},
            "tokens without a row in the embedding of",
        ),
        (REWARDED, {}, "has no head that scores a text: its architecture is Qwen2ForCausalLM"),
        (
            REWARDED,
            {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
            "gives 2 numbers for a text; a reward is one",
        ),
    ],
)
@pytest.mark.parametrize("weights", [False, True])
def test_a_model_of_the_hub_is_refused_as_a_directory_is(
    tiny: Tiny,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    more: dict[str, Any],
    said: str,
    weights: bool,
) -> None:
    """By its small files before a cluster is asked for, and on each node with its weights."""
    model = tmp_path / "repository"
    shutil.copytree(tiny.model, model)
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(content | more))
    if weights:
        monkeypatch.setattr(
            run, "with_small_files", lambda config: replace(config, pretrain=str(tiny.model))
        )
        monkeypatch.setattr(placement, "join", lambda layout: None)
        monkeypatch.setattr(placement, "reserve", lambda layout: None)
        monkeypatch.setattr(run, "_settled", lambda config, placed: config)
        on_one = lambda placed, do, given: {"one": do(given)}  # noqa: E731
        monkeypatch.setattr(placement, "on_each_node", on_one)
    given = flags or {"pretrain": "owner/model"}
    flag = next(name for name, value in given.items() if value == "owner/model")
    with Hub({"owner/model": model}) as served:
        ask(monkeypatch, served.url, tmp_path / "home")
        assert end_of(tiny, run_dir, **given) == ExitCode.USAGE
        assert ("owner/model/model.safetensors" in served.downloads) is weights
    told = capsys.readouterr().err
    assert f"--{flag}" in told
    assert said in told
    assert str(tmp_path / "home") in told


LEAVES_SLOWLY = """
import atexit, sys, time
from trainer.cluster.driver_exit import exit_within
atexit.register(time.sleep, 600)
exit_within(0.2, 75)
sys.exit(75)
"""


def test_a_driver_whose_leave_of_ray_takes_too_long_ends_without_it() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES_SLOWLY], timeout=60, check=False)
    assert ended.returncode == 75
