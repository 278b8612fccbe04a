"""What flags add to the loop, each seen in a run's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tensorboardX.proto.event_pb2 import Event

from contract.manifest import checkpoint_path, newest_checkpoint
from contract.options import ConfigError
from env.data.prompts import PromptError
from env.types import RewardRequest, Score
from tests.support.learners import settings
from tests.support.tiny_run import Tiny, events, metric_rows, train
from trainer.algorithms.objectives import CriticObjective
from trainer.checkpoint.resume import ResumeError
from trainer.config.options.algorithm import LossSettings
from trainer.models import value_model
from trainer.rollout import prompts
from trainer.types import TrainingError, UnfitModelError
from trainer.workers.critic import CriticActor


def weights(directory: Path) -> dict[str, Any]:
    return dict(load_file(directory / "model.safetensors"))


def test_the_moving_average_is_what_a_run_ends_with(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir, enable_ema=True, ema_beta=0.75, train_batch_size=8, max_steps=2, save_steps=1
    )
    train(config)
    saved = [
        torch.load(checkpoint_path(config.checkpoints, step) / "policy.pt", weights_only=True)
        for step in (1, 2)
    ]
    start, exported = weights(tiny.model), weights(config.exported)
    moved = False
    for name, first in start.items():
        after = [content["model"][name].numpy() for content in saved]
        expected = 0.75 * (0.75 * first + 0.25 * after[0]) + 0.25 * after[1]
        assert exported[name] == pytest.approx(expected, abs=1e-6)
        moved |= not np.array_equal(exported[name], after[1])
    assert moved


def test_an_average_that_a_checkpoint_lacks_begins_at_its_weights(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"train_batch_size": 8, "save_steps": 1, "load_checkpoint": True}
    train(tiny.config(run_dir, **flags, max_steps=2))
    config = tiny.config(run_dir, **flags, max_steps=3, enable_ema=True, ema_beta=0.75)
    train(config)
    before, after = (
        torch.load(checkpoint_path(config.checkpoints, step) / "policy.pt", weights_only=True)
        for step in (2, 3)
    )
    exported = weights(config.exported)
    assert exported
    for name, averaged in exported.items():
        expected = 0.75 * before["model"][name].numpy() + 0.25 * after["model"][name].numpy()
        assert averaged == pytest.approx(expected, abs=1e-6)


def test_the_kls_weight_follows_its_target_and_outlives_a_resume(tiny: Tiny, run_dir: Path) -> None:
    flags = {"kl_target": 1e-6, "kl_horizon": 16, "init_kl_coef": 0.1, "save_steps": 2}
    train(tiny.config(run_dir, **flags, max_steps=2))
    config = tiny.config(run_dir, **flags, max_steps=3, load_checkpoint=True)
    train(config)
    # The first step's KL is 0, far below the target; the others' is far above it.
    used = [row["train/kl_coef"] for row in metric_rows(config)]
    assert used == pytest.approx([0.1, 0.1 * 0.9, 0.1 * 0.9 * 1.1])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"init_kl_coef": 0.01}, {"init_kl_coef": 0.5}, 0.5),
        ({"init_kl_coef": 0}, {"init_kl_coef": 0.05}, 0.05),
        ({"init_kl_coef": 0.01, "use_kl_loss": True}, {"init_kl_coef": 0, "use_kl_loss": True}, 0),
        ({"init_kl_coef": 0}, {"init_kl_coef": 0.05, "kl_target": 0.1}, 0.05),
        ({"init_kl_coef": 0.01}, {"init_kl_coef": 0.05, "kl_target": 0.1}, 0.05),
        ({"init_kl_coef": 0.01, "kl_target": 0.1}, {"init_kl_coef": 0.05}, 0.05),
        ({"init_kl_coef": 0.01, "kl_target": 0.1}, {"init_kl_coef": 0}, 0),
    ],
)
def test_a_weight_of_the_kl_that_no_target_steers_is_the_flags_after_a_resume(
    tiny: Tiny, run_dir: Path, before: dict[str, Any], after: dict[str, Any], expected: float
) -> None:
    flags = {"advantage_estimator": "group_norm", "kl_estimator": "k2"}
    train(tiny.config(run_dir, **flags, **before, max_steps=2))
    config = tiny.config(run_dir, **flags, **after, max_steps=3, load_checkpoint=True)
    train(config)
    assert metric_rows(config)[-1]["train/kl_coef"] == expected


def test_a_learning_rate_that_was_changed_is_the_flags_after_a_resume_and_it_is_said(
    tiny: Tiny, run_dir: Path
) -> None:
    flags = {"lr_scheduler": "linear", "lr_warmup_ratio": 0.0}
    before = {"actor_learning_rate": 1e-3, "critic_learning_rate": 2e-3}
    train(tiny.config(run_dir, **flags, **before, max_steps=2))
    after = {"actor_learning_rate": 5e-4, "critic_learning_rate": 2e-3}
    config = tiny.config(run_dir, **flags, **after, max_steps=4, load_checkpoint=True)
    train(config)
    # Half of the way is gone, and the rate with it.
    updates = config.updates_per_step
    first = 1 - 2 / 4
    assert metric_rows(config)[-2]["train/actor_lr"] == pytest.approx(
        5e-4 * (first - (updates - 1) / 2 / (4 * updates))
    )
    told = [event["sentence"] for event in events(config, "learning-rate")]
    assert told == [
        "The policy's learning rate was 0.001 at its peak until now; from here on it is 0.0005, "
        "as the flags say."
    ]


def test_rewards_are_normalised_by_all_that_were_seen(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, normalize_reward=True, init_kl_coef=0, max_steps=3)
    state = train(config)
    assert state.reward_moments.count == 3 * 8
    mean = np.mean([row["train/reward"] for row in metric_rows(config)])
    assert state.reward_moments.mean == pytest.approx(mean, abs=1e-6)
    # What the log calls the reward stays as the reward function said it.
    assert all(0 <= row["train/reward"] <= 1 for row in metric_rows(config))


def test_prompts_without_signal_are_replaced_by_the_next_ones(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir,
        dynamic_filtering=True,
        advantage_estimator="group_norm",
        init_kl_coef=0,
        max_steps=2,
        temperature=3,
    )
    state = train(config, odd_is_right)
    rows = metric_rows(config)
    assert all(0 < row["train/reward"] < 1 for row in rows)
    rates = [row["train/dynamic_filtering_pass_rate"] for row in rows]
    assert all(0 < rate <= 1 for rate in rates)
    drawn = sum(round(4 / rate) for rate in rates)
    assert state.prompts["epoch"] * 24 + state.prompts["position"] == drawn > 8


def odd_is_right(requests: Sequence[RewardRequest]) -> list[Score]:
    """Right where the completion has an odd number of characters."""
    return [Score.of(float(len(r.response) % 2)) for r in requests]


@pytest.mark.parametrize(
    "flags", [{}, {"async_train": True, "max_staleness": 0}], ids=["synchronous", "asynchronous"]
)
def test_a_prompt_that_cannot_be_scored_is_replaced_also_where_it_is_drawn_alone(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    config = tiny.config(
        run_dir,
        dynamic_filtering=True,
        advantage_estimator="group_norm",
        init_kl_coef=0,
        max_steps=1,
        **flags,
    )
    dealt = [prompt.text for prompt in prompts.load(config).stream.next_batch(6)]

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        """One of two completions is right; of the first prompt both, of the fifth nobody knows."""
        right = [n % 2 or r.prompt == dealt[0] for n, r in enumerate(requests)]
        scores = [Score.of(float(one)) for one in right]
        return [
            Score.failed("no such label") if r.prompt == dealt[4] else score
            for r, score in zip(requests, scores, strict=True)
        ]

    state = train(config, reward)
    assert state.prompts["position"] == 6
    (row,) = metric_rows(config)
    assert row["train/dynamic_filtering_pass_rate"] == 4 / 6


def test_a_policy_that_is_always_right_has_no_signal_left(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, dynamic_filtering=True, advantage_estimator="rloo")
    with pytest.raises(TrainingError, match=r"--dynamic_filtering: of 40 prompts only 0"):
        train(config, lambda requests: [Score.of(1.0) for _ in requests])


def test_an_evaluation_says_pass_at_1_and_pass_at_k_and_keeps_the_best(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(
        run_dir,
        eval_dataset=tiny.held_out,
        eval_steps=1,
        eval_n_samples_per_prompt=3,
        eval_temperature=1.0,
        max_steps=3,
    )
    state = train(config)
    rows = [row for row in metric_rows(config) if "eval/pass1" in row]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["eval/pass3"] >= row["eval/pass1"] == row["eval/accuracy"] for row in rows)
    assert any(row["eval/pass3"] > row["eval/pass1"] for row in rows)
    best = max(rows[1:], key=lambda row: float(row["eval/pass1"]))
    assert state.best == best["eval/pass1"]
    assert [path.name for path in config.files.best.iterdir()] == [f"global_step_{best['step']}"]
    assert events(config, "best")[-1]["details"] == {"step": best["step"], "value": state.best}


def test_no_best_policy_is_kept_where_none_is_wanted(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, best_metric_key="none", max_steps=1)
    train(config)
    assert not config.files.best.exists()


def test_a_metric_that_no_evaluation_logs_is_refused_at_the_start(
    tiny: Tiny, run_dir: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--best_metric_key: no evaluation logs it .*pass8"):
        tiny.config(
            run_dir,
            eval_dataset=tiny.held_out,
            eval_n_samples_per_prompt=8,
            eval_temperature=1.0,
            best_metric_key="pass4",
        )


def test_metrics_go_to_tensorboard_too(tiny: Tiny, run_dir: Path) -> None:
    board = run_dir / "board"
    config = tiny.config(run_dir, use_tensorboard=board, max_steps=2)
    train(config)
    (file,) = board.iterdir()
    seen = {
        (event.step, value.tag): value.simple_value
        for event in read_tensorboard(file)
        for value in event.summary.value
    }
    rows = metric_rows(config)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        shown = seen[row["step"], "train/reward"]
        assert shown == pytest.approx(row["train/reward"], abs=1e-6)


def read_tensorboard(file: Path) -> list[Any]:
    """TFRecord: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    content, read = file.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        read.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return read


