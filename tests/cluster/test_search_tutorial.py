"""docs/tutorial-search.md, command by command, and what the model has learned at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.commands.demo import PORTS, Layout, inherited
from entrypoint.net.port_block import PortBlock
from tests.support import examples
from tests.support.examples import EXAMPLES
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "tutorial-search.md"

# `make faults` runs it: it takes minutes. tests/learning/test_search.py trains such a model, too.
pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(600)]


def test_the_tutorial_s_commands_make_a_model_that_searches(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    with PortBlock(PORTS) as first:
        layout = Layout(tmp_path, first)
        names = ("ROLLCALL_RUN_DIR", "EXPECTED_WORKERS", "RAY_WORKER")  # those are the page's
        node = {name: text for name, text in layout.node(0).items() if name not in names}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        script = "\n".join(examples.scripts(PAGE)).replace("8000", str(layout.reward_port))
        ends = "set -e; trap 'kill $(jobs -p) || true' EXIT\n"
        done = subprocess.run(
            ["bash", "-c", ends + script],
            cwd=tmp_path,
            env=inherited() | node | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=540,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<search>bibahe</search>" in done.stdout
    assert done.stdout.rstrip().endswith("<answer>dudo</answer>")
    assert (tmp_path / "runs" / "search.html").exists()
    run = RunFiles(tmp_path / "runs" / "search")
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    searched = [row["train/searched"] for row in rows if "train/searched" in row]
    assert searched[0] < 0.4
    assert min(searched[-5:]) > 0.8
    before, *_, after = [row["eval/pass1"] for row in rows if "eval/pass1" in row]
    assert before < 0.2
    assert after > 0.8
