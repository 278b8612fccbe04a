"""`rollcall translate` in this process, and commands for it."""

from __future__ import annotations

import shlex

import pytest

from trainer.config.translate.__main__ import main

VERL = "python3 -m verl.trainer.main_ppo data.train_files=gsm8k.parquet"
MODEL = "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"
TRL = "trl grpo --model_name_or_path m/m --dataset_name o/d --reward_funcs accuracy_reward"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error."""
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr()
    return code, said.out, said.err


def flags(out: str) -> dict[str, list[str]]:
    """Return the flags of the printed command with their values."""
    words = shlex.split(out.replace("\\\n", " "))
    found: dict[str, list[str]] = {}
    for word in words[words.index("--") + 1 :]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[[*found][-1]].append(word)
    return found
