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


COPIED = ("contract", "docs", "entrypoint", "env", "examples", "tests/support", "trainer")
PAGES = "tests.support.doc_pages"
"""The program that renews tables of the docs."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in COPIED:  # with the bytecode, which is valid: copies keep the time of a file
        images = shutil.ignore_patterns("*.png", "*.webp")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=images)
    shutil.copy2(ROOT / "rollcall_torch.py", tmp_path)  # torch imports it where it is installed
    return tmp_path


def change(tree: Path, title: str, edits: Edits) -> None:
    """Edit files that the section names, itself or by their folder."""
    for path, edit in edits.items():
        file, folder = tree / path, re.escape(f"{Path(path).parent}/")
        named = rf"{re.escape(path)}|{folder}[`)]" if file.exists() else folder
        assert re.search(rf"[`(](?:{named})", SECTIONS[title]), path
        file.write_text(edit(file.read_text() if file.exists() else ""))


def renew(tree: Path, title: str, module: str, *pages: str) -> None:
    """Run a program that the section names."""
    assert module in SECTIONS[title]
    python(tree, "-m", module, *pages)


def run(tree: Path, program: str, **variables: str) -> str:
    return python(tree, "-c", program, **variables)


def python(tree: Path, *words: str, **variables: str) -> str:
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.strip()


def after(mark: str, added: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert text.count(mark) == 1
        return text.replace(mark, mark + added)

    return edit


POLICY_INPUTS = """
zeros, ones = torch.zeros(2), torch.ones(2)
inputs = PolicyInputs(log_probs=zeros, old_log_probs=zeros, advantages=ones, weights=ones / 2,
                      rows=torch.tensor([0, 1]), metric_weight=0.5)
"""
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
        f"{platform}detect.py": lambda text: after("PREFIXED = (\n", "    nimbus.NIMBUS.read,\n")(
            after(FUTURE, "\nfrom entrypoint.config.platforms import nimbus\n")(text)
        ),
    }
    change(tree, "Add a platform", edits)
    program = """
from entrypoint.config.platforms.detect import detect
found = detect({
    "NIMBUS_NODE_RANK": "1", "NIMBUS_NODES_NUM": "2", "NIMBUS_MASTER_NODE_IP": "10.0.0.1",
    "NIMBUS_NODES_IPS": "10.0.0.1 10.0.0.2",
})
print(found.has_role, found.head_address)
"""
    assert run(tree, program) == "True 10.0.0.1"


def test_a_trainer_flag(tree: Path) -> None:
    edits: Edits = {
        "trainer/config/options/algorithm.py": after(
            '    """How advantages are estimated."""\n',
            """
    scale: float = Group.ADVANTAGE.flag(
        1.0, "factor of the differences", name="advantage_scale", above=0
    )
""",
        ),
        "trainer/algorithms/advantages.py": after("np.clip(above", " * settings.scale"),
    }
    change(tree, "Add a trainer flag", edits)
    program = """
import numpy as np
from trainer.algorithms.advantages import Rewards, above_baseline
from trainer.config.parse import unchecked
words = ["--advantage_estimator", "dr_grpo", "--advantage_scale", "3"]
rewards = Rewards(whole=np.array([0.0, 1.0]))
found = above_baseline(unchecked(words).advantage, rewards, np.array([4, 4]), 2)
print(found.tolist())
"""
    assert run(tree, program) == "[-1.5, 1.5]"
    assert "--advantage_scale" in python(tree, "-m", "trainer", "--help")
    renew(tree, "Add a trainer flag", "trainer.config.parity", "docs/flags.md")
    assert "| `advantage_scale` | – | 1 | factor of" in (tree / "docs/flags.md").read_text()


def test_an_estimator(tree: Path) -> None:
    edits: Edits = {
        "trainer/config/estimators.py": lambda text: after(
            "ESTIMATORS = {\n", '    "best": Estimator(Baseline.BEST, compares_group=True),\n'
        )(after('    NONE = "none"\n', '    BEST = "best of the prompt\'s completions"\n')(text)),
        "trainer/algorithms/advantages.py": after(
            "BASELINES: dict[Baseline, Callable[[Completions], Groups]] = {\n",
            "    Baseline.BEST: lambda of: of.rewards - of.rewards.max(axis=1, keepdims=True),\n",
        ),
    }
    change(tree, "Add an estimator", edits)
    program = """
