"""Rewards from models in the cluster: real heads, real tokenisers, failures that stay failures."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from contract.options import ConfigError
from env.registry import reward_function
from env.types import Prompt, RewardRequest, Score
from tests.support.local_workers import LocalLauncher, LocalWorkerGroup
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny, events, metric_rows, share_of, train
from tests.support.waiting import eventually
from trainer.config.reward_models import combination
from trainer.models.settings import RewardSettings
from trainer.rollout import prompts
from trainer.rollout.rewards import BackgroundScoring, ModelReward, rewards_of
from trainer.rollout.rollout_state import PromptGroup
from trainer.types import Completion, FinishedRollout, LostWorkerError, TrainingError
from trainer.workers import groups
from trainer.workers.reward import RewardActor

CHAT = "{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }};{% endfor %}"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reward_model(tmp_path_factory.mktemp("judge"), "=+9876543210u:a;")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reward_model(tmp_path_factory.mktemp("other"), "0123456789+=", seed=1)


def actor(*models: Path) -> RewardActor:
    names = tuple(map(str, models))
    return RewardActor(RewardSettings(models=names, mixed_precision=False, micro_batch_size=4))


def request(prompt: str, response: str) -> RewardRequest:
    return RewardRequest(prompt + response, prompt)


def by_hand(model: Path, text: str, **tokenise: Any) -> float:
    """One text through the model alone."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = tokenizer(text)["input_ids"] + tokenise.get("end", [tokenizer.eos_token_id])
    scorer = AutoModelForSequenceClassification.from_pretrained(model)
    with torch.inference_mode():
        return float(scorer(torch.tensor([tokens])).logits)


def test_texts_of_any_length_have_the_score_that_each_has_alone(judge: Path) -> None:
    answers = ("2", "11111", "", "=", "203", "7" * 12)
    requests = [request("1+1=", answer) for answer in answers]
    scores = [score for (score,) in actor(judge).score(requests)]
    assert all(score.ok for score in scores)
    expected = [by_hand(judge, f"1+1={answer}") for answer in answers]
    assert [score.reward for score in scores] == pytest.approx(expected, abs=1e-6)
    assert len({round(score.reward, 6) for score in scores}) == len(answers)


def test_a_chat_is_written_anew_in_the_model_s_own_template(judge: Path, tmp_path: Path) -> None:
    model = tmp_path / "chatty"
    shutil.copytree(judge, model)
    (model / "chat_template.jinja").write_text(CHAT)
    asked = RewardRequest(
        "<s>1+1=</s>2", "<s>1+1=</s>", None, [{"role": "user", "content": "1+1="}]
    )
    ((score,),) = actor(model).score([asked])
    assert score.reward == pytest.approx(by_hand(model, "u:1+1=;a:2;", end=[]), abs=1e-6)


def test_a_text_that_the_model_cannot_read_is_a_failure_and_no_zero(judge: Path) -> None:
    long, fine = actor(judge).score([request("1+1=", "1" * 40), request("1+1=", "2")])
    assert not long[0].ok
    assert "45 tokens" in long[0].error
    assert "reads 32" in long[0].error
    assert fine[0].ok


