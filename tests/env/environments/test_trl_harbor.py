"""The environment of a release of TRL, `trl.experimental.harbor`, as it is.

Its sandbox is a directory.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from env.environments.load import environment_factory
from env.episodes.chat import TemplateChat
from env.episodes.episode import run_episode
from env.episodes.types import Episode, Limits, StopReason, Task
from tests.support.chats import Scripted, tokenizer

LIMITS = Limits(turns=5, prompt=5000, reply=900, observation=900, total=20_000, seconds=60)
FILE = """\
from trl.experimental.harbor import HarborBashEnv


def solved(environments, **columns):
    return [environment.reward for environment in environments]
"""


class Sandbox:
    """What Harbor starts in a container, in a directory of this machine."""

    os = "linux"

    def __init__(self, root: Path) -> None:
        self._root = root

    async def start(self, force_build: bool) -> None:
        self._root.mkdir()

    async def exec(self, command: str, **_: Any) -> SimpleNamespace:
        done = subprocess.run(
            ["bash", "-c", command.replace("/workdir", str(self._root)).replace("/home/user", ".")],
            cwd=self._root,
            capture_output=True,
            text=True,
            check=False,
        )
        return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)

    async def run_healthcheck(self) -> None: ...

    async def empty_dirs(self, *_: Any, **__: Any) -> None: ...


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Harbor's modules that TRL's environment imports, with a task whose answer is 42."""
    sandbox = Sandbox(tmp_path / "sandbox")

    def task(task_dir: Path) -> SimpleNamespace:
        return SimpleNamespace(
            instruction=(task_dir / "instruction.md").read_text(),
            paths=SimpleNamespace(environment_dir=task_dir),
            short_name=task_dir.name,
            config=SimpleNamespace(environment=None, verifier=SimpleNamespace(env={})),
        )

    async def verify() -> SimpleNamespace:
        answer = tmp_path / "sandbox" / "answer.txt"
        right = answer.is_file() and answer.read_text() == "42"
        return SimpleNamespace(rewards={"reward": float(right)})

    paths = SimpleNamespace(for_os=lambda _: SimpleNamespace(verifier_dir="/logs"))
    verifier = SimpleNamespace(
        create_verifier_from_config=lambda *_, **__: SimpleNamespace(verify=verify)
    )
    made = SimpleNamespace(create_environment_from_config=lambda **_: sandbox)
    anything = lambda **_: SimpleNamespace()  # noqa: E731
    modules: dict[str, dict[str, Any]] = {
        "harbor.environments.factory": {"EnvironmentFactory": made},
        "harbor.models.task.task": {"Task": task},
        "harbor.models.trial.config": {"EnvironmentConfig": anything, "VerifierConfig": anything},
        "harbor.models.trial.paths": {"TrialPaths": anything, "EnvironmentPaths": paths},
        "harbor.verifier.factory": {"VerifierFactory": verifier},
    }
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "instruction.md").write_text("What is 6 times 7?")
    (tmp_path / "own.py").write_text(FILE)
    return tmp_path


def calling(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


def episode_of(root: Path, *commands: str) -> Episode:
    tokens = tokenizer("qwen2_5")
    spec, rewards = f"{root}/own.py:HarborBashEnv", {"reward_funcs": ["solved"]}
    task = Task(0, [{"role": "user", "content": "Solve: "}], columns={"task_dir": str(root)})
    policy = Scripted(tokens, [*map(calling, commands), "Done."])
    environment = environment_factory(spec, rewards)()
    return asyncio.run(run_episode(environment, task, TemplateChat(tokens), policy, LIMITS))


@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("41", 0.0)])
def test_trls_harbor_environment_runs_as_it_is(root: Path, answer: str, reward: float) -> None:
    episode = episode_of(root, "echo $((6*7))", f"echo -n {answer} > /workdir/answer.txt")
    assert episode.stop is StopReason.DONE
    assert episode.messages[0]["content"].startswith("Solve: What is 6 times 7?")
    told = [one["content"] for one in episode.messages if one["role"] == "tool"]
    assert told == ["42\n", "(empty output, rc=0)"]
    assert list(episode.turn_rewards.values()) == [reward]
    assert episode.metrics["reward_solved"] == reward