import numpy as np
from trainer.algorithms.advantages import Rewards, above_baseline
from trainer.config.parse import unchecked
settings = unchecked(["--advantage_estimator", "best"]).advantage
rewards = Rewards(whole=np.array([0.0, 1.0, 2.0, 5.0]))
print(above_baseline(settings, rewards, np.full(4, 7), 2).tolist())
"""
    assert run(tree, program) == "[-1.0, 0.0, -3.0, 0.0]"


def test_a_policy_loss_with_a_flag_of_its_own(tree: Path) -> None:
    edits: Edits = {
        "trainer/config/policy_losses.py": after(
            "POLICY_LOSSES = {\n",
            """\
    "tilted": PolicyLoss(settings=frozenset({"tilt"}), paper="Doe 2026, equation 1"),
""",
        ),
        "trainer/algorithms/policy_loss_formulas.py": lambda text: after(
            "FORMULAS: Mapping[str, Formula] = {\n", '    "tilted": tilted,\n'
        )(
            text.replace(
                "\nFORMULAS: ",
                '''
def tilted(tokens: PolicyTokens, bounds: Bounds) -> TokenLosses:
    """Return −ρA + tilt."""
    values = bounds.tilt - tokens.log_ratio.exp() * tokens.advantages
    return TokenLosses(values, values > float("inf"))


FORMULAS: ''',
            )
        ),
        "trainer/config/options/algorithm.py": after(
            '    """The losses of policy and critic."""\n',
            '\n    tilt: float = Group.LOSS.flag(0.0, "added to each token\'s loss")\n',
        ),
    }
    change(tree, "Add a policy loss", edits)
    program = f"""
import torch
from trainer.algorithms.losses import PolicyInputs, policy_loss
from trainer.algorithms.objectives import PolicyObjective
from trainer.config.parse import unchecked
{POLICY_INPUTS}
loss = unchecked(["--policy_loss_type", "tilted", "--tilt", "4"]).loss
print(policy_loss(inputs, PolicyObjective(loss)).value.item())
"""
    assert run(tree, program) == "3.0"
    renew(tree, "Add a policy loss", PAGES)
    page = (tree / "docs/algorithms.md").read_text()
    assert "| `tilted` | −ρA + tilt | Doe 2026, equation 1 |" in page
    assert "| `tilted` | token | token, sequence, constant | weights of tokens | `--tilt` |" in page


def test_an_environment_variable(tree: Path) -> None:
    declaration = """
    nickname: str = variable(
        "ROLLCALL_NICKNAME", "Another name.", parse=str, default="none"
    )
"""
    edits: Edits = {
        "entrypoint/config/settings.py": after(
            '    """The facts from the platform\'s own variables."""\n', declaration
        ),
        "tests/support/variable_groups.py": lambda text: text.replace(
            '("log", "webhook")', '("log", "webhook", "nickname")'
        ),
    }
    change(tree, "Add an environment variable", edits)
    program = """
from entrypoint.config.read import read_settings
print(read_settings({"ROLLCALL_NICKNAME": "x"}).nickname)
"""
    assert run(tree, program) == "x"
    renew(tree, "Add an environment variable", PAGES)
    reference = (tree / "docs/reference.md").read_text()
    assert "| `ROLLCALL_NICKNAME` | each node | none | Another name. |" in reference


