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


def test_every_name_leads_to_a_flag_and_to_no_name_of_its_command() -> None:
    classes: list[type] = [Config, *STAGES.values()]
    commands = [set(aliases(flags)) for flags in classes]
    assert [flag for flag in NAMES if not any(flag in known for known in commands)] == []
    assert [name for name in MEANT if all(name in known for known in commands)] == []
