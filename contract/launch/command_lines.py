"""Pure: words of command lines that other projects define, for launchers and for `translate`."""

from __future__ import annotations

import re
from collections.abc import Sequence

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
"""An assignment of a shell before a program, as in `NCCL_DEBUG=INFO python3 …`."""
PYTHON = re.compile(r"(?:[^=]*/)?python[0-9.]*")
"""A Python by its name or its path."""
PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X")
PASSED_ON = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "VLLM_", "HF_", "HUGGING_FACE_", "WANDB_", "AWS_"),
    *("CUDA_", "HIP_", "ROCR_", "RAY_", "TORCH_", "OMP_", "MASTER_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""How names begin of variables that the job's libraries read, no shell between."""

ACCELERATE_MODULE = "accelerate.commands.launch"
ACCELERATE_VALUES = frozenset(
    {
        *("accelerate_config", "config_file", "num_processes", "num_machines", "machine_rank"),
        *("main_process_ip", "main_process_port", "mixed_precision", "dynamo_backend"),
        *("zero_stage", "deepspeed_config_file", "num_cpu_threads_per_process", "gpu_ids"),
    }
)
ACCELERATE_SWITCHES = frozenset({"multi_gpu", "use_deepspeed", "use_fsdp", "same_network", "cpu"})
"""Flags of `accelerate launch` that `trl sft …` takes between those of the script."""

OPENRLHF_MODULE = re.compile(r"openrlhf\.cli\.(?P<name>\w+)")
OPENRLHF_FILE = re.compile(r"(?:.*/)?openrlhf/cli/(?P<name>\w+)\.py")
"""A module of OpenRLHF that is started by its file's path."""
OPENRLHF_ON_RANKS = re.compile(r"(?:.*[./])?train_(?:sft|rm|dpo|prm|kto|kd|ppo)(?:\.py)?")
"""OpenRLHF's programs that run once for each GPU of all nodes; the others use Ray."""

OPENRLHF_PPO = re.compile(r"openrlhf\.cli\.train_ppo(_ray)?|(?:.*/)?train_ppo(_ray)?\.py")
"""OpenRLHF's PPO, also by a file of that name elsewhere."""
OPENRLHF_STAGE = re.compile(r"openrlhf\S*train_(?P<stage>sft|rm|dpo)(?:\.py)?$")
"""OpenRLHF's trainings whose flags a supervised stage of Rollcall takes."""


def openrlhf_program(word: str) -> str:
    """Return the name of OpenRLHF's program that a word starts, such as `train_sft`; "" if none."""
    found = OPENRLHF_MODULE.fullmatch(word) or OPENRLHF_FILE.fullmatch(word)
    return found["name"] if found else ""


def is_openrlhf_training(word: str) -> bool:
    """Return whether a word starts one of OpenRLHF's trainings."""
    return openrlhf_program(word).startswith("train_")


def variables_before(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the assignments before a program, and the rest of the words."""
    variables, rest = {}, list(words)
    while rest and (match := ASSIGNMENT.fullmatch(rest[0])):
        variables[match["name"]] = match["value"]
        rest.pop(0)
    return variables, rest


def script_place(words: Sequence[str]) -> int:
    """Return the place of the script, or of its `-m`, behind Python's own options."""
    place = 0
    while place < len(words) and words[place][:1] == "-" and words[place] != "-m":
        place += 2 if words[place] in PYTHON_OPTIONS_WITH_VALUE else 1
    return min(place, len(words))


def option_value(words: Sequence[str], name: str) -> str | None:
    """Return the value of --name, the last one as argparse has it; None if it is not given."""
    value = None
    for place, word in enumerate(words):
        flag, equals, given = word.partition("=")
        if flag.replace("-", "_") == f"__{name}":
            value = given if equals else next(iter(words[place + 1 : place + 2]), "")
    return value