def test_a_preflight_check(tree: Path) -> None:
    row = "| `host.moon` | the moon | there is none | – | wait |\n"
    limit = "| 2 s | `host.moon` |\n"
    edits: Edits = {
        "entrypoint/config/check_names.py": after(
            '    """`host`, `versions`, `gpu`, `fabric`: checks of one node; `nodes`: of all nodes '
            'together."""\n',
            '\n    HOST_MOON = "host.moon"\n',
        ),
        "entrypoint/preflight/host.py": lambda text: text.replace(
            "CHECKS = (\n",
            "CHECKS = (\n    Check(\n"
            '        CheckName.HOST_MOON, "is the moon up?", moon, timeout=2.0\n    ),\n',
        ).replace(
            "\ndef shm(",
            "\ndef moon(context: Context) -> Finding:\n"
            '    return Finding(Verdict.WARN, "no moon", "wait")\n\n\ndef shm(',
        ),
        "docs/preflight.md": lambda text: after("| limit | checks |\n|---|---|\n", limit)(
            text.replace("| `host.shm` |", f"{row}| `host.shm` |")
        ),
    }
    change(tree, "Add a preflight check", edits)
    program = """
from entrypoint.config.read import read_settings
from entrypoint.config.role import decide
from entrypoint.preflight.host import CHECKS
from entrypoint.preflight.run import run_checks
for skipped in ("", "host.moon"):
    settings = read_settings({"ROLLCALL_RUN_DIR": "/run", "ROLLCALL_PREFLIGHT_SKIP": skipped})
    print(run_checks(decide(settings), settings, CHECKS[:1]).results[0].verdict)
"""
    assert run(tree, program).split() == ["warn", "skip"]
    shutil.copy(ROOT / "tests/test_preflight_page.py", tree / "tests")
    page = ("-p", "no:cacheprovider", "tests/test_preflight_page.py")
    python(tree, "-m", "pytest", "-q", *page)


def test_a_metric_of_a_run(tree: Path) -> None:
    title = "Add a metric"
    edits: Edits = {
        "trainer/algorithms/losses.py": after(
            '        "policy_loss": _total(value),\n',
            '        "gain": _total(inputs.advantages) * inputs.metric_weight,\n',
        ),
        "contract/metrics/charts.py": after(
            "\nCHARTS = (\n",
            '    Chart("Gain of a token", Group.POLICY, r"train/gain", "points"),\n',
        ),
    }
    change(tree, title, edits)
    program = f"""
import torch
from entrypoint.run.curves import drawn
from trainer.algorithms.losses import PolicyInputs, policy_loss
from trainer.algorithms.objectives import PolicyObjective
from trainer.config.options.algorithm import LossSettings
{POLICY_INPUTS}
print(policy_loss(inputs, PolicyObjective(LossSettings())).metrics["gain"].item())
print(drawn(["train/gain"])[0]["title"])
"""
    assert run(tree, program).splitlines() == ["1.0", "Gain of a token, points"]


def test_a_metric_of_the_head(tree: Path) -> None:
    edits: Edits = {
        "entrypoint/cluster/prometheus.py": lambda text: after(
            '    yield "expected_workers", (), state["expected_workers"]\n',
            '    yield "absent_workers", (), state["expected_workers"] - state["present"]\n',
        )(
            after(
                "METRICS: Mapping[str, Metric] = {\n",
                '    "absent_workers": Metric("workers that have not joined"),\n',
            )(text)
        ),
    }
    change(tree, "Add a metric", edits)
    program = """
from entrypoint.cluster.prometheus import Scrape, text
state = {"expected_workers": 3, "present": 1, "phase": "roll call", "nodes": []}
print(text(Scrape(state=state)))
"""
    assert "\nrollcall_absent_workers 2.0\n" in run(tree, program)
    renew(tree, "Add a metric", PAGES)
    row = "| `rollcall_absent_workers` | workers that have not joined |"
    assert row in (tree / "docs/monitoring.md").read_text()
