"""The model card of a finished run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from contract.journal import journal_writer
from contract.metrics.json_lines import JsonLines
from tests.support.tiny_run import Tiny
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.metrics import model_card
from trainer.metrics.model_card import Facts

STATE = RunState(
    step=40,
    seed=1,
    prompts={},
    samples=320,
    reward=0.75,
    reward_first=0.25,
    eval=0.5,
    eval_before=0.125,
)


@pytest.fixture
def config(tiny: Tiny, run_dir: Path) -> Config:
    given = tiny.config(
        run_dir, hub_model_id="owner/sums", prompt_data=f"openai/gsm8k:main,{tiny.prompts}"
    )
    return replace(given, pretrain="Qwen/Qwen3-0.6B")


def card_of(config: Config, *rows: dict[str, float], **environ: str) -> str:
    return model_card.card(Facts(config, STATE, rows, {"node_lost": 2}, attempts=3), environ)


def test_the_front_matter_names_base_model_and_data_of_the_hub(config: Config) -> None:
    front = yaml.safe_load(card_of(config).split("---\n")[1])
    assert front["base_model"] == "Qwen/Qwen3-0.6B"
    assert front["datasets"] == ["openai/gsm8k"]
    assert front["pipeline_tag"] == "text-generation"
    assert "rollcall" in front["tags"]


def test_results_failures_flags_and_versions_are_in_it(config: Config) -> None:
    text = card_of(config)
    for line in (
        "# sums",
        "| steps | 40 |",
        "| mean reward of the first step | 0.25 |",
        "| held-out accuracy after | 0.5 |",
        "| attempts | 3 |",
        "| failures: node_lost | 2 |",
        "| `--rollout_batch_size` | `4` |",
    ):
        assert line in text.splitlines()
    assert "| torch | 2.13.0" in text


def test_a_curve_has_the_first_and_the_last_step_and_few_between(config: Config) -> None:
    config.files.root.mkdir()
    lines = JsonLines(config.files.metrics, 0)
    for n in range(1, 101):
        lines.log(n, {"train/reward": n / 100, "train/kl": 0.1})
    lines.log(100, {"eval/accuracy": 0.5})
    text = model_card.card(model_card.facts_of(config, STATE), {})
    curve = text.split("## Curve\n")[1].split("## Flags")[0].strip().splitlines()[2:]
    assert len(curve) == model_card.MOST_ROWS
    assert curve[0] == "| 1 | 0.01 |  | 0.1 |  |"
    assert curve[-1] == "| 100 | 1 | 0.5 | 0.1 |  |"


def test_a_run_without_rows_has_a_card(config: Config) -> None:
    assert "## Curve" in card_of(config)


def test_neither_directories_nor_secrets_are_in_it(config: Config, tiny: Tiny) -> None:
    told = replace(config, remote_rm_url="http://host/score?key=0123456789", use_wandb="abcdefghij")
    text = card_of(told, MY_TOKEN="0123456789")
    assert str(tiny.prompts.parent) not in text
    assert tiny.prompts.name in text
    assert "0123456789" not in text
    assert "abcdefghij" not in text
    assert str(config.run_dir) not in text


def test_the_facts_are_read_from_the_files_of_the_run(config: Config) -> None:
    config.files.root.mkdir(parents=True, exist_ok=True)
    row = {"step": 1, "at": 0.0, "train/reward": 0.5}
    config.files.metrics.write_text(json.dumps(row) + "\n{torn\n")
    journal_writer(config.files.journal)("failure", "hang: no step.", failure="hang")
    facts = model_card.facts_of(config, STATE)
    assert facts.rows == [row]
    assert facts.failures == {"hang": 1}
