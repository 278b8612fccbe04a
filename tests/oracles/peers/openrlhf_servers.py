"""OpenRLHF's own reward client, and its own reward server as a program.

`python openrlhf_servers.py --reward.model_name_or_path DIR …` is `openrlhf.cli.serve_rm`.
"""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Sequence
from typing import Any

from absent import empty_modules

PACKAGES = ("deepspeed", "flash_attn", "peft", "pylatexenc", "torchdata", "vllm")

with empty_modules(*PACKAGES):
    from openrlhf.utils.agent import SingleTurnAgentExecutor


def fetch_rewards(
    urls: Sequence[str], queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The answers that the client of its rollouts gets, one for each of its requests."""

    async def fetched() -> list[dict[str, Any]]:
        executor = SingleTurnAgentExecutor(list(urls))
        answers: list[dict[str, Any]] = await executor._fetch_rewards_via_http(
            list(queries), list(prompts), list(labels)
        )
        return answers

    return asyncio.run(fetched())


if __name__ == "__main__":
    with empty_modules(*PACKAGES):
        runpy.run_module("openrlhf.cli.serve_rm", run_name="__main__")