def test_a_reward_that_is_no_number_ends_the_run_and_leaves_the_samples(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, save_steps=1, max_steps=3)
    calls: list[int] = []

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        calls.append(len(requests))
        scores = [Score.of(0.5) for _ in requests]
        return [Score.of(float("nan")), *scores[1:]] if len(calls) == 2 else scores

    with pytest.raises(TrainingError, match=r"Step 2: the reward of prompt \d+ is nan"):
        train(config, reward)
    kept = [json.loads(line) for line in (run_dir / "failed-step-2.jsonl").open()]
    assert len(kept) == 8
    assert kept[0]["reward"] == "nan"
    assert kept[0]["prompt"].endswith("+1=")
    assert newest_checkpoint(config.checkpoints) == 1


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    train(tiny.config(run_dir, max_steps=1))
    shape = AutoConfig.from_pretrained(tiny.model)
    shape.intermediate_size += 8
    other = tmp_path / "other"
    shutil.copytree(tiny.model, other)
    AutoModelForCausalLM.from_config(shape).save_pretrained(other)
    with pytest.raises(ResumeError, match=r"is not the model that .*global_step_1 was made with"):
        train(tiny.config(run_dir, pretrain=other, max_steps=2, load_checkpoint=True))


def test_prompts_over_the_limit_are_left_out_and_counted(
    tiny: Tiny, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 0+1= to 9+1= have four characters, which are tokens here; 10+1= to 23+1= have five.
    config = tiny.config(run_dir, prompt_overlong="drop", prompt_max_len=4)
    assert len(prompts.load(config).stream) == 10
    assert "14 of 24 prompts have more than --prompt_max_len 4 tokens" in capsys.readouterr().out
    with pytest.raises(PromptError, match="none of the 24 prompts can be used"):
        prompts.load(tiny.config(run_dir, prompt_overlong="drop", prompt_max_len=2))


def test_a_tokeniser_without_a_chat_template_is_named(tiny: Tiny, run_dir: Path) -> None:
    with pytest.raises(PromptError, match="has no chat template"):
        prompts.load(tiny.config(run_dir, apply_chat_template=True))


def test_only_models_are_saved_where_no_state_is_wanted(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(
        run_dir, disable_ds_ckpt=True, save_hf_ckpt=True, save_steps=1, max_steps=2
    )
    train(config)
    names = sorted(path.name for path in config.checkpoints.iterdir())
    assert names == ["global_step_1_hf", "global_step_2_hf"]


def test_the_value_network_is_saved_beside_the_policy(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, save_value_network=True, max_steps=1)
    train(config)
    head = load_file(config.exported_critic / "value_head.safetensors")
    assert head["score.weight"].shape[0] == 1
    assert (config.exported_critic / "model.safetensors").is_file()


def test_a_critic_goes_on_from_a_trained_value_head(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, save_value_network=True, max_steps=1)
    train(config)
    trained = load_file(config.exported_critic / value_model.HEAD_FILE)["score.weight"]
    model = settings(tiny).model
    known = replace(settings(tiny), model=replace(model, model=str(config.exported_critic)))
    values = {}
    for prefix in ("score", "another"):
        actor = CriticActor(
            known, CriticObjective(LossSettings(value_clip=0.5), value_head_prefix=prefix)
        )
        head = dict(actor._model.named_parameters())["value_head.weight"].detach().numpy()
        values[prefix] = np.array_equal(head, trained)
    assert values == {"score": True, "another": False}


def test_a_value_head_of_another_shape_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    directory = tmp_path / "reward-of-two"
    shutil.copytree(tiny.model, directory)
    save_file({"score.weight": np.zeros((2, 8), np.float32)}, directory / "head.safetensors")
    with pytest.raises(UnfitModelError, match=r"score\.weight .*\[2, 8\].*--value_head_prefix"):
        value_model.load_head(str(directory), "score", hidden=8)


DAPO = {
    "advantage_estimator": "group_norm",
    "eps_clip_low_high": (0.2, 0.28),
    "overlong_buffer_len": 1,
    "dual_clip": 3,
    "entropy_loss_coef": 0.001,
    "is_correction_level": "token",
    "init_kl_coef": 0,
}


@pytest.mark.parametrize(
    "flags",
    [
        {"advantage_estimator": "reinforce"},
        {"advantage_estimator": "reinforce", "no_advantage_std_norm": True, "init_kl_coef": 0},
        {"advantage_estimator": "reinforce_baseline"},
        {"advantage_estimator": "rloo"},
        {"advantage_estimator": "dr_grpo", "loss_aggregation": "constant", "init_kl_coef": 0},
        {"advantage_estimator": "group_norm", "policy_loss_type": "gspo"},
        DAPO,
    ],
    ids=lambda flags: "-".join(str(value) for value in flags.values()),
)
def test_every_algorithm_runs_and_moves_the_policy(
    tiny: Tiny, run_dir: Path, flags: dict[str, Any]
) -> None:
    config = tiny.config(run_dir, **flags, max_steps=2)
    train(config, lambda requests: [Score.of(len(set(r.response)) / 3) for r in requests])
    for row in metric_rows(config):
        assert np.isfinite(row["train/policy_loss"])
        assert row["train/grad_norm"] > 0
    start, end = weights(tiny.model), weights(config.exported)
    assert any(not np.array_equal(start[name], end[name]) for name in start)
