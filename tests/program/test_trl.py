"""TRL's own script on two nodes of this machine, stopped and resumed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.trl.recipe import RECIPE
from tests.support.local_agents import LocalAgents, start
from tests.support.recipe_commands import steps_told
from tests.support.tiny_run import Tiny
from tests.support.waiting import eventually
from trainer.cluster.stop import StopRequest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

STEPS = 8
FLAGS = (
    *("--max_steps", str(STEPS), "--save_steps", "100", "--logging_steps", "1", "--seed", "1"),
    *("--per_device_train_batch_size", "2", "--learning_rate", "1e-2", "--max_length", "32"),
    *("--use_cpu", "true", "--bf16", "false", "--report_to", "none"),
    *("--gradient_checkpointing", "false"),
)


def follow(tiny: Tiny, root: Path, data: Path, stop: StopRequest) -> ExitCode:
    """One attempt, which resumes from the newest complete checkpoint."""
    root.mkdir(exist_ok=True)
    job = ["trl", "sft", "--model_name_or_path", str(tiny.model), "--dataset_name", str(data)]
    environ = {"ROLLCALL_RECIPE": "trl", "ROLLCALL_RUN_DIR": str(root)}
    settings = read_settings(environ, [*job, *FLAGS])
    assert RECIPE.faults(settings) == []
    argv = RECIPE.command(settings, RECIPE.latest(settings)).argv
    words = argv[argv.index("--") + 1 :]
    return start(LocalAgents(2), words, root, stop, steps=True).follow()


def losses(root: Path) -> list[tuple[int, float]]:
    (path,) = (root / "hf").glob(f"checkpoint-{STEPS}/trainer_state.json")
    rows = json.loads(path.read_text())["log_history"]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def test_a_stopped_run_resumes_and_ends_as_one_that_was_not(tiny: Tiny, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(64)]
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert follow(tiny, tmp_path / "whole", data, StopRequest()) is ExitCode.FINISHED
    assert steps_told(tmp_path / "whole") == list(range(1, STEPS + 1))

    stopped, stop = tmp_path / "stopped", StopRequest()
    codes: list[ExitCode] = []
    attempt = threading.Thread(
        target=lambda: codes.append(follow(tiny, stopped, data, stop)), daemon=True
    )
    attempt.start()
    log = stopped / "logs" / "attempt-1-rank-0.log"
    eventually(lambda: log.exists() and "rollcall: step 2/" in log.read_text(), 400)
    stop.requested = True
    attempt.join(300)
    assert codes == [ExitCode.STOPPED]
    saved = max(steps_told(stopped))
    assert [path.name for path in (stopped / "hf").glob("checkpoint-*")] == [f"checkpoint-{saved}"]
    assert saved < STEPS, "it was to stop on the way"

    assert follow(tiny, stopped, data, StopRequest()) is ExitCode.FINISHED
    assert steps_told(stopped) == list(range(1, STEPS + 1)), "no step is skipped or done twice"
    assert losses(stopped) == losses(tmp_path / "whole")
    assert (stopped / "hf" / "model.safetensors").is_file()
