from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from trainer.config.config import Config
from trainer.config.parse import read


def faults_of(path: Path) -> list[str]:
    told = read(Config, ["--config", str(path)], "prog", "")
    return [str(fault) for fault in told.faults if fault.problem != "is required"]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "actor: {adam: {ler: 1}}", "a.yaml: actor.adam.ler: unknown key. Did you mean"),
        ("a.yaml", "gama: 0.9", "a.yaml: gama: unknown key. Did you mean gamma?"),
        ("a.toml", "[actor.eps_clip]\nlow = 1", "a.toml: actor.eps_clip.low: unknown key"),
        ("a.yaml", "actor: {eps_clip: {}}", "a.yaml: actor.eps_clip: is not a section"),
        ("a.yaml", "gamma: wide", "a.yaml: gamma: must be a number (given: wide)"),
        ("a.yaml", "adam_betas: 0.9", "a.yaml: adam_betas: must be 2 numbers (given: 0.9)"),
        ("a.yaml", "gamma: [0.9, 0.8]", "a.yaml: gamma: must be a number (given: 0.9 0.8)"),
        ("a.toml", "bf16 = 3", "a.toml: bf16: must be true or false (given: 3)"),
        ("a.toml", "load_in_4bit = true", "a.toml: load_in_4bit: is not supported"),
        ("a.toml", "gamma = = 1", "a.toml). Correct it"),
        ("a.yaml", "gamma: [", "--config: is not YAML in line 1 (given: "),
        ("a.yaml", "gamma: 1\nlambd: 1\ngamma: 0.9", "the key gamma is there twice"),
        ("a.yaml", "actor: {adam: {lr: 1, lr: 2}}", "the key lr is there twice"),
        ("a.yaml", "- gamma", "holds no keys"),
        ("a.json", "{}", "is neither YAML nor TOML"),
    ],
)
def test_a_fault_names_file_and_key(tmp_path: Path, name: str, text: str, said: str) -> None:
    (fault,) = faults_of(written(tmp_path, name, text))
    assert said in fault


def test_every_fault_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    one = written(tmp_path, "one.yaml", "gamma: 2\nlambd: -1\nseeed: 1\n")
    two = written(tmp_path, "two.toml", "eps_clip = 0\n")
    words = ["--config", str(one), "--config", str(two), "--kl_target", "high"]
    flags = {
        fault.path.partition(": ")[2] or fault.path for fault in read(Config, words, "", "").faults
    }
    assert {"gamma", "lambd", "seeed", "eps_clip", "--kl_target"} <= flags


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path / "nowhere.yaml")
    assert "cannot be read: No such file" in fault


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert faults_of(written(tmp_path, "a.yaml", "# later\n")) == []


def test_the_file_of_the_docs_is_right(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "trainer.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = written(tmp_path, "run.yaml", text)
    assert faults_of(path) == []
    config = read(Config, ["--config", str(path)], "prog", "").config
    assert (config.advantage.estimator, config.policy_optimizer.learning_rate) == (
        "group_norm",
        1e-6,
    )
