"""Settings of a node whose job is the builtin trainer's."""

from __future__ import annotations

from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings

URL = "http://reward:5000/get_reward"


def settings_of(root: Path, *job: str) -> Settings:
    prompts = root / "prompts.jsonl"
    prompts.write_text('{"input": "1+1="}\n')
    common = ("--pretrain", "some/model", "--prompt_data", str(prompts), "--remote_rm_url", URL)
    return read_settings({"ROLLCALL_RUN_DIR": str(root)}, [*common, *job])
