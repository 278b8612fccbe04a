"""OpenRLHF's own example runs, and an agent file gives the same episode with OpenRLHF's classes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from env.environments import environment_file_check, openrlhf_stand_in
from env.environments.openrlhf_agent import AgentAttempt, SamplingParams, load_agent
from env.episodes.types import Episode, Limits, StopReason, Task
from tests.oracles.process import OPENRLHF
from tests.support.agent_files import write
from tests.support.chats import Scripted, tokenizer

TASK = Task(0, [], label="5", text="2+3=" * 10)


def episode(path: Path, limits: Limits) -> Episode:
    tokens = tokenizer(None)
    attempt = AgentAttempt(load_agent(path), tokens, limits, SamplingParams(limits.reply, 1.0, 1.0))
    return asyncio.run(attempt(TASK, Scripted(tokens, ["abc", "a longer reply", "c", "d"])))


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


def test_the_example_of_openrlhfs_release_runs_as_it_is(tmp_path: Path) -> None:
    (about,) = OPENRLHF.glob("openrlhf-*.dist-info/METADATA")
    (example,) = re.findall(
        r"^```python\n(# agent_func\.py\n.+?)^```$", about.read_text(), re.M | re.S
    )
    path = write(tmp_path, example)
    assert not environment_file_check.agent(str(path)).fault
    found = episode(path, Limits(reply=50, total=900))
    assert found.stop is StopReason.DONE
    assert 2 <= found.turns <= 4
    assert found.text.count("Please analyze the issues and try again.") == found.turns - 1
    assert found.score is not None
    assert found.score.reward in (0.0, 1.0)
    assert found.score.metrics["dummy_scores"] == found.score.reward