def test_a_number_that_is_none_is_a_failure(judge: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    broken = tmp_path / "broken"
    shutil.copytree(judge, broken)
    with torch.no_grad():
        model.score.weight.fill_(float("nan"))
    model.save_pretrained(broken)
    ((score,),) = actor(broken).score([request("1+1=", "2")])
    assert (score.ok, score.error) == (False, f"{broken} says nan")


def test_a_head_that_was_never_trained_is_refused(tiny: Tiny) -> None:
    with pytest.raises(TrainingError, match=r"no trained score\.weight"):
        actor(tiny.model)


class Fixed:
    """Reward models that always say the same."""

    def __init__(self, *scores: Score) -> None:
        self.scores, self.asked = list(scores), 0

    def score(self, requests: Sequence[RewardRequest]) -> list[list[Score]]:
        self.asked += len(requests)
        return [self.scores] * len(requests)


def test_several_models_are_one_reward_and_processes_share_the_samples(tmp_path: Path) -> None:
    group = [Fixed(Score.of(1.0), Score.of(4.0)) for _ in range(3)]
    rewards = {
        name: ModelReward(LocalWorkerGroup(group), combination(name))([request("a", "b")] * 7)
        for name in ("mean", "sum", "min")
    }
    assert {name: score[0].reward for name, score in rewards.items()} == {
        "mean": 2.5,
        "sum": 5.0,
        "min": 1.0,
    }
    assert rewards["mean"][6].metrics == {"reward_model_1": 1.0, "reward_model_2": 4.0}
    assert [one.asked for one in group] == [9, 9, 3]
    own = tmp_path / "own.py"
    own.write_text("def combine(rewards):\n    return rewards[0] - 0.5 * rewards[1]\n")
    (score,) = ModelReward(LocalWorkerGroup(group), combination(str(own)))([request("a", "b")])
    assert score.reward == -1.0


def test_one_model_s_failure_is_the_sample_s(tmp_path: Path) -> None:
    group = [Fixed(Score.of(1.0), Score.failed("too long"))]
    (score,) = ModelReward(LocalWorkerGroup(group), combination("mean"))([request("a", "b")])
    assert (score.ok, score.error) == (False, "too long")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('z')", "--reward_combine raised KeyError: 'z'"),
        ("raise SystemExit(0)", "--reward_combine raised SystemExit: 0"),
        ("return None", "--reward_combine raised TypeError: float() argument"),
        ("return float('nan')", r"--reward_combine gave nan for [1.0, 4.0]"),
    ],
)
def test_a_combination_that_fails_fails_its_samples_and_not_the_run(
    tmp_path: Path, body: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"def combine(rewards):\n    {body}\n")
    group = [Fixed(Score.of(1.0), Score.of(4.0))]
    scores = ModelReward(LocalWorkerGroup(group), combination(str(own)))([request("a", "b")] * 3)
    assert all(said in score.error for score in scores)
    assert not any(score.ok for score in scores)
    assert len(caplog.records) == ("raised" in said)


def test_a_run_is_rewarded_by_two_models_of_other_vocabularies(
    tiny: Tiny, run_dir: Path, judge: Path, other: Path
) -> None:
    config = tiny.config(
        run_dir, remote_rm_url=None, reward_pretrain=f"{judge}, {other}", max_steps=1
    )
    assert config.has_reward_model
    workers = groups.assemble(config, 1, LocalLauncher())
    assert workers.reward is not None
    train(config, ModelReward(workers.reward, combination(config.reward_combine)))
    (row,) = metric_rows(config)
    each = [row[f"train/reward_model_{number}"] for number in (1, 2)]
    assert row["train/reward"] == pytest.approx(sum(each) / 2, abs=1e-5)


def test_a_run_is_rewarded_by_a_weighted_sum_and_logs_every_part(tiny: Tiny, run_dir: Path) -> None:
    rewards = ("arithmetic-partial:1", "length?free=1&most=3:0.5")
    config = tiny.config(run_dir, remote_rm_url=None, rewards=rewards, max_steps=1)
    train(config, reward_function(config.reward_spec))
    (row,) = metric_rows(config)
    sums, length = row["train/reward_arithmetic_partial"], row["train/reward_length"]
    assert row["train/reward"] == pytest.approx(sums + 0.5 * length, abs=1e-6)
    assert length > 0
    assert "train/acc" in row


