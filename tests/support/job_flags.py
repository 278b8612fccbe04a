"""The flags of a job that a page or a file of a platform shows."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.config.parse import parse


def assert_flags_are_the_trainers(job: list[str], directory: Path) -> None:
    """Files on the storage of the platform are taken for files that exist."""
    prompts = directory / "train.jsonl"
    prompts.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    here = [re.sub(r"/[\w/]+/train\.jsonl$", str(prompts), word) for word in job]
    here = [re.sub(r"^/\w+/model$", "owner/model", word) for word in here]
    config = parse([*here, "--run_dir", str(directory)])
    assert config.remote_rm_url
    assert config.warnings == ()
