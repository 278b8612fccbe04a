"""Which metric is drawn in which chart, once, and in a colour of its own."""

from __future__ import annotations

import re

import pytest

from contract.metrics.charts import CHARTS, MOST_SERIES, Group, chart_of, charts_of, title_of
from entrypoint.run.curves import GREY, LINES, drawn

PPO = [
    f"{kind}/{name}"
    for kind, names in {
        "train": (
            "reward reward_std reward_failed return response_length total_length "
            "truncated policy_loss ppo_clip_ratio ppo_kl ratio vllm_kl "
            "is_filter_ratio kl kl_loss kl_coef entropy critic_loss values "
            "value_clip_ratio actor_lr critic_lr grad_norm critic_grad_norm "
            "staleness staleness_max older_tokens policy_aux_loss "
        ),
        "eval": "accuracy pass1 response_length truncated",
        "perf": "tokens_per_second reward_call_seconds",
        "timing": "step generate forward reward update publish",
        "memory": "policy_update_gb engine_gb",
    }.items()
    for name in names.split()
]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("train/reward", "Reward"),
        ("train/reward_gsm8k", "Reward"),
        ("train/reward_std", "Deviation of the rewards"),
        ("train/reward_standard", "Reward"),
        ("train/reward_failed", "Samples without a reward, share"),
        ("train/policy_loss", "Policy loss"),
        ("train/critic_loss", "Value loss"),
        ("train/grad_norm", "Norm of the gradients"),
        ("train/actor_lr", "Learning rate"),
        ("train/lr", "Learning rate"),
        ("train/ppo_clip_ratio", "Clipped tokens, share"),
        ("eval/response_length", "Length of a completion, tokens"),
        ("eval/truncated", "Truncated completions, share"),
        ("eval/aime24", "Held-out accuracy"),
        ("eval/reward", "Held-out reward"),
        ("eval/openai/gsm8k/reward/mean@1", "Held-out reward"),
        ("eval/gsm8k/acc/mean@4", "Held-out accuracy"),
        ("eval/frac_reward_zero_std", "Other held-out values"),
        ("timing/step", "Time of a step, seconds"),
        ("timing/stepwise", "Time of a step by phase, seconds"),
        ("train/score_reward", "Other values"),
        ("train/turns", "Other values"),
        ("memory/critic_update_gb", "Peak memory of the critic, GB"),
        ("memory/engine_rollout_gb", "Peak memory, GB"),
    ],
)
def test_a_metric_is_in_its_chart(name: str, title: str) -> None:
    chart = chart_of(name)
    assert chart is not None
    assert chart.label == title


@pytest.mark.parametrize(
    "name", ["step", "at", "eval/pass1", "perf/other", "train/", "other/reward"]
)
def test_a_row_has_fields_that_are_not_drawn(name: str) -> None:
    assert chart_of(name) is None


def test_every_metric_of_a_run_is_drawn_once_below_the_heading_of_its_group() -> None:
    found = charts_of(PPO)
    names = [name for _, own in found for name in own]
    assert sorted(names) == sorted({*PPO} - {"eval/pass1"}), "it is the accuracy"
    assert "Other values" not in [chart.title for chart, _ in found], "each has a chart of its own"
    groups = [chart.group for chart, _ in found]
    assert groups == sorted(groups, key=list(Group).index)
    assert names[:2] == ["train/reward", "eval/accuracy"]
    for chart in CHARTS:
        assert not chart.first or chart.shows(chart.first)


def test_values_of_another_trainer_have_charts_by_their_folders() -> None:
    """A chart of several units shows nothing of the smaller ones."""
    names = ["train/clip/low", "train/clip/high", "train/turns", "eval/logps/chosen", "eval/kl"]
    found = [(chart.title, [chart.short(name) for name in own]) for chart, own in charts_of(names)]
    assert found == [
        ("clip/…", ["high", "low"]),
        ("turns", ["turns"]),
        ("held-out kl", ["KL"]),
        ("held-out logps/…", ["chosen"]),
    ]


def test_without_a_critic_no_group_is_named_after_it() -> None:
    grpo = [name for name in PPO if not re.search("critic|value", name)]
    found = charts_of(grpo)
    assert Group.CRITIC not in [chart.group for chart, _ in found]
    assert [names for chart, names in found if chart.title == "Returns"] == [["train/return"]]
    sft = charts_of(["train/loss", "train/lr", "train/grad_norm", "timing/step"])
    assert [chart.group for chart, _ in sft] == [
        *(Group.LEARNING, Group.OPTIMIZER, Group.OPTIMIZER, Group.SPEED)
    ]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("eval/accuracy", "held-out accuracy"),
        ("train/reward", "reward"),
        ("train/ppo_clip_ratio", "clipped by PPO"),
        ("memory/policy_update_gb", "policy update"),
        ("train/my_own_value", "my own value"),
    ],
)
def test_a_metric_has_a_name_for_people(name: str, title: str) -> None:
    assert title_of(name) == title


def test_each_metric_of_a_chart_has_a_colour_and_a_label_of_its_own() -> None:
    memory = [f"memory/part{number}_gb" for number in range(12)]
    timing = [f"timing/{phase}" for phase in ("another", "generate", "reward", "more", "wait")]
    charts = drawn([*PPO, *memory, *timing, *(f"train/reward_{n}" for n in range(20))])
    for chart in charts:
        for field in ("colour", "label"):
            values = [metric[field] for metric in chart["metrics"]]
            assert len(set(values)) == len(values) <= MOST_SERIES, chart["title"]
    titles = [chart["title"] for chart in charts]
    assert len(set(titles)) == len(titles)
    assert {"Reward", "Reward (2)", "Reward (3)", "Peak memory (2), GB"} <= set(titles)
    phases = next(chart for chart in charts if chart["title"].startswith("Time of a step by"))
    colours = {metric["label"]: metric["colour"] for metric in phases["metrics"]}
    assert (colours["generate"], colours["wait"]) == (LINES[0], GREY)
    for whole in ("Peak memory", "Reward"):
        parts = [
            chart["metrics"] for chart in charts if re.match(whole + r"(?: \(|,|$)", chart["title"])
        ]
        styles = [(one["colour"], *one["dash"]) for part in parts for one in part]
        assert len(styles) > MOST_SERIES
        assert len(set(styles)) == len(styles), whole
    mixed = next(chart for chart in charts if chart["title"].startswith("Length"))
    labels = [metric["label"] for metric in mixed["metrics"]]
    assert labels == ["response length", "prompt and completion", "held-out response length"]