def test_prompts_of_a_chat_keep_their_messages(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "policy"
    shutil.copytree(tiny.model, model)
    (model / "chat_template.jinja").write_text(CHAT)
    config = tiny.config(run_dir, pretrain=model, apply_chat_template=True)
    (prompt,) = prompts.load(config).stream.next_batch(1)
    assert prompt.messages is not None
    assert prompt.text == f"u:{prompt.messages[0]['content']};"
    plain = prompts.load(tiny.config(run_dir)).stream.next_batch(1)
    assert plain[0].messages is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"reward_pretrain": "plain"}, "has no head that scores a text"),
        ({"reward_pretrain": "judge,two"}, "gives 2 numbers for a text"),
        ({"reward_pretrain": "judge", "apply_chat_template": True}, "has no chat template"),
        ({"reward_pretrain": "nowhere/at/all"}, "no config.json"),
        ({"reward_pretrain": "judge,judge", "reward_combine": "max"}, "must be one of mean"),
        ({"reward_pretrain": "judge,judge", "reward_combine": "none.py"}, "cannot be read"),
        ({"reward_pretrain": ""}, "--remote_rm_url: is required"),
    ],
)
def test_a_model_that_gives_no_reward_is_a_fault_before_anything_starts(
    tiny: Tiny, run_dir: Path, judge: Path, tmp_path: Path, flags: dict[str, Any], said: str
) -> None:
    two = tmp_path / "two"
    shutil.copytree(judge, two)
    config = json.loads((two / "config.json").read_text())
    config["id2label"] = {"0": "bad", "1": "good"}
    (two / "config.json").write_text(json.dumps(config))
    paths = {"plain": tiny.model, "judge": judge, "two": two}
    given = ",".join(str(paths.get(n, n)) for n in flags["reward_pretrain"].split(",")) or None
    with pytest.raises(ConfigError) as caught:
        tiny.config(run_dir, **flags | {"reward_pretrain": given}, remote_rm_url=None)
    (fault,) = caught.value.faults
    assert said in str(fault)


def test_a_url_comes_before_a_model(tiny: Tiny, run_dir: Path, judge: Path) -> None:
    config = tiny.config(run_dir, reward_pretrain=judge)
    assert not config.has_reward_model
    assert any("--reward_pretrain has no effect" in warning for warning in config.warnings)
    assert replace(config, remote_rm_url="").has_reward_model


def test_calls_of_the_reward_are_measured_and_logged_with_each_step(
    tiny: Tiny, run_dir: Path
) -> None:
    def slow(requests: Sequence[RewardRequest]) -> list[Score]:
        time.sleep(0.3)
        return share_of("1")(requests)

    config = tiny.config(run_dir, max_steps=2)
    train(config, slow)
    assert [0.3 <= row["perf/reward_call_seconds"] < 5 for row in metric_rows(config)] == [True] * 2
    assert [event["details"]["tokens"] > 0 for event in events(config, "step")] == [True] * 2


class TwoAtOnce:
    """A reward whose calls wait for `go`; one of them loses its process once."""

    concurrency = 2

    def __init__(self) -> None:
        self.go = Event()
        self.losses = [LostWorkerError("reward-0 is lost", "reward")]

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        assert self.go.wait(60)
        if requests[0].prompt == "1+1=" and self.losses:
            raise self.losses.pop()
        return [Score.of(1.0)] * len(requests)


def written(number: int, given: Score | None = None) -> PromptGroup:
    """A group of one completion; `given`: the score that its environment gave."""
    completion = Completion(
        text="2",
        tokens=np.arange(2),
        action_mask=np.array([False, True]),
        log_probs=np.zeros(2, np.float32),
        finished=True,
        versions=np.array([-1, 0]),
    )
    group = PromptGroup(number=number, prompt=Prompt(number, f"{number}+1="), version=0)
    group.finish(FinishedRollout((number, 0), completion, given))
    return group


@pytest.mark.parametrize("reward", [float("nan"), float("-inf"), 1e300])
def test_a_reward_that_no_step_can_use_is_named(reward: float) -> None:
    group = written(7, Score.of(reward))
    group.add_scores(iter(()))
    with pytest.raises(TrainingError, match=f"the reward of prompt 7 is {re.escape(str(reward))}"):
        rewards_of(group.samples)


def test_a_failed_call_leaves_no_scores_that_nobody_filters() -> None:
    reward, groups = TwoAtOnce(), [written(0), written(1), written(2, Score.of(0.5))]
    scoring = BackgroundScoring(reward)
    for group in groups[:2]:
        scoring.give([group])
        assert scoring.work() == []
    scoring.give(groups[2:])
    reward.go.set()
    eventually(lambda: all(call.done() for call in scoring._calls))
    with pytest.raises(LostWorkerError):
        scoring.work()
    assert [group.scores for group in groups] == [None] * 3
    found: list[int] = []

    def all_found() -> bool:
        found.extend(group.number for group in scoring.work())
        return sorted(found) == [0, 1, 2]

    eventually(all_found)
    assert not scoring.busy
