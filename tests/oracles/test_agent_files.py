"""An agent file gives the same episode with OpenRLHF's classes and with those that stand in."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from env.environments import openrlhf_stand_in
from env.environments.openrlhf_agent import AgentAttempt, SamplingParams, load_agent
from env.episodes.types import Episode, Limits, Task
from tests.oracles.process import OPENRLHF
from tests.support.agent_files import write
from tests.support.chats import Scripted, tokenizer

TASK = Task(0, [], label="5", text="2+3=" * 10)


def episode(path: Path, limits: Limits) -> Episode:
    tokens = tokenizer(None)
    attempt = AgentAttempt(load_agent(path), tokens, limits, SamplingParams(limits.reply, 1.0, 1.0))
    return asyncio.run(attempt(TASK, Scripted(tokens, ["abc", "a longer reply", "c"])))


def openrlhfs_agent(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """OpenRLHF's own module, without the packages that its others need."""
    logs = SimpleNamespace(init_logger=logging.getLogger)
    monkeypatch.setitem(sys.modules, "openrlhf.utils.logging_utils", logs)
    source = OPENRLHF / "openrlhf" / "utils" / "agent.py"
    spec = importlib.util.spec_from_file_location("openrlhf_agent_oracle", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "limits",
    [Limits(reply=50, total=500), Limits(reply=8, total=70), Limits(reply=30, total=60)],
    ids=["whole", "truncated", "long prompt"],
)
def test_both_give_the_same_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    path = write(tmp_path)
    ours = episode(path, limits)
    theirs = openrlhfs_agent(monkeypatch)
    for name in ("AgentExecutorBase", "AgentInstanceBase", "MultiTurnAgentExecutor"):
        monkeypatch.setattr(openrlhf_stand_in, name, getattr(theirs, name))
    assert episode(path, limits) == ours
    assert sum(ours.action_mask) > 0
