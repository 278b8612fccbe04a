"""An unknown flag is answered with the flag that it means, by the names that people type."""

from __future__ import annotations

import pytest

from trainer.config.abbreviations import MEANT, NAMES
from trainer.config.config import Config
from trainer.config.parse import DESCRIPTION, PROG, read
from trainer.config.read_flags import aliases
from trainer.supervised.stages import STAGES, SFTFlags


@pytest.mark.parametrize(
    ("flags", "typed", "meant"),
    [
        (Config, "lr", "actor_learning_rate"),
        (Config, "weight-decay", "l2"),
        (Config, "kl_coef", "init_kl_coef"),
        (Config, "bs", "train_batch_size"),
        (Config, "epochs", "num_episodes"),
        (Config, "num_generations", "n_samples_per_prompt"),
        (Config, "max_completion_length", "generate_max_len"),
        (Config, "model", "pretrain"),
        (Config, "zero_stge", "zero_stage"),
        (SFTFlags, "lr", "learning_rate"),
        (SFTFlags, "epochs", "max_epochs"),
        (SFTFlags, "train_file", "dataset"),
    ],
)
def test_the_flag_of_the_command_is_named(flags: type, typed: str, meant: str) -> None:
    faults = read(flags, [f"--{typed}", "1"], PROG, DESCRIPTION).faults
    (fault,) = [str(one) for one in faults if one.path == f"--{typed}"]
    assert fault.endswith(f"Did you mean --{meant}?")


@pytest.mark.parametrize("word", ["-lr", "lr=1e-6", "-actor_learning_rate=1e-6"])
def test_a_flag_without_its_dashes_is_named(word: str) -> None:
    faults = read(Config, ["--seed", "1", word, "3"], PROG, DESCRIPTION).faults
    said = [str(one) for one in faults if "belongs to no flag" in str(one)]
    assert said[0] == f"'{word}': belongs to no flag. Did you mean --actor_learning_rate?"
    assert len(said) == (1 if word.startswith("-") else 2)


def test_every_name_leads_to_a_flag_and_to_no_name_of_its_command() -> None:
    classes: list[type] = [Config, *STAGES.values()]
    commands = [set(aliases(flags)) for flags in classes]
    assert [flag for flag in NAMES if not any(flag in known for known in commands)] == []
    assert [name for name in MEANT if all(name in known for known in commands)] == []
