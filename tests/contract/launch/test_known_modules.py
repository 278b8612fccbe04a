"""A mistyped module of another trainer is told without that trainer's package."""

from __future__ import annotations

import pytest

from contract.launch.known_modules import MODULES, mistyped


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("openrlhf.cli.train_ppoo_ray", "openrlhf.cli.train_ppo_ray"),
        ("openrhlf.cli.train_sft", "openrlhf.cli.train_sft"),
        ("verl.trainer.main_pp0", "verl.trainer.main_ppo"),
        ("trl.scripts.gpro", "trl.scripts.grpo"),
    ],
)
def test_a_letter_that_is_wrong_is_noticed(typed: str, meant: str) -> None:
    assert mistyped(typed) == meant


@pytest.mark.parametrize(
    "typed", [*MODULES, "my.trainer", "verl.trainer.main_train", "openrlhf.cli.serve_llm", "job.py"]
)
def test_another_module_is_none_that_is_mistyped(typed: str) -> None:
    assert mistyped(typed) == ""
