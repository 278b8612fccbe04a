"""The supervised stages on two nodes of this machine: killed, resumed, stopped."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from contract.exit_codes import ExitCode
from contract.stop import StopRequest
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.supervised import RECIPE
from tests.support.local_agents import LocalAgents, start
from tests.support.recipe_commands import steps_told
from tests.support.tiny_run import Tiny, to_argv
from tests.support.waiting import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

STEPS = 40
SUMS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(64)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "==="} for n in range(64)]
CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "sft": ("sft", SUMS, {"packing_samples": True, "lora_rank": 2}),
    "rm": ("rm", PAIRS, {"prompt_key": "prompt"}),
    "dpo": ("dpo", PAIRS, {"prompt_key": "prompt"}),
    "zero": ("sft", SUMS, {"zero_stage": 2}),
}
SPLIT = ("rm", PAIRS, {"prompt_key": "prompt", "zero_stage": 3})


def follow(
    tiny: Tiny, root: Path, case: str, stop: StopRequest | None = None, nodes: int = 2
) -> ExitCode:
    """One attempt, which resumes from the newest complete checkpoint."""
    stage, rows, flags = CASES.get(case, SPLIT)
    root.mkdir(exist_ok=True)
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {
        "pretrain": tiny.model,
        "dataset": root / "rows.jsonl",
        "train_batch_size": 8,
        "max_steps": STEPS,
        "max_epochs": STEPS,
        "save_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        **flags,
    }
    environ = {"ROLLCALL_RECIPE": "supervised", "ROLLCALL_RUN_DIR": str(root)}
    settings = read_settings(environ, [stage, *to_argv(given)])
    assert RECIPE.faults(settings) == []
    argv = RECIPE.command(settings, RECIPE.latest(settings)).argv
    words = argv[argv.index("--") + 1 :]
    return start(LocalAgents(nodes), words, root, stop or StopRequest(), steps=True).follow()


def losses(root: Path) -> list[tuple[int, float]]:
    path = root / "checkpoints" / f"checkpoint-{STEPS}" / "trainer_state.json"
    rows = json.loads(path.read_text())["log_history"]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def in_thread(tiny: Tiny, root: Path, case: str, stop: StopRequest) -> list[ExitCode]:
    """Begin an attempt; return when its fifth step has ended. Its exit code follows in the list."""
    codes: list[ExitCode] = []
    attempt = threading.Thread(
        target=lambda: codes.append(follow(tiny, root, case, stop)), daemon=True
    )
    attempt.start()
    log = root / "logs" / "attempt-1-rank-0.log"
    eventually(lambda: log.exists() and "rollcall: step 5/" in log.read_text(), 400)
    return codes


@pytest.mark.parametrize("case", CASES)
def test_a_killed_stage_resumes_and_ends_as_one_that_was_not(
    tiny: Tiny, tmp_path: Path, case: str
) -> None:
    assert follow(tiny, tmp_path / "whole", case) is ExitCode.FINISHED
    assert steps_told(tmp_path / "whole") == list(range(1, STEPS + 1))

    killed = tmp_path / "killed"
    codes = in_thread(tiny, killed, case, StopRequest())
    ranks = [
        process
        for process in psutil.Process().children(recursive=True)
        if str(killed / "rows.jsonl") in process.cmdline()
    ]
    ranks[-1].kill()
    eventually(lambda: bool(codes), 300)
    assert codes == [ExitCode.JOB_FAILED]

    assert follow(tiny, killed, case) is ExitCode.FINISHED
    told = steps_told(killed)
    assert told[-1] == STEPS
    again = next(step for step, after in pairwise(told) if after <= step)
    assert told[told.index(again) + 1] > 3, "it goes on from a checkpoint"
    assert losses(killed) == losses(tmp_path / "whole")
    exported = [(root / "hf" / "model.safetensors") for root in (killed, tmp_path / "whole")]
    assert exported[0].read_bytes() == exported[1].read_bytes()


def test_a_stopped_stage_saves_first(tiny: Tiny, tmp_path: Path) -> None:
    stop = StopRequest()
    codes = in_thread(tiny, tmp_path / "run", "sft", stop)
    stop.requested = True
    eventually(lambda: bool(codes), 300)
    assert codes == [ExitCode.STOPPED]
    saved = max(steps_told(tmp_path / "run"))
    assert (tmp_path / "run/checkpoints" / f"checkpoint-{saved}").is_dir()
    assert not (tmp_path / "run/hf").exists(), "what is half trained is not exported"


def test_a_stopped_stage_goes_on_with_fewer_ranks_and_the_same_batches(
    tiny: Tiny, tmp_path: Path
) -> None:
    assert follow(tiny, tmp_path / "whole", "rm") is ExitCode.FINISHED
    stop = StopRequest()
    codes = in_thread(tiny, tmp_path / "run", "rm", stop)
    stop.requested = True
    eventually(lambda: bool(codes), 300)
    assert follow(tiny, tmp_path / "run", "rm", nodes=1) is ExitCode.FINISHED
    assert steps_told(tmp_path / "run") == list(range(1, STEPS + 1))
    whole, fewer = (dict(losses(tmp_path / name)) for name in ("whole", "run"))
    assert fewer[STEPS] == pytest.approx(whole[STEPS], rel=0.05)


def test_a_model_that_zero_has_split_is_written_whole(tiny: Tiny, tmp_path: Path) -> None:
    for case in ("rm", "split"):
        assert follow(tiny, tmp_path / case, case) is ExitCode.FINISHED
    plain, split = (
        load_file(tmp_path / case / "hf" / "model.safetensors") for case in ("rm", "split")
    )
    assert plain.keys() == split.keys()
    assert all(plain[name].allclose(split[name], atol=1e-4) for name in plain)
