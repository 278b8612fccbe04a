"""The commands of the guides are understood as they are typed, word for word."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from contract.options import ConfigError
from tests.support.repository import DATA
from tests.support.tiny_run import Tiny, to_argv
from trainer.config.config import Config
from trainer.config.parse import parse
from trainer.config.schema import flags_of

COMMANDS = tomllib.loads((DATA / "guides.toml").read_text())["command"]
EACH = pytest.mark.parametrize("command", COMMANDS, ids=[one["name"] for one in COMMANDS])
PPO = [one for one in COMMANDS if "DPO" not in one["name"]]
EACH_OF_PPO = pytest.mark.parametrize("command", PPO, ids=[one["name"] for one in PPO])


def completed(command: dict[str, Any], tiny: Tiny, run_dir: Path) -> Config:
    """The command with what it lacks here: a reward server's URL, prompts, a run directory."""
    more = {
        "pretrain": tiny.model if "--pretrain" in command["lacks"] else None,
        "prompt_data": tiny.prompts if "--prompt_data" in command["lacks"] else None,
        "remote_rm_url": "http://reward:5000/get_reward",
        "run_dir": run_dir,
    }
    return parse([*shlex.split(command["argv"]), *to_argv(more)])


@EACH
def test_only_what_a_command_lacks_is_a_fault(command: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(shlex.split(command["argv"]))
    assert sorted(fault.path for fault in caught.value.faults) == sorted(command["lacks"])


@EACH_OF_PPO
def test_every_flag_has_its_value(command: dict[str, Any], tiny: Tiny, run_dir: Path) -> None:
    config = completed(command, tiny, run_dir)
    flags = flags_of(Config)
    values = {name: flags[name].value_in(config) for name in command["values"]}
    assert values == command["values"]


FOR_VLLM = {
    *("--vllm_tensor_parallel_size", "--vllm_gpu_memory_utilization", "--vllm_sync_backend"),
    *("--enable_prefix_caching", "--enforce_eager"),
}
WITH_VLLM = [one for one in PPO if FOR_VLLM & set(one["argv"].split())]


@pytest.mark.parametrize("command", WITH_VLLM, ids=[one["name"] for one in WITH_VLLM])
def test_every_flag_that_only_vllm_has_is_said_to_have_no_effect_without_it(
    command: dict[str, Any], tiny: Tiny, run_dir: Path
) -> None:
    argv = f"{command['argv']} --rollout_engine hf"
    said = completed({**command, "argv": argv}, tiny, run_dir).warnings
    without_effect = {warning.split()[0] for warning in said}
    assert FOR_VLLM & set(argv.split()) <= without_effect


def test_a_wandb_key_of_the_command_line_is_shown_nowhere(tiny: Tiny, run_dir: Path) -> None:
    config = tiny.config(run_dir, use_wandb="sesame")
    assert config.wandb_wanted
    assert config.wandb_key == "sesame"
    assert "sesame" not in repr(config)
    assert "sesame" not in str(config.public())
