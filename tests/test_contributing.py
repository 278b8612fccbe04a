"""CONTRIBUTING's steps are complete: each is carried out on a copy of the tree, and then works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SECTIONS: dict[str, str] = dict(
    re.findall(r"^## (Add .+?)\n(.+?)(?=^## )", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
)
Edits = dict[str, Callable[[str], str]]
"""File → what it becomes."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in ("contract", "entrypoint", "env"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/reference.md", tmp_path / "docs/reference.md")
    return tmp_path


def change(tree: Path, title: str, edits: Edits) -> None:
    """Edit files that the section names, or that are new in a folder that it names."""
    for path, edit in edits.items():
        file = tree / path
        named = path if file.exists() else f"{Path(path).parent}/"
        assert re.search(rf"[`(]{re.escape(named)}", SECTIONS[title]), named
        before = file.read_text() if file.exists() else ""
        file.write_text(edit(before))


def run(tree: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def after(mark: str, added: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert text.count(mark) == 1
        return text.replace(mark, mark + added)

    return edit


FUTURE = "from __future__ import annotations\n"
REWARD = '''"""The share of sevens."""
from collections.abc import Sequence

from env.types import RewardRequest, Score


def score(requests: Sequence[RewardRequest]) -> list[Score]:
    return [Score.of(one.response.count("7") / max(1, len(one.response))) for one in requests]
'''
ENVIRONMENT = """from env.episodes.environment import Environment


class Echo(Environment):
    pass
"""


def test_a_reward(tree: Path) -> None:
    edits: Edits = {
        "env/rewards/sevens.py": lambda _: REWARD,
        "env/registry.py": lambda text: after(
            "REWARDS: dict[str, Registered] = {\n", '    "sevens": _plain(sevens.score),\n'
        )(after(FUTURE, "\nfrom env.rewards import sevens\n")(text)),
    }
    change(tree, "Add a reward", edits)
    program = """
from env.registry import reward_function
from env.types import RewardRequest
(score,) = reward_function("sevens")([RewardRequest("1+6=77", "1+6=")])
print(score.reward)
"""
    assert run(tree, program) == "1.0"


def test_an_environment(tree: Path) -> None:
    edits: Edits = {
        "env/environments/echo.py": lambda _: ENVIRONMENT,
        "env/environments/registry.py": after(
            "ENVIRONMENTS: dict[str, str | Callable[..., Any]] = {\n",
            '    "echo": "env.environments.echo:Echo",\n',
        ),
    }
    change(tree, "Add an environment", edits)
    program = "from env.environments.registry import registered; print(registered('echo').__name__)"
    assert run(tree, program) == "Echo"


def test_an_exit_code(tree: Path) -> None:
    edits: Edits = {
        "contract/exit_codes.py": after("    FINISHED = 0\n", "    NO_QUOTA = 78\n"),
        "docs/reference.md": after("\n## Exit codes\n", "\n| 78 | no quota |\n"),
    }
    change(tree, "Add a failure pattern, a failure class or an exit code", edits)
    program = """
from pathlib import Path
from contract.exit_codes import ExitCode
page = Path("docs/reference.md").read_text()
print([code for code in ExitCode if f"| {int(code)} |" not in page], int(ExitCode.NO_QUOTA))
"""
    assert run(tree, program) == "[] 78"


def test_a_platform(tree: Path) -> None:
    platform = "entrypoint/config/platforms/"
    source = (ROOT / platform / "dstack.py").read_text()
    edits: Edits = {
        f"{platform}nimbus.py": lambda _: source.replace("DSTACK", "NIMBUS").replace(
            'name="dstack"', 'name="nimbus"'
        ),
    }
    change(tree, "Add a platform", edits)
    detect = tree / platform / "detect.py"  # CONTRIBUTING: "`detect.py` beside it"
    assert "`detect.py` beside it" in SECTIONS["Add a platform"]
    text = after(FUTURE, "\nfrom entrypoint.config.platforms import nimbus\n")(detect.read_text())
    detect.write_text(after("PREFIXED = (\n", "    nimbus.NIMBUS.read,\n")(text))
    program = """
from entrypoint.config.platforms.detect import detect
found = detect({
    "NIMBUS_NODE_RANK": "1", "NIMBUS_NODES_NUM": "2", "NIMBUS_MASTER_NODE_IP": "10.0.0.1",
    "NIMBUS_NODES_IPS": "10.0.0.1 10.0.0.2",
})
print(found.has_role, found.head_address)
"""
    assert run(tree, program) == "True 10.0.0.1"
