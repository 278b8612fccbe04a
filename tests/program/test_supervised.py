"""The supervised stages on two nodes of this machine: killed, resumed, stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from contract.exit_codes import ExitCode
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.supervised.recipe import RECIPE
from tests.support.local_agents import LocalAgents, start
from tests.support.recipe_commands import steps_told
from tests.support.tiny_run import Tiny, to_argv
from tests.support.waiting import eventually
from trainer.cluster.stop import StopRequest

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


@dataclass(slots=True)
class Frozen:
    """An attempt in a thread, whose ranks stand still after a step that no checkpoint has."""

    ranks: list[psutil.Process]
    codes: list[ExitCode] = field(default_factory=list)
    """Its exit code, once it has ended."""


@contextmanager
def frozen(tiny: Tiny, root: Path, case: str, stop: StopRequest) -> Iterator[Frozen]:
    """Begin an attempt and freeze it after its fifth step or later; it goes on after the block.

    Its ranks run for short times alone, so the attempt cannot end before the block.
    """
    attempt = Frozen([])
    thread = threading.Thread(
        target=lambda: attempt.codes.append(follow(tiny, root, case, stop)), daemon=True
    )
    thread.start()

    def stands_unsaved() -> bool:
        assert not attempt.codes, "the attempt has ended"
        attempt.ranks = ranks_of(root)
        each(attempt.ranks, psutil.Process.suspend)
        told, saved = newest_told(root), newest_saved(root)
        if told >= 5 and saved < told:
            return True
        each(attempt.ranks, psutil.Process.resume)
        return False

    try:
        eventually(stands_unsaved, 400)
        yield attempt
    finally:
        each(attempt.ranks, psutil.Process.resume)


def ranks_of(root: Path) -> list[psutil.Process]:
    """The living processes of this attempt's ranks."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if str(root / "rows.jsonl") in process.cmdline():
                found.append(process)
    return found


def each(ranks: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            act(rank)


def newest_told(root: Path) -> int:
    log = root / "logs" / "attempt-1-rank-0.log"
    return max(steps_told(root), default=0) if log.exists() else 0


def newest_saved(root: Path) -> int:
    """The newest step whose checkpoint has been begun."""
    begun = (root / "checkpoints").glob("checkpoint-*")
    return max((int(path.name.removeprefix("checkpoint-")) for path in begun), default=0)


@pytest.mark.parametrize("case", CASES)
def test_a_killed_stage_resumes_and_ends_as_one_that_was_not(
    tiny: Tiny, tmp_path: Path, case: str
) -> None:
    assert follow(tiny, tmp_path / "whole", case) is ExitCode.FINISHED
    assert steps_told(tmp_path / "whole") == list(range(1, STEPS + 1))

    killed = tmp_path / "killed"
    with frozen(tiny, killed, case, StopRequest()) as attempt:
        attempt.ranks[-1].kill()
    eventually(lambda: bool(attempt.codes), 300)
    assert attempt.codes == [ExitCode.JOB_FAILED]

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
    with frozen(tiny, tmp_path / "run", "sft", stop) as attempt:
        stop.requested = True
    eventually(lambda: bool(attempt.codes), 300)
    assert attempt.codes == [ExitCode.STOPPED]
    saved = max(steps_told(tmp_path / "run"))
    assert (tmp_path / "run/checkpoints" / f"checkpoint-{saved}").is_dir()
    assert not (tmp_path / "run/hf").exists(), "what is half trained is not exported"


def test_a_stopped_stage_goes_on_with_fewer_ranks_and_the_same_batches(
    tiny: Tiny, tmp_path: Path
) -> None:
    assert follow(tiny, tmp_path / "whole", "rm") is ExitCode.FINISHED
    stop = StopRequest()
    with frozen(tiny, tmp_path / "run", "rm", stop) as attempt:
        stop.requested = True
    eventually(lambda: bool(attempt.codes), 300)
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
